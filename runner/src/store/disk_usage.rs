//! Disk space that is freed when files are removed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the bytes that are freed when all files below `paths` are removed. A file with another hard link
/// elsewhere, such as in the checkpoint that a derived trial adopted, frees nothing. Inaccessible files are
/// not counted.
pub fn freed_bytes<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> u64 {
    let mut files = BTreeMap::new();
    for path in paths {
        count(path.as_ref(), &mut files);
    }
    files.values().filter(|file| file.seen >= file.names).map(|file| file.bytes).sum()
}

/// Identity of a file: device and inode number.
struct Inode {
    bytes: u64,
    names: u64,
    seen: u64,
}

fn count(path: &Path, files: &mut BTreeMap<(u64, u64), Inode>) {
    let Ok(about) = fs::symlink_metadata(path) else { return };
    if about.is_dir() {
        fs::read_dir(path).into_iter().flatten().flatten().for_each(|entry| count(&entry.path(), files));
    } else if about.is_file() {
        let new = Inode { bytes: about.len(), names: about.nlink(), seen: 0 };
        files.entry((about.dev(), about.ino())).or_insert(new).seen += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_another_name_is_not_freed() {
        let root = tempfile::tempdir().expect("a folder");
        let (gone, stays) = (root.path().join("gone"), root.path().join("stays"));
        fs::create_dir_all(gone.join("deep")).expect("a folder");
        fs::create_dir(&stays).expect("a folder");
        fs::write(gone.join("own"), [0; 100]).expect("a file");
        fs::write(gone.join("deep/shared"), [0; 50]).expect("a file");
        fs::hard_link(gone.join("deep/shared"), stays.join("shared")).expect("a link");
        fs::hard_link(gone.join("own"), gone.join("again")).expect("a link");
        std::os::unix::fs::symlink(&stays, gone.join("link")).expect("a link");
        assert_eq!(freed_bytes([&gone]), 100);
        assert_eq!(freed_bytes([&gone, &stays]), 150);
        assert_eq!(freed_bytes([root.path().join("nothing")]), 0);
    }
}
