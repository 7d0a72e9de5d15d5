//! Frames: messages on a pipe, a socket or in a spool file, with length, checksum and JSON.
//!
//! `[u32 length][u32 crc32c of the payload][payload]`, little-endian. A reader checks the length before it
//! allocates, and the checksum before it parses. A payload over [`MAX_PAYLOAD`] is sent in pieces, each of
//! them a frame; the highest bit of the length announces another piece. Readers of unauthenticated peers
//! refuse pieces. A torn tail (the writer was killed within a record) differs from a corrupt record:
//! [`FrameError::Torn`] means "wait for more, or truncate here".

mod codec;
mod length_and_checksum;

pub use codec::{encode, is_whole, is_whole_within, read, read_within, write};
pub use length_and_checksum::HEADER;

use std::io;

/// Maximum payload in bytes of one piece, and of a message for [`read`].
pub const MAX_PAYLOAD: usize = 16 << 20;

/// Maximum payload in bytes of a message in pieces, for readers that trust the writer: the assignments of
/// very many ranks, a step of very many micro-batches, the manifest of a very large checkpoint.
pub const MAX_IN_PIECES: usize = 1 << 30;

/// An error in reading a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream ended between two frames.
    #[error("the other end closed the stream")]
    Closed,
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Torn,
    /// The message is longer than allowed: its announced length, and the limit, in bytes.
    #[error("a message of at least {0} bytes was announced; at most {1} are allowed")]
    TooLong(usize, usize),
    /// The checksum in the header does not match the payload.
    #[error("the checksum of a frame does not match")]
    Corrupt,
    /// The payload is not the expected message.
    #[error("a frame could not be decoded")]
    Json(#[from] serde_json::Error),
    /// Reading from the stream failed.
    #[error("the stream failed")]
    Io(#[from] io::Error),
}
