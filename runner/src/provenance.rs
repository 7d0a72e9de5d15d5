//! What produced a trial: code, program, machine, settings. Secrets are never read.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What produced a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The repository around the recipe; `None` outside of one.
    pub git: Option<Git>,
    /// Version of dtrain and the features it was built with, such as `0.1.0 (cuda)`.
    pub program: String,
    /// Operating system, processor and the like, by name.
    pub environment: BTreeMap<String, String>,
    /// The command line.
    pub command: Vec<String>,
}

/// The state of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Git {
    /// The commit.
    pub revision: String,
    /// The branch; `None` when no branch is checked out.
    pub branch: Option<String>,
    /// What tracked files differ by from the commit, as a patch; `None` when nothing differs.
    pub patch: Option<String>,
    /// Whether the patch was cut at the limit.
    pub is_patch_cut: bool,
    /// Names of files that git does not know and does not ignore.
    pub untracked: Vec<String>,
}

impl Git {
    /// Whether tracked files differ from the commit.
    pub fn is_dirty(&self) -> bool {
        self.patch.is_some()
    }
}
