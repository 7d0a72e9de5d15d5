//! What can go wrong with recipes in git.

use std::path::PathBuf;
use thiserror::Error;

/// Why something about shared recipes could not be done.
#[derive(Debug, Error)]
pub enum SharingError {
    /// The URL is not one that is fetched from.
    #[error("refused to fetch from {url:?}: {why}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The remote is not one that is pushed to.
    #[error("refused to push to {url:?}: {why}")]
    Push {
        /// The URL.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A name or a revision has characters that are not allowed, or is too long.
    #[error("{text:?} is not {wanted}")]
    Name {
        /// What was found.
        text: String,
        /// What was wanted.
        wanted: &'static str,
    },
    /// `git` could not be started.
    #[error("git could not be started; is it installed?")]
    NoGit(#[source] std::io::Error),
    /// `git` said no.
    #[error("git {verb}: {detail}")]
    Git {
        /// The command.
        verb: String,
        /// What it said.
        detail: String,
    },
    /// The repository holds something that is not taken from it.
    #[error("the repository is refused: {0}")]
    Refused(String),
    /// There is no such recipe in the lock file.
    #[error("no shared recipe is named {name:?}; known are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Another repository already has the name.
    #[error("the name {name:?} belongs to {url}; choose another with `--name`, or remove that one")]
    Taken {
        /// The name.
        name: String,
        /// The repository that has it.
        url: String,
    },
    /// What is on disk is not what the lock file says.
    #[error(
        "{name}: the files differ from the lock file ({found}, locked {locked}); `dtrain recipe update {name}` fetches them again"
    )]
    Altered {
        /// The name.
        name: String,
        /// Hash of what is there.
        found: String,
        /// Hash in the lock file.
        locked: String,
    },
    /// The recipe does more than train on its own files, and nobody said that it may.
    #[error(
        "{name} at commit {commit} {does}, and is not trusted; read it, then `dtrain recipe trust {name}`"
    )]
    Untrusted {
        /// The name in the lock file.
        name: String,
        /// The commit.
        commit: String,
        /// What it does, after its name.
        does: String,
    },
    /// A file is not as it should be.
    #[error("{}: {detail}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A file could not be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The recipe to publish names what cannot go with it; each in words.
    #[error(
        "the recipe names what cannot be published with it:\n  {}\nput files into the recipe's folder, and data at a URL",
        .0.join("\n  ")
    )]
    Incomplete(Vec<String>),
    /// The recipe to publish does not hold; the text is what a user reads.
    #[error("the recipe is invalid:\n{0}")]
    Recipe(String),
}

impl SharingError {
    /// For `map_err`: a failed operation on a file.
    pub(super) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_owned(), source }
    }
}
