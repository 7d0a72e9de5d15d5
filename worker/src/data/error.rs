//! What can be wrong with data.

use std::path::PathBuf;

/// Why data cannot be used. Messages name the file, where in it, what was expected, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A pattern matches nothing.
    #[error(
        "no file matches `{pattern}` in {}; paths start from the folder of the recipe that names them",
        root.display()
    )]
    NoFile {
        /// The pattern.
        pattern: String,
        /// The folder it starts from.
        root: PathBuf,
    },
    /// A pattern cannot be understood.
    #[error("`{pattern}` is not a pattern of file names: {detail}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong.
        detail: String,
    },
    /// A name of data begins like a URL and is none.
    #[error("a URL of the data cannot be used: {0}")]
    Url(String),
    /// A file is not downloaded.
    #[error("downloading {url}: {detail}")]
    Download {
        /// The URL, without its checksum.
        url: String,
        /// What was expected, what was found, what to do.
        detail: String,
    },
    /// The file system said no.
    #[error("reading {file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what the recipe says.
    #[error("{file}, {place}: {detail}")]
    Content {
        /// The file.
        file: String,
        /// Where in it, such as `line 3` or `byte 20`.
        place: String,
        /// What was expected, what was found, what to do.
        detail: String,
    },
    /// Data and model do not fit.
    #[error("data and model do not fit: {0}")]
    Unfit(String),
    /// There are too few samples.
    #[error("the data has {what}; {hint}")]
    TooFew {
        /// What was found and what is needed.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// The tokenizer cannot be trained, kept or used.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl DataError {
    pub(super) fn content(file: &str, place: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Content { file: file.to_owned(), place: place.into(), detail: detail.into() }
    }
}
