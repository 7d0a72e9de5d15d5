//! The differences between two versions of a package.

use super::tree::Tree;

/// A file that differs between two versions of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// Path of the file in the repository.
    pub path: String,
    /// Kind of difference between the two versions.
    pub kind: ChangeKind,
}

/// The kind of difference between two versions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Only the new version has the file.
    Added,
    /// Only the old version has the file.
    Removed,
    /// The contents or the mode of the file differ.
    Changed {
        /// Number of lines that only the new version has.
        added: usize,
        /// Number of lines that only the old version has.
        removed: usize,
    },
}

impl std::fmt::Display for FileChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            ChangeKind::Added => write!(f, "new      {}", self.path),
            ChangeKind::Removed => write!(f, "removed  {}", self.path),
            ChangeKind::Changed { added, removed } => {
                write!(f, "changed  {} (+{added} −{removed} lines)", self.path)
            }
        }
    }
}

pub(super) fn between(before: &Tree, after: &Tree) -> Vec<FileChange> {
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    let kind = |path: &String| match (before.get(path), after.get(path)) {
        (None, _) => Some(ChangeKind::Added),
        (_, None) => Some(ChangeKind::Removed),
        (Some(old), Some(new)) if old == new => None,
        (Some(old), Some(new)) => {
            let (added, removed) = lines(&old.bytes, &new.bytes);
            Some(ChangeKind::Changed { added, removed })
        }
    };
    paths.into_iter().filter_map(|path| Some(FileChange { path: path.clone(), kind: kind(path)? })).collect()
}

/// Returns the numbers of lines added to and removed from a file; repeated lines count as often as they
/// occur.
fn lines(old: &[u8], new: &[u8]) -> (usize, usize) {
    let count = |bytes: &[u8]| {
        let mut counts = std::collections::BTreeMap::<Vec<u8>, usize>::new();
        for line in bytes.split(|byte| *byte == b'\n') {
            *counts.entry(line.to_vec()).or_default() += 1;
        }
        counts
    };
    let (old, new) = (count(old), count(new));
    let only = |a: &std::collections::BTreeMap<Vec<u8>, usize>,
                b: &std::collections::BTreeMap<Vec<u8>, usize>| {
        a.iter().map(|(line, n)| n.saturating_sub(*b.get(line).unwrap_or(&0))).sum()
    };
    (only(&new, &old), only(&old, &new))
}
