//! How large the mapping is that the ranks of one host share.

/// Bytes at the head of the mapping: flags, counters and beats, one page for each pair of ranks at most.
const HEADER_BYTES: u64 = 64 << 10;

/// Bytes of each rank's own area, in which it lays out what the others read.
pub const AREA_BYTES: u64 = 16 << 20;

/// Bytes of the mapping that `world` ranks share: a header, then one area of [`AREA_BYTES`] for each.
///
/// The agent makes it so long, and the ranks find the length in `Link::SharedMemory`. A page is only backed by
/// memory once it is touched, so that a short message pays for itself alone.
pub fn shared_memory_bytes(world: u32) -> u64 {
    HEADER_BYTES * u64::from(world.div_ceil(16).max(1)) + AREA_BYTES * u64::from(world)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_an_area_and_the_header_grows_with_the_world() {
        for world in 1..200 {
            let header = shared_memory_bytes(world) - AREA_BYTES * u64::from(world);
            assert!(header >= u64::from(world) * 4096, "{world} ranks share a header of {header} bytes");
        }
    }
}
