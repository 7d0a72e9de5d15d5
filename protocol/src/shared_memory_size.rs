//! The size of the memory mapping that the ranks of one host share.

/// Returns the size in bytes of the memory mapping for `world` ranks, with the layout of
/// [`crate::shared_memory_layout`].
///
/// The agent creates it, and the ranks find its length in `RankTransport::SharedMemory`. A page uses memory
/// only once it is touched, so short messages need little.
pub fn shared_memory_bytes(world: u32) -> u64 {
    crate::shared_memory_layout::mapping_bytes(world)
}
