//! The memory that the ranks of a host share: a file without a name.

use dtrain_protocol::RankTransport;
use dtrain_protocol::shared_memory_size::shared_memory_bytes;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::io;
use std::sync::Arc;

/// Memory for `world` ranks, and the link that tells them of it. The file is closed in a child unless it is handed
/// down.
pub(crate) fn create(world: u32) -> io::Result<(Arc<OwnedFd>, RankTransport)> {
    let bytes = shared_memory_bytes(world);
    let file = rustix::fs::memfd_create("dtrain", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes)?;
    let link = RankTransport::SharedMemory { descriptor: file.as_raw_fd(), bytes };
    Ok((Arc::new(file), link))
}
