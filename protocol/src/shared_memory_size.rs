//! How large the mapping is that the ranks of one host share.

/// Bytes of the mapping that `world` ranks share, laid out as [`crate::shared_memory_layout`] tells.
///
/// The agent makes it so long, and the ranks find the length in `Link::SharedMemory`. A page is only backed by
/// memory once it is touched, so that a short message pays for itself alone.
pub fn shared_memory_bytes(world: u32) -> u64 {
    crate::shared_memory_layout::mapping_bytes(world)
}
