//! Private files of one user, which are never opened through a symbolic link.

use dtrain_protocol::unix_group;
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Returns this user's folder for caches: `$XDG_CACHE_HOME/dtrain`, by default `~/.cache/dtrain`; `None`
/// without a home folder.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("dtrain"))
}

/// Opens the file at `path` with `options`, unless its name is a symbolic link; only its user can read a
/// new file.
pub(crate) fn open_as(options: &OpenOptions, path: &Path) -> io::Result<File> {
    options.clone().mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

/// Creates a private file at `path`, in place of an existing one.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    open_as(OpenOptions::new().write(true).create_new(true), path)
}

/// Opens the file at `path` in order to lock it; creates it if absent.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    open_as(OpenOptions::new().write(true).create(true).truncate(false), path)
}

/// Creates a cache folder that only its user can access, with its parents. The path of an existing one
/// may have symbolic links.
///
/// `Err` if it belongs to another user, or others can write to it: its content could not be trusted.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let (found, user) = (fs::metadata(path)?, rustix::process::geteuid().as_raw());
    let by_group = || found.mode() & 0o020 != 0 && !has_private_group(&found);
    let by_others = found.mode() & 0o002 != 0 || by_group();
    if (found.uid() == user || found.uid() == 0) && !by_others {
        return Ok(());
    }
    let words = format!(
        "it belongs to user {} and has mode {:04o}, so others can write to it; look at what is in it, then make it yours \
         (`chown`, `chmod go-w`)",
        found.uid(),
        found.mode() & 0o7777
    );
    Err(io::Error::new(ErrorKind::PermissionDenied, words))
}

/// Returns `true` if the group that owns a file has its user as the only member.
fn has_private_group(found: &fs::Metadata) -> bool {
    unix_group::is_private(found.uid(), found.gid(), |path| fs::read_to_string(path).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn nothing_is_written_through_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (precious, link) = (folder.path().join("precious"), folder.path().join("link"));
        fs::write(&precious, "precious").expect("written");
        symlink(&precious, &link).expect("made");
        assert!(lock_file(&link).is_err());
        drop(create(&link).expect("in place of the link"));
        assert_eq!(fs::read_to_string(&precious).expect("there"), "precious");
    }

    #[test]
    fn a_cache_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("cache");
        make_folder(&cache).expect("made");
        assert_eq!(fs::metadata(&cache).expect("there").mode() & 0o777, 0o700);
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).expect("ours");
        let error = make_folder(&cache).expect_err("refused").to_string();
        assert!(error.contains("mode 0777") && error.contains("chmod go-w"), "{error}");
    }
}
