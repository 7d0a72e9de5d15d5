//! Comparison of the code that trials ran with.

use crate::provenance::Provenance;
use serde::Serialize;

/// Code versions of all compared trials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CodeVersions {
    /// Code version of each trial; `None` for one outside a git repository.
    pub revisions: Vec<Option<Revision>>,
    /// True if all trials ran with the same commit.
    pub is_same_commit: bool,
    /// True if all trials ran with the same commit and equal patches.
    pub is_same: bool,
}

/// Code version of one trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Revision {
    /// Hash of the git commit.
    pub commit: String,
    /// Branch that was checked out; `None` if none was.
    pub branch: Option<String>,
    /// Uncommitted changes, as a patch.
    pub patch: Option<String>,
    /// Number of files that the patch touches.
    pub files: u32,
    /// Number of lines that the patch adds.
    pub added: u32,
    /// Number of lines that the patch removes.
    pub removed: u32,
}

pub(super) fn code<'a>(made: impl Iterator<Item = &'a Provenance>) -> CodeVersions {
    let revisions: Vec<_> = made.map(revision).collect();
    let agree = |same: &dyn Fn(&Revision, &Revision) -> bool| {
        revisions.windows(2).all(|pair| match (&pair[0], &pair[1]) {
            (Some(a), Some(b)) => same(a, b),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        })
    };
    let is_same_commit = agree(&|a, b| a.commit == b.commit);
    let is_same = agree(&|a, b| a.commit == b.commit && a.patch == b.patch);
    CodeVersions { is_same_commit, is_same, revisions }
}

fn revision(made: &Provenance) -> Option<Revision> {
    let git = made.git.as_ref()?;
    let lines = || git.patch.iter().flat_map(|patch| patch.lines());
    let count = |begin: &str, not: &str| {
        let found = lines().filter(|line| line.starts_with(begin) && !line.starts_with(not)).count();
        u32::try_from(found).unwrap_or(u32::MAX)
    };
    Some(Revision {
        commit: git.revision.clone(),
        branch: git.branch.clone(),
        files: count("diff --git ", "\n"),
        added: count("+", "+++ "),
        removed: count("-", "--- "),
        patch: git.patch.clone(),
    })
}
