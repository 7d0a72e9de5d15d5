//! The recipe's folder on its way to the hosts of a training, and on them.
//!
//! `list` finds the files to send, `snapshot` reads them: their names, modes and BLAKE3 hashes are the manifest,
//! whose hash is the digest of the folder. Times and owners are not part of it. `store` keeps the folders that a
//! host received, each under its digest, so that an unchanged folder is sent once. Every use verifies the files.

mod list;
mod manifest;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;

pub use list::{WorkdirError, WorkdirFile, WorkdirFiles};
pub use snapshot::WorkdirSnapshot;
pub(crate) use store::{WorkdirStore, hold};

/// Name of the digest of the recipe's folder in the provenance of a trial that sent it to hosts.
pub const PROVENANCE: &str = "workdir";

/// Returns `true` if `text` is the digest of a folder.
pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
