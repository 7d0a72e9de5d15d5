//! Errors from reading and preparing data.

use std::path::PathBuf;

/// The reason why data cannot be used. Its message names the file, the place in it, the expected content,
/// and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// No file matches a pattern.
    #[error(
        "no file matches `{pattern}` in {}; paths start from the folder of the recipe that names them",
        root.display()
    )]
    NoFile {
        /// The pattern, as the recipe has it.
        pattern: String,
        /// The folder that the pattern starts from.
        root: PathBuf,
    },
    /// A pattern is invalid.
    #[error("`{pattern}` is not a pattern of file names: {detail}")]
    Pattern {
        /// The pattern, as the recipe has it.
        pattern: String,
        /// Description of the mistake in the pattern.
        detail: String,
    },
    /// A data name begins like a URL but is not a valid one.
    #[error("a URL of the data cannot be used: {0}")]
    Url(String),
    /// Downloading the file of a URL failed, or was not done.
    #[error("downloading {url}: {detail}")]
    Download {
        /// URL of the file, without its checksum.
        url: String,
        /// Description of the problem, with a remedy.
        detail: String,
    },
    /// An operation on a data file failed.
    #[error("reading {file}: {source}")]
    Io {
        /// Name of the file.
        file: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The content of a file is not as expected.
    #[error("{file}, {place}: {detail}")]
    Content {
        /// Name of the file.
        file: String,
        /// Place in the file, such as `line 3` or `byte 20`.
        place: String,
        /// The expected content and the content found, with a remedy.
        detail: String,
    },
    /// The data and the model do not match; the text says in which way.
    #[error("data and model do not fit: {0}")]
    Unfit(String),
    /// There are too few samples for training or validation.
    #[error("the data has {what}; {hint}")]
    TooFew {
        /// Number of samples found, and the number that is needed.
        what: String,
        /// Remedy for the lack of samples.
        hint: &'static str,
    },
    /// The tokenizer cannot be trained, cached or used, for the reason in the text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl DataError {
    pub(super) fn content(file: &str, place: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Content { file: file.to_owned(), place: place.into(), detail: detail.into() }
    }
}
