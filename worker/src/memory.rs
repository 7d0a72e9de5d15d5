//! What this process holds in memory, as the kernel or the device counts it.

use burn::tensor::Device;

/// Bytes that training needs so far: what a GPU's pool has reserved, or the largest resident memory of this process.
pub(crate) fn used_bytes(device: &Device) -> u64 {
    device.memory_pool_usage().map_or_else(peak_bytes, |usage| usage.bytes_reserved)
}

/// Largest resident memory so far, in bytes; 0 where the kernel does not tell.
fn peak_bytes() -> u64 {
    field("VmHWM:")
}

/// Resident memory now, in bytes; 0 where the kernel does not tell.
pub(crate) fn resident_bytes() -> u64 {
    field("VmRSS:")
}

fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_at_least_what_is_held_now() {
        let held = std::hint::black_box(vec![1u8; 32 << 20]);
        assert!(resident_bytes() > held.len() as u64);
        drop(std::hint::black_box(held));
        assert!(peak_bytes() >= resident_bytes());
    }
}
