//! Files of the state: the user's own, and none behind a symbolic link.
//!
//! Whoever can write to the state folder could put a history there whose command is resumed, or a link to a file that is then
//! overwritten. So a state folder that is not the user's own is refused as a whole, and a file in it is only opened where its
//! name leads to a regular file. The folder itself may lie behind links.

use dtrain_protocol::unix_group;
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Refuses a state folder that is not the user's own, or that others can write, and what lies in it and is.
///
/// A folder that does not exist holds. `Err` says what is wrong with which path, and what to do.
pub fn check_state(root: &Path) -> io::Result<()> {
    let Some(found) = unless_missing(fs::metadata(root))? else { return Ok(()) };
    // A link of somebody else leads where he wants.
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
        // It may be removed in the meantime, as the history's log of changes is.
        let Some(found) = unless_missing(fs::symlink_metadata(&path))? else { continue };
        check_kind(&path, &found)?;
        check_owner(&path, &found)?;
        // What lies in a folder of a folder that nobody else may enter is out of reach, whatever its mode.
        if lets_others_in || !found.is_dir() {
            check_mode(&path, &found)?;
        }
    }
    Ok(())
}

/// Refuses the folder of a trial whose parts are links, belong to somebody else or can be written by others; one that does not
/// exist holds.
///
/// On a node of a Slurm job, `checkpoints` is a link to the folder that all nodes share; that of another trial is refused.
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

/// Whether others may enter the two folders above that of a trial: `trials`, and the state folder.
fn is_reachable_by_others(folder: &Path) -> bool {
    let mut above = folder.ancestors().skip(1).take(2);
    above.all(|path| fs::metadata(path).map_or(true, |found| found.mode() & 0o011 != 0))
}

/// Whether a link and what it leads to are both the folder of the checkpoints of one trial.
fn is_shared_checkpoint_folder(link: &Path, to: &Path) -> bool {
    let end = |path: &Path| {
        let (trial, name) = (path.parent()?.file_name()?.to_owned(), path.file_name()?.to_owned());
        (name == "checkpoints").then_some(trial)
    };
    end(link).is_some() && end(link) == end(to)
}

/// Refuses a file or folder that is a link, that belongs to somebody else, or that others can write; one that does not exist holds.
///
/// `Err` says what is wrong, and what to do.
pub fn check_own(path: &Path) -> io::Result<()> {
    let Some(found) = unless_missing(fs::symlink_metadata(path))? else { return Ok(()) };
    check_kind(path, &found)?;
    check_facts(path, &found)
}

/// As [`check_own`], for what the user may have put behind a link, such as settings.
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

/// Neither a link nor a device; a socket is no file that anything is written to.
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

/// What belongs to root is as good as the user's own: root can do everything anyway.
fn check_owner(path: &Path, found: &Metadata) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if found.uid() == user || found.uid() == 0 {
        return Ok(());
    }
    // Root may take it from its owner, who would be kept from it then.
    let or_take_it = if user == 0 { "" } else { ", or make it yours with `chown`" };
    Err(permission_error(format!(
        "{} belongs to user {} (mode {:04o}), and this is user {user}; name a folder of your own with --state FOLDER{or_take_it}",
        path.display(),
        found.uid(),
        found.mode() & 0o7777
    )))
}

/// Nobody else writes to it; members of the user's private group are nobody else.
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

/// Whether the group of a file is its user alone.
fn has_private_group(found: &Metadata) -> bool {
    unix_group::is_private(found.uid(), found.gid(), |path| fs::read_to_string(path).unwrap_or_default())
}

fn permission_error(words: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, words)
}

/// Opens a file of the state as `options` say; a new one is for its user alone.
///
/// `Err` where the name leads to a link, a folder or anything else than a regular file.
pub fn open_as(options: &OpenOptions, path: &Path) -> io::Result<File> {
    // Without NONBLOCK, a pipe in its place would be waited for.
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

/// Opens a file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    open_as(OpenOptions::new().read(true), path)
}

/// Opens a file for writing at its end; it is made where there is none.
pub fn append(path: &Path) -> io::Result<File> {
    open_as(OpenOptions::new().read(true).append(true).create(true), path)
}

/// Makes a file, in place of one that is there.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    open_as(OpenOptions::new().write(true).create_new(true), path)
}

/// Writes a file, in place of one that is there.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Copies a file, which may lie anywhere, into the state.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut create(to)?).map(drop)
}

/// All bytes of a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All text of a file.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Makes a folder, with those above it, for its user alone.
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

    /// What is said of a state folder; empty where it holds.
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
        assert_eq!(told(), "", "nobody else may enter the state folder");
        mode(&root, 0o755);
        mode(&trials, 0o755);
        assert!(told().contains("trials/01J can be written by others (mode 0777"), "{}", told());
        mode(&trial, 0o755);
        assert_eq!(told(), "");
        mode(&trial.join("checkpoints"), 0o777);
        assert!(told().contains("01J/checkpoints can be written by others"), "{}", told());
        mode(&trial, 0o700);
        assert_eq!(told(), "", "nobody else may enter the trial");
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
