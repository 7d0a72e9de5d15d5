//! Safe access to files of the state folder: owned by the user, not writable by others, not behind symbolic
//! links.
//!
//! A user who can write to the state folder could plant a history whose command is then resumed, or a link to
//! a file that is then overwritten. So a state folder that is not the user's own is refused as a whole, and a
//! file in it is only opened if its name leads to a regular file. The folder itself may lie behind links.

use dtrain_protocol::unix_group;
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Checks that a state folder and the files in it belong to the user, and that others cannot write to them.
///
/// A missing folder passes. `Err` names the path and the fault, and says how to fix it.
pub fn check_state(root: &Path) -> io::Result<()> {
    let Some(found) = unless_missing(fs::metadata(root))? else { return Ok(()) };
    // A link of another user can lead anywhere.
    check_owner(root, &fs::symlink_metadata(root)?)?;
    check_facts(root, &found)?;
    if !found.is_dir() {
        return Err(permission_error(format!(
            "{} is not a folder; name another with --state FOLDER",
            root.display()
        )));
    }
    let lets_others_in = found.mode() & 0o011 != 0;
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        // A file may vanish meanwhile, such as the write-ahead log of the history.
        let Some(found) = unless_missing(fs::symlink_metadata(&path))? else { continue };
        check_kind(&path, &found)?;
        check_owner(&path, &found)?;
        // If others may not enter a folder, the files in its subfolders are out of their reach, whatever
        // their mode.
        if lets_others_in || !found.is_dir() {
            check_mode(&path, &found)?;
        }
    }
    Ok(())
}

/// Checks that no part of a trial's folder is a link, belongs to another user or is writable by others. A
/// missing folder passes.
///
/// On a node of a Slurm job, `checkpoints` is a link to the folder that all nodes share; that of another
/// trial is refused.
pub fn check_trial(folder: &Path) -> io::Result<()> {
    let Some(found) = unless_missing(fs::symlink_metadata(folder))? else { return Ok(()) };
    check_kind(folder, &found)?;
    check_owner(folder, &found)?;
    let mut lets_others_in = is_reachable_by_others(folder);
    if lets_others_in {
        check_mode(folder, &found)?;
    }
    lets_others_in &= found.mode() & 0o011 != 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(found) = unless_missing(fs::symlink_metadata(&path))? else { continue };
        check_owner(&path, &found)?;
        let is_shared = || fs::canonicalize(&path).is_ok_and(|to| is_shared_checkpoint_folder(&path, &to));
        if !(found.is_symlink() && is_shared()) {
            check_kind(&path, &found)?;
        }
        if lets_others_in {
            check_mode(&path, &found)?;
        }
    }
    Ok(())
}

/// Returns `true` if others may enter the two folders above the folder of a trial: `trials`, and the state
/// folder.
fn is_reachable_by_others(folder: &Path) -> bool {
    let mut above = folder.ancestors().skip(1).take(2);
    above.all(|path| fs::metadata(path).map_or(true, |found| found.mode() & 0o011 != 0))
}

/// Returns `true` if a link and its target are both the checkpoint folder of one trial.
fn is_shared_checkpoint_folder(link: &Path, to: &Path) -> bool {
    let end = |path: &Path| {
        let (trial, name) = (path.parent()?.file_name()?.to_owned(), path.file_name()?.to_owned());
        (name == "checkpoints").then_some(trial)
    };
    end(link).is_some() && end(link) == end(to)
}

/// Checks that a path is no link, belongs to the user, and is not writable by others. A missing path passes.
///
/// `Err` names the fault and says how to fix it.
pub fn check_own(path: &Path) -> io::Result<()> {
    let Some(found) = unless_missing(fs::symlink_metadata(path))? else { return Ok(()) };
    check_kind(path, &found)?;
    check_facts(path, &found)
}

/// Like [`check_own`], but follows symbolic links that the user may have made, such as for settings.
pub fn check_behind_links(path: &Path) -> io::Result<()> {
    let Some(found) = unless_missing(fs::metadata(path))? else { return Ok(()) };
    check_facts(path, &found)
}

fn unless_missing(found: io::Result<Metadata>) -> io::Result<Option<Metadata>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

fn check_facts(path: &Path, found: &Metadata) -> io::Result<()> {
    check_owner(path, found)?;
    check_mode(path, found)
}

/// Rejects a path that is a symbolic link; `open_as` rejects devices, pipes and folders.
fn check_kind(path: &Path, found: &Metadata) -> io::Result<()> {
    let shown = path.display();
    if found.is_symlink() {
        let to = fs::read_link(path).unwrap_or_default();
        let words = format!(
            "{shown} is a symbolic link to {}, and links in the state are not followed; remove it, or move the whole state \
             folder and name it with --state FOLDER",
            to.display()
        );
        return Err(permission_error(words));
    }
    Ok(())
}

/// Checks that the file `path` belongs to the user. Files of root pass: root can do everything anyway.
fn check_owner(path: &Path, found: &Metadata) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if found.uid() == user || found.uid() == 0 {
        return Ok(());
    }
    // Taking a file over as root would lock its owner out.
    let or_take_it = if user == 0 { "" } else { ", or make it yours with `chown`" };
    Err(permission_error(format!(
        "{} belongs to user {} (mode {:04o}), and this is user {user}; name a folder of your own with --state FOLDER{or_take_it}",
        path.display(),
        found.uid(),
        found.mode() & 0o7777
    )))
}

/// Checks that no other user can write to the file `path`. The user's private group has no other members.
fn check_mode(path: &Path, found: &Metadata) -> io::Result<()> {
    let by_group = || found.mode() & 0o020 != 0 && !has_private_group(found);
    if found.is_symlink() || found.mode() & 0o002 == 0 && !by_group() {
        return Ok(());
    }
    let shown = path.display();
    Err(permission_error(format!(
        "{shown} can be written by others (mode {:04o}, user {}, group {}); look at what is in it, then `chmod go-w {shown}`, or \
         name another folder with --state FOLDER",
        found.mode() & 0o7777,
        found.uid(),
        found.gid()
    )))
}

/// Returns `true` if the user is the only member of the file's group.
fn has_private_group(found: &Metadata) -> bool {
    unix_group::is_private(found.uid(), found.gid(), |path| fs::read_to_string(path).unwrap_or_default())
}

fn permission_error(words: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, words)
}

/// Opens a file of the state folder with `options`; a new one is readable by its user only.
///
/// `Err` if the name leads to a link, a folder or anything but a regular file.
pub fn open_as(options: &OpenOptions, path: &Path) -> io::Result<File> {
    // Without NONBLOCK, opening a pipe would block.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.clone().mode(0o600).custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| {
        let is_link = || fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) && is_link() {
            permission_error(
                "it is a symbolic link, and links in the state are not followed; remove it".to_owned(),
            )
        } else {
            error
        }
    })?;
    if !file.metadata()?.is_file() {
        return Err(permission_error("it is not a regular file".to_owned()));
    }
    Ok(file)
}

/// Opens a file of the state folder for reading.
pub fn open(path: &Path) -> io::Result<File> {
    open_as(OpenOptions::new().read(true), path)
}

/// Opens a file of the state folder for appending; creates it if it does not exist.
pub fn append(path: &Path) -> io::Result<File> {
    open_as(OpenOptions::new().read(true).append(true).create(true), path)
}

/// Creates or truncates a file of the state folder.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    open_as(OpenOptions::new().write(true).create_new(true), path)
}

/// Creates a file of the state folder with the content `bytes`, or replaces its content.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Copies a file from anywhere to the state folder.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut create(to)?).map(drop)
}

/// Reads a file of the state folder as bytes.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file of the state folder as text.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Creates a folder and its parents, accessible to its user only.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
    }

    /// Returns the error for a state folder; empty if it passes.
    fn told(root: &Path) -> String {
        check_state(root).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_state_folder_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("state");
        assert_eq!(told(&root), "", "there is none yet");
        make_folder(&root).expect("made");
        fs::write(root.join("history.db"), "").expect("written");
        assert_eq!(told(&root), "");
        mode(&root, 0o777);
        assert!(told(&root).contains("can be written by others (mode 0777"), "{}", told(&root));
        assert!(told(&root).contains(&format!("chmod go-w {}", root.display())));
        mode(&root, 0o755);
        for name in ["history.db", "trials"] {
            drop(fs::create_dir(root.join("trials")));
            mode(&root.join(name), 0o777);
            assert!(told(&root).contains(name), "{name}: {}", told(&root));
            mode(&root.join(name), 0o700);
        }
        assert_eq!(told(&root), "");
    }

    #[test]
    fn a_trial_that_others_can_write_is_refused_where_they_can_reach_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("state");
        let (trials, trial) = (root.join("trials"), root.join("trials/01J"));
        make_folder(&trial.join("checkpoints")).expect("made");
        let told = || check_trial(&trial).err().map(|error| error.to_string()).unwrap_or_default();
        mode(&trial, 0o777);
        assert_eq!(told(), "", "only the user may enter the state folder");
        mode(&root, 0o755);
        mode(&trials, 0o755);
        assert!(told().contains("trials/01J can be written by others (mode 0777"), "{}", told());
        mode(&trial, 0o755);
        assert_eq!(told(), "");
        mode(&trial.join("checkpoints"), 0o777);
        assert!(told().contains("01J/checkpoints can be written by others"), "{}", told());
        mode(&trial, 0o700);
        assert_eq!(told(), "", "only the user may enter the trial");
    }

    #[test]
    fn a_state_folder_of_somebody_else_is_refused() {
        if !rustix::process::geteuid().is_root() {
            dtrain_skip::skip("only root can give files away");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("state");
        make_folder(&root).expect("made");
        for name in ["", "history.db", "trials"] {
            let path = if name.is_empty() { root.clone() } else { root.join(name) };
            if name == "history.db" {
                fs::write(&path, "").expect("written");
            } else {
                make_folder(&path).expect("made");
            }
            std::os::unix::fs::chown(&path, Some(12_345), None).expect("root may");
            let words = told(&root);
            assert!(words.contains("belongs to user 12345") && words.contains("--state"), "{name}: {words}");
            std::os::unix::fs::chown(&path, Some(0), None).expect("root may");
        }
        let link = folder.path().join("link");
        symlink(&root, &link).expect("made");
        assert_eq!(told(&link), "", "the state may lie behind a link");
        std::os::unix::fs::lchown(&link, Some(12_345), None).expect("root may");
        assert!(told(&link).contains("belongs to user 12345"), "but not behind that of another");
    }

    #[test]
    fn a_link_in_the_state_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("state");
        make_folder(&root.join("trials/01J")).expect("made");
        symlink("/etc/passwd", root.join("audit.jsonl")).expect("made");
        assert!(told(&root).contains("audit.jsonl is a symbolic link to /etc/passwd"), "{}", told(&root));
        let trial = root.join("trials/01J");
        check_trial(&trial).expect("nothing is wrong");
        let shared = folder.path().join("other/trials/01J/checkpoints");
        make_folder(&shared).expect("made");
        symlink(&shared, trial.join("checkpoints")).expect("made");
        check_trial(&trial).expect("nodes share checkpoints");
        symlink(folder.path(), trial.join("spool")).expect("made");
        assert!(check_trial(&trial).is_err());
        fs::remove_file(trial.join("spool")).expect("ours");
        fs::remove_file(trial.join("checkpoints")).expect("ours");
        symlink(folder.path(), trial.join("checkpoints")).expect("made");
        assert!(check_trial(&trial).is_err());
    }

    #[test]
    fn nothing_is_written_or_read_through_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (precious, link) = (folder.path().join("precious"), folder.path().join("link"));
        fs::write(&precious, "precious").expect("written");
        symlink(&precious, &link).expect("made");
        for error in [open(&link).err(), append(&link).err(), read(&link).err()] {
            assert!(error.expect("refused").to_string().contains("symbolic link"));
        }
        drop(create(&link).expect("in place of the link"));
        assert!(!fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read_to_string(&precious).expect("there"), "precious");
        assert!(open(folder.path()).is_err(), "a folder is no file");
    }
}
