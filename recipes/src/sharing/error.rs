//! Errors from sharing recipes through git.

use std::path::PathBuf;
use thiserror::Error;

/// An error in adding, updating, reading or publishing shared recipes.
#[derive(Debug, Error)]
pub enum SharingError {
    /// A URL that is not allowed for fetching.
    #[error("refused to fetch from {url:?}: {why}")]
    Url {
        /// The rejected URL, with secrets redacted.
        url: String,
        /// Reason why the URL is not allowed.
        why: &'static str,
    },
    /// A URL that is not allowed for pushing.
    #[error("refused to push to {url:?}: {why}")]
    Push {
        /// The rejected URL, with secrets redacted.
        url: String,
        /// Reason why the URL is not allowed.
        why: &'static str,
    },
    /// A name or a revision that is too long or has characters that are not allowed.
    #[error("{text:?} is not {wanted}")]
    Name {
        /// The rejected name or revision.
        text: String,
        /// Description of the expected form of the name or revision.
        wanted: &'static str,
    },
    /// `git` could not be started.
    #[error("git could not be started; is it installed?")]
    NoGit(#[source] std::io::Error),
    /// A `git` command ended with an error.
    #[error("git {verb}: {detail}")]
    Git {
        /// Subcommand of git, such as `fetch`.
        verb: String,
        /// Error output of git.
        detail: String,
    },
    /// The repository has contents that dtrain does not accept.
    #[error("the repository is refused: {0}")]
    Refused(String),
    /// The lock file has no package with this name.
    #[error("no shared recipe is named {name:?}; known are: {known}")]
    Unknown {
        /// Requested name of a package.
        name: String,
        /// Names of the packages in the lock file, joined.
        known: String,
    },
    /// Another repository already uses the name.
    #[error("the name {name:?} belongs to {url}; choose another with `--name`, or remove that one")]
    Taken {
        /// The name that is in use.
        name: String,
        /// URL of the repository that uses it.
        url: String,
    },
    /// The files on disk do not match the lock file.
    #[error(
        "{name}: the files differ from the lock file ({found}, locked {locked}); `dtrain recipe update {name}` fetches them again"
    )]
    Altered {
        /// Name of the package.
        name: String,
        /// Hash of the package's files on disk.
        found: String,
        /// Hash of the package's files according to the lock file.
        locked: String,
    },
    /// A recipe that does more than train on its own files, without the user's trust.
    #[error(
        "{name} at commit {commit} {does}, and is not trusted; read it, then `dtrain recipe trust {name}`"
    )]
    Untrusted {
        /// Name of the package in the lock file.
        name: String,
        /// Commit to which the package is locked.
        commit: String,
        /// The actions that need trust, phrased to follow the name.
        does: String,
    },
    /// A file with wrong contents, type or place.
    #[error("{}: {detail}", path.display())]
    File {
        /// Path of the affected file.
        path: PathBuf,
        /// Reason why the file is not accepted.
        detail: String,
    },
    /// An I/O error on a file.
    #[error("{}", path.display())]
    Io {
        /// Path of the affected file.
        path: PathBuf,
        /// The I/O error that caused it.
        source: std::io::Error,
    },
    /// The recipe names files that cannot be published with it; each entry describes one in words.
    #[error(
        "the recipe names what cannot be published with it:\n  {}\nput files into the recipe's folder, and data at a URL",
        .0.join("\n  ")
    )]
    Incomplete(Vec<String>),
    /// The recipe to publish is invalid; the text lists its problems.
    #[error("the recipe is invalid:\n{0}")]
    Recipe(String),
}

impl SharingError {
    /// Returns a function that converts an I/O error on the file at `path`, for `map_err`.
    pub(super) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_owned(), source }
    }
}
