//! Preparation of data: downloads and tokenization, and their progress.

use crate::comm::WorkCounter;

/// The progress of the download of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadProgress<'a> {
    /// URL of the file, without its checksum.
    pub url: &'a str,
    /// Number of bytes downloaded so far.
    pub bytes: u64,
    /// Length of the file in bytes, if the server tells it.
    pub of: Option<u64>,
}

/// The progress of the tokenization of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenizationProgress {
    /// Number of bytes of decompressed text tokenized so far.
    pub bytes: u64,
    /// Number of documents completed so far.
    pub documents: u64,
    /// Number of tokens written so far.
    pub tokens: u64,
}

/// A step of the preparation of data, with its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreparationStep<'a> {
    /// A file is being downloaded.
    Fetching(DownloadProgress<'a>),
    /// Text is being tokenized.
    Tokenizing(TokenizationProgress),
}

/// The receivers of progress while data is downloaded and tokenized.
pub(crate) struct PreparationObserver<'a> {
    /// Work counter, which advances with each piece of a file and with each batch.
    pub(crate) progress: &'a WorkCounter,
    /// Callback, called whenever the counter advances.
    pub(crate) tell: &'a dyn Fn(PreparationStep<'_>),
}
