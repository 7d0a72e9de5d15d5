//! Reads and writes named slices of global tensors.
//!
//! Every rank writes one safetensors file under the `.partial` folder; whoever started the ranks merges what they
//! say they wrote into the manifest, and commits. Reading asks for slices of global tensors and does not care which
//! layout wrote them. Deciding when to save, and retention, are not done here.

mod reader;
mod write_shares;
mod writer;

#[cfg(test)]
mod tests;

pub use reader::TensorReader;
pub use write_shares::{TensorShard, write_shares};
pub use writer::{NamedPiece, save, save_file};

use std::path::PathBuf;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system said no.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `writing`.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// There is too little room; nothing was written.
    #[error(
        "{} has {available} bytes free, and this rank's part of the checkpoint needs {needed}; \
         free some, or keep fewer checkpoints (`checkpoint.keep`)",
        folder.display()
    )]
    Full {
        /// Where.
        folder: PathBuf,
        /// Bytes needed, with a reserve.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// The folder is not a committed checkpoint that this program can read.
    #[error("{} is not a usable checkpoint: {detail}", folder.display())]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// What lies in a file is not what was written.
    #[error("tensor {tensor} in {file} at byte {offset}: {detail}")]
    Corrupt {
        /// The tensor that was to be read.
        tensor: String,
        /// The file.
        file: String,
        /// Offset in the file of the chunk, or of the header, that is wrong.
        offset: u64,
        /// What is wrong.
        detail: String,
    },
    /// What was to be read was not fetched to this host.
    #[error(
        "tensor {tensor} in {file} at byte {offset}: this part was not fetched to this host, as its ranks were \
         not expected to read it; please report this"
    )]
    NotFetched {
        /// The tensor that was to be read.
        tensor: String,
        /// The file.
        file: String,
        /// Offset in the file of the chunk that is not there.
        offset: u64,
    },
    /// What was asked for is not in the checkpoint.
    #[error("the checkpoint has no {wanted}: {detail}")]
    Missing {
        /// What was asked for.
        wanted: String,
        /// What there is instead.
        detail: String,
    },
}

impl CheckpointError {
    /// Whether what is wrong has nothing to do with the checkpoint: files, rights or memory of this process that the system
    /// refuses, or a copy here that has not all.
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
