//! Detects that the files of an open history were removed or replaced.
//!
//! SQLite continues to write to a removed file, and all of it is lost when the last program closes the file.

use super::BoxError;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Suffixes of the files that SQLite keeps beside an open database.
const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// Identities of the files of an open history.
#[derive(Debug)]
pub(super) struct OpenedFiles {
    files: Vec<(PathBuf, DeviceInode)>,
    /// Length and modification time (seconds and nanoseconds) of a file that is read without locks.
    frozen: Option<(u64, i64, i64)>,
}

/// Device and inode number of a file.
type DeviceInode = (u64, u64);

/// Error that a file of the history vanished or was replaced while the history was open.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} was {what} while it was open, so that nothing can be recorded any more; put it back from a backup, or move \
     what is left of it aside to begin a new history. The folders of trials are not part of it", path.display()
)]
pub(super) struct MissingFile {
    path: PathBuf,
    what: &'static str,
}

impl OpenedFiles {
    /// Identifies the files of the history at `path`, which is open and has been read.
    pub(super) fn of(path: &Path) -> Result<Self, BoxError> {
        let mut files = vec![(path.to_path_buf(), identity(&fs::metadata(path)?))];
        let beside = BESIDE.iter().map(|ending| sidecar_path(path, ending));
        files.extend(
            beside
                .filter_map(|path| Some((identity(&fs::metadata(&path).ok()?), path)))
                .map(|(identity, path)| (path, identity)),
        );
        Ok(Self { files, frozen: None })
    }

    /// Like `of`, for a history that is read without locks and so must not change; `found` is the metadata of
    /// its file.
    pub(super) fn frozen(path: &Path, found: &Metadata) -> Self {
        let files = vec![(path.to_path_buf(), identity(found))];
        Self { files, frozen: Some(state(found)) }
    }

    /// Returns `Err` if a file of the history was removed or replaced, or changed although it must not.
    pub(super) fn check(&self) -> Result<(), BoxError> {
        for (path, known) in &self.files {
            let gone = |path: &Path, what| Err(MissingFile { path: path.to_path_buf(), what }.into());
            let found = match fs::metadata(path) {
                Ok(found) => found,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                    return match folder.filter(|folder| !folder.is_dir()) {
                        Some(folder) => gone(folder, "removed"),
                        None => gone(path, "removed"),
                    };
                }
                Err(error) => return Err(error.into()),
            };
            if identity(&found) != *known {
                return gone(path, "replaced by another file");
            }
            if is_blank_log(path, &found)? {
                return gone(path, "emptied");
            }
            if self.frozen.is_some_and(|frozen| frozen != state(&found)) {
                let path = path.display();
                return Err(format!("{path} was changed while it was read; run the command again").into());
            }
        }
        Ok(())
    }
}

/// Returns `true` if `path` is a write-ahead log without a header, which another program emptied and SQLite
/// continued to write to.
///
/// An empty file is valid: SQLite empties it once all of it is in the database.
fn is_blank_log(path: &Path, found: &Metadata) -> io::Result<bool> {
    if found.len() == 0 || !path.as_os_str().as_encoded_bytes().ends_with(b"-wal") {
        return Ok(false);
    }
    let mut head = [0; 4];
    let read = crate::files::open(path)?.read(&mut head)?;
    Ok(read > 0 && head == [0; 4])
}

/// Returns the path of the file beside the database at `path` whose name has the suffix `ending`.
pub(super) fn sidecar_path(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(ending);
    PathBuf::from(name)
}

fn identity(found: &Metadata) -> DeviceInode {
    (found.dev(), found.ino())
}

fn state(found: &Metadata) -> (u64, i64, i64) {
    (found.len(), found.mtime(), found.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::History;

    /// Returns the errors of a writer and a reader of a history after `change`; `None` if there are none.
    fn after(change: impl FnOnce(&Path)) -> Option<String> {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("state").join("history.db");
        let mut writer = History::open(&path).expect("made");
        let reader = History::open_read_only(&path).expect("opens");
        change(&path);
        let written = writer.create_study("a", &serde_json::json!({}));
        let read = reader.study("a");
        assert_eq!(written.is_err(), read.is_err(), "both notice it");
        let error = written.err()?;
        assert!(error.is_gone() && read.is_err_and(|error| error.is_gone()), "{error}");
        Some(error.source.to_string())
    }

    #[test]
    fn a_history_that_is_removed_or_replaced_while_it_is_open_is_an_error() {
        assert_eq!(after(|_| {}), None);
        let message = after(|path| fs::remove_file(path).expect("removed")).expect("noticed");
        assert!(message.contains("state/history.db was removed while it was open"), "{message}");
        let message = after(|path| fs::remove_dir_all(path.parent().expect("a folder")).expect("removed"));
        let message = message.expect("noticed");
        assert!(message.contains("/state was removed") && !message.contains("history.db was"), "{message}");
        let message = after(|path| {
            let copy = path.with_extension("copy");
            fs::copy(path, &copy).and_then(|_| fs::rename(&copy, path)).expect("replaced");
        });
        assert!(message.expect("noticed").contains("history.db was replaced by another file"));
        let message = after(|path| fs::remove_file(sidecar_path(path, "-wal")).expect("removed"));
        assert!(message.expect("noticed").contains("history.db-wal was removed"));
    }

    #[test]
    fn a_log_of_changes_that_is_emptied_while_it_is_open_is_an_error() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("history.db");
        let mut writer = History::open(&path).expect("made");
        let log = sidecar_path(&path, "-wal");
        assert!(fs::metadata(&log).expect("there").len() > 0, "the history was just made");
        fs::File::options().write(true).truncate(true).open(&log).expect("emptied");
        let written = ["a", "b"].map(|name| writer.create_study(name, &serde_json::json!({})));
        assert!(written.iter().any(Result::is_err), "what was lost is noticed");
    }
}
