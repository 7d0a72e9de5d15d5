//! Checkpoints: writes and reads named slices of global tensors.
//!
//! Every rank writes one safetensors file under the `.partial` folder. The leader merges the reports of the
//! ranks into the manifest, and commits. Reading asks for slices of global tensors, whatever layout wrote
//! them. The save interval and retention are decided elsewhere.

mod reader;
mod write_shares;
mod writer;

#[cfg(test)]
mod tests;

pub use reader::TensorReader;
pub use write_shares::{TensorShard, write_shares};
pub use writer::{NamedPiece, save, save_file};

use std::path::PathBuf;

/// An error from writing or reading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// An operation on a file of a checkpoint failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The operation that failed, such as `writing`.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// There is too little free space for the checkpoint; nothing was written.
    #[error(
        "{} has {available} bytes free, and this rank's part of the checkpoint needs {needed}; \
         free some, or keep fewer checkpoints (`checkpoint.keep`)",
        folder.display()
    )]
    Full {
        /// Folder to which the checkpoint would have been written.
        folder: PathBuf,
        /// Number of bytes needed, with a reserve.
        needed: u64,
        /// Number of bytes that are free.
        available: u64,
    },
    /// The folder is not a committed checkpoint that this program can read.
    #[error("{} is not a usable checkpoint: {detail}", folder.display())]
    Unusable {
        /// Folder of the checkpoint.
        folder: PathBuf,
        /// Description of the reason.
        detail: String,
    },
    /// The content of a file does not match its recorded hash.
    #[error("tensor {tensor} in {file} at byte {offset}: {detail}")]
    Corrupt {
        /// Name of the tensor that was being read.
        tensor: String,
        /// Name of the file.
        file: String,
        /// Offset in the file of the damaged chunk or header, in bytes.
        offset: u64,
        /// Description of the damage.
        detail: String,
    },
    /// A chunk of the file was not fetched to this host.
    #[error(
        "tensor {tensor} in {file} at byte {offset}: this part was not fetched to this host, as its ranks were \
         not expected to read it; please report this"
    )]
    NotFetched {
        /// Name of the tensor that was being read.
        tensor: String,
        /// Name of the file.
        file: String,
        /// Offset in the file of the absent chunk, in bytes.
        offset: u64,
    },
    /// The checkpoint lacks a requested tensor.
    #[error("the checkpoint has no {wanted}: {detail}")]
    Missing {
        /// Name and shape of the requested tensor.
        wanted: String,
        /// Description of the content that the checkpoint has instead.
        detail: String,
    },
}

impl CheckpointError {
    /// Returns `true` if the checkpoint itself may be sound: this process lacks files, permissions or
    /// memory, or its local copy is incomplete.
    pub(crate) fn is_of_this_process(&self) -> bool {
        use rustix::io::Errno;
        let source = match self {
            Self::NotFetched { .. } => return true,
            Self::Io { source, .. } => source,
            Self::Full { .. } | Self::Unusable { .. } | Self::Corrupt { .. } | Self::Missing { .. } => {
                return false;
            }
        };
        let refusals = [Errno::MFILE, Errno::NFILE, Errno::ACCESS, Errno::NOMEM, Errno::STALE];
        refusals.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error()))
    }
}
