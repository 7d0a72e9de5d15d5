//! Memory shared by the ranks of a host: an anonymous file.

use dtrain_protocol::RankTransport;
use dtrain_protocol::shared_memory_size::shared_memory_bytes;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::io;
use std::sync::Arc;

/// Creates shared memory for `world` ranks, and the link that describes it. A child inherits the file only if
/// it is passed on explicitly.
pub(crate) fn create(world: u32) -> io::Result<(Arc<OwnedFd>, RankTransport)> {
    let bytes = shared_memory_bytes(world);
    let file = rustix::fs::memfd_create("dtrain", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes)?;
    let link = RankTransport::SharedMemory { descriptor: file.as_raw_fd(), bytes };
    Ok((Arc::new(file), link))
}
