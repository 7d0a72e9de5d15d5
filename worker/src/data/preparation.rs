//! Preparation of data: the progress of downloads and of tokenization.

use crate::comm::WorkCounter;

/// The progress of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadProgress<'a> {
    /// URL without its checksum.
    pub url: &'a str,
    /// Bytes downloaded so far.
    pub bytes: u64,
    /// Length of the file in bytes, if the server tells it.
    pub of: Option<u64>,
}

/// The progress of tokenization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenizationProgress {
    /// Bytes of decompressed text that were tokenized.
    pub bytes: u64,
    /// Documents that were completed.
    pub documents: u64,
    /// Tokens written.
    pub tokens: u64,
}

/// A step of the preparation of data, with its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreparationStep<'a> {
    /// A file is downloaded.
    Fetching(DownloadProgress<'a>),
    /// Text is tokenized.
    Tokenizing(TokenizationProgress),
}

/// The receivers of progress during downloads and tokenization.
pub(super) struct PreparationObserver<'a> {
    /// Work counter, advanced with each piece of a file and with each batch.
    pub(super) progress: &'a WorkCounter,
    /// Callback, called as often.
    pub(super) tell: &'a dyn Fn(PreparationStep<'_>),
}
