//! The files of one commit of a repository: reads them from git, hashes them, writes them and reads them
//! back.

use super::SharingError;
use super::git::Git;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Maximum total size in bytes of the files of one package.
pub(super) const MOST_BYTES: u64 = 10 << 20;
/// Maximum number of files in one package.
pub(super) const MOST_FILES: usize = 1000;

/// A file in one commit of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepositoryFile {
    pub(super) is_executable: bool,
    pub(super) bytes: Vec<u8>,
}

/// The files of one commit of a repository, by path.
pub(super) type Tree = BTreeMap<String, RepositoryFile>;

/// Reads the files of a commit from a bare repository. `Err` if it has anything but plain files with plain
/// names, or exceeds the limits.
pub(super) fn of_commit(git: Git<'_>, commit: &str) -> Result<Tree, SharingError> {
    let listing = git.run(&["ls-tree", "-r", "-z", "--full-tree", "--long", commit])?;
    let entries = listing.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    let entries = entries.map(entry).collect::<Result<Vec<_>, _>>()?;
    if entries.len() > MOST_FILES {
        return Err(SharingError::Refused(format!(
            "it has {} files, at most {MOST_FILES} are taken",
            entries.len()
        )));
    }
    let total = entries.iter().map(|entry| entry.size).fold(0, u64::saturating_add);
    if total > MOST_BYTES {
        return Err(SharingError::Refused(format!(
            "its files have {total} bytes, at most {MOST_BYTES} are taken"
        )));
    }
    let question: String = entries.iter().map(|entry| format!("{}\n", entry.object)).collect();
    let mut answer = git.feed(&["cat-file", "--batch"], question.as_bytes())?;
    let mut tree = Tree::new();
    for entry in entries {
        let bytes = next_blob(&mut answer, &entry)?;
        tree.insert(entry.path, RepositoryFile { is_executable: entry.is_executable, bytes });
    }
    Ok(tree)
}

struct GitTreeEntry {
    is_executable: bool,
    object: String,
    size: u64,
    path: String,
}

/// Parses a line of `git ls-tree`: `<mode> <type> <object> <size>\t<path>`.
fn entry(line: &[u8]) -> Result<GitTreeEntry, SharingError> {
    let line = String::from_utf8_lossy(line);
    let refuse = |why: &str| Err(SharingError::Refused(why.to_owned()));
    let Some((facts, path)) = line.split_once('\t') else { return refuse("its listing cannot be read") };
    let facts: Vec<&str> = facts.split_whitespace().collect();
    let [mode, _, object, size] = facts.as_slice() else { return refuse("its listing cannot be read") };
    let is_executable = match *mode {
        "100644" => false,
        "100755" => true,
        "120000" => return refuse(&format!("{path:?} is a symbolic link")),
        "160000" => return refuse(&format!("{path:?} is a submodule")),
        // Any other mode is refused.
        mode => return refuse(&format!("{path:?} has mode {mode}")),
    };
    if !is_path(path) {
        return refuse(&format!(
            "{path:?} is not a plain path (letters, digits, `.`, `_`, `-`, at most 128 a part)"
        ));
    }
    let Ok(size) = size.parse() else { return refuse("its listing cannot be read") };
    Ok(GitTreeEntry { is_executable, object: (*object).to_owned(), size, path: path.to_owned() })
}

/// Returns `true` if every part of `path` is a plain name, so that it does not lead out of the folder or into
/// `.git`.
pub(super) fn is_path(path: &str) -> bool {
    let is_right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_part = |part: &str| {
        (1..=128).contains(&part.len())
            && part.chars().all(is_right)
            && !matches!(part, "." | "..")
            && !part.starts_with('-')
            && !part.eq_ignore_ascii_case(".git")
    };
    path.len() <= 1024 && path.split('/').all(is_part)
}

/// Removes one blob from the front of the output of `git cat-file --batch` (a header line, the contents, a
/// newline), and returns its contents.
fn next_blob(answer: &mut Vec<u8>, entry: &GitTreeEntry) -> Result<Vec<u8>, SharingError> {
    let broken = || SharingError::Refused(format!("the contents of {:?} cannot be read", entry.path));
    let size = usize::try_from(entry.size).map_err(|_| broken())?;
    let header = format!("{} blob {size}\n", entry.object);
    let end = header.len() + size;
    if !answer.starts_with(header.as_bytes()) || answer.get(end) != Some(&b'\n') {
        return Err(broken());
    }
    let rest = answer.split_off(end + 1);
    let mut blob = std::mem::replace(answer, rest);
    blob.truncate(end);
    Ok(blob.split_off(header.len()))
}

/// Returns the blake3 hash of all files: path, mode and contents, each with its length, ordered by path.
pub(super) fn hash(tree: &Tree) -> String {
    let mut hasher = blake3::Hasher::new();
    for (path, file) in tree {
        for part in [path.as_bytes(), &[u8::from(file.is_executable)], &file.bytes] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// Atomically writes the files of a commit to a new folder.
pub(super) fn write(tree: &Tree, folder: &Path) -> Result<(), SharingError> {
    let partial = folder.with_extension(format!("partial-{}", std::process::id()));
    clear(&partial)?;
    clear(folder)?;
    for (path, file) in tree {
        file.write(&partial.join(path))?;
    }
    private_folder(&partial)?;
    fs::rename(&partial, folder).map_err(SharingError::io(folder))
}

/// Writes the files of a commit that are missing or differ in a folder, which may exist already. Other files
/// in it stay.
pub(super) fn write_changed_files(tree: &Tree, folder: &Path) -> Result<(), SharingError> {
    private_folder(folder)?;
    for (path, file) in tree {
        let place = folder.join(path);
        if !file.is_at(&place) {
            let partial = folder.join(format!("{path}.partial-{}", std::process::id()));
            file.write(&partial)?;
            fs::rename(&partial, &place).map_err(SharingError::io(&place))?;
        }
    }
    Ok(())
}

impl RepositoryFile {
    /// Writes the file to the path `place`, which must not exist yet.
    fn write(&self, place: &Path) -> Result<(), SharingError> {
        if let Some(parent) = place.parent() {
            private_folder(parent)?;
        }
        let mode = if self.is_executable { 0o700 } else { 0o600 };
        let mut options = fs::OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(mode).open(place);
        let mut opened = opened.map_err(SharingError::io(place))?;
        std::io::Write::write_all(&mut opened, &self.bytes).map_err(SharingError::io(place))
    }

    /// Returns `true` if the file at `place` has the same mode and contents.
    fn is_at(&self, place: &Path) -> bool {
        let is_plain = fs::symlink_metadata(place).is_ok_and(|facts| {
            facts.is_file() && (facts.permissions().mode() & 0o100 != 0) == self.is_executable
        });
        is_plain && fs::read(place).is_ok_and(|bytes| bytes == self.bytes)
    }
}

/// Reads the files in a folder that [`write()`] has written. `Err` for anything that it would not have written.
pub(super) fn read(folder: &Path) -> Result<Tree, SharingError> {
    let mut tree = Tree::new();
    read_into(folder, "", &mut tree, &mut 0)?;
    Ok(tree)
}

fn read_into(folder: &Path, prefix: &str, tree: &mut Tree, total: &mut u64) -> Result<(), SharingError> {
    let wrong = |path: &Path, detail: &str| {
        Err(SharingError::File { path: path.to_owned(), detail: detail.to_owned() })
    };
    for entry in fs::read_dir(folder).map_err(SharingError::io(folder))? {
        let place = entry.map_err(SharingError::io(folder))?.path();
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or("");
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let facts = fs::symlink_metadata(&place).map_err(SharingError::io(&place))?;
        if !is_path(&path) {
            return wrong(&place, "not a plain path");
        } else if facts.is_dir() {
            read_into(&place, &path, tree, total)?;
        } else if facts.is_file() {
            *total = total.saturating_add(facts.len());
            if *total > MOST_BYTES || tree.len() >= MOST_FILES {
                return wrong(&place, "more or larger files than are taken from a repository");
            }
            let bytes = fs::read(&place).map_err(SharingError::io(&place))?;
            tree.insert(
                path,
                RepositoryFile { is_executable: facts.permissions().mode() & 0o100 != 0, bytes },
            );
        } else {
            return wrong(&place, "neither a file nor a folder");
        }
    }
    Ok(())
}

/// Creates a folder that only its owner can enter, and its missing parents.
pub(super) fn private_folder(folder: &Path) -> Result<(), SharingError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(SharingError::io(folder))
}

fn clear(folder: &Path) -> Result<(), SharingError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(SharingError::io(folder)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for path in ["a.toml", "deep/er/a_b-c.toml", ".gitignore", ".github/x.yml"] {
            assert!(is_path(path), "{path}");
        }
        for path in [
            "",
            "../a",
            "a/../b",
            "/a",
            "a//b",
            ".git/config",
            "a/.GIT/hooks",
            "a b",
            "-a",
            "a\\b",
            "ü",
            "a/",
        ] {
            assert!(!is_path(path), "{path}");
        }
    }

    #[test]
    fn the_hash_sees_names_modes_and_boundaries() {
        let tree = |files: &[(&str, bool, &str)]| {
            let file = |(path, is_executable, text): &(&str, bool, &str)| {
                (
                    (*path).to_owned(),
                    RepositoryFile { is_executable: *is_executable, bytes: text.as_bytes().to_vec() },
                )
            };
            hash(&files.iter().map(file).collect())
        };
        let base = tree(&[("a", false, "bc")]);
        assert_ne!(base, tree(&[("ab", false, "c")]));
        assert_ne!(base, tree(&[("a", true, "bc")]));
        assert_ne!(base, tree(&[("a", false, "b"), ("c", false, "")]));
        assert_eq!(base, tree(&[("a", false, "bc")]));
    }
}
