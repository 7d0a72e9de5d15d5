//! Memory use of this process, as the kernel or the device counts it.

use burn::tensor::Device;

/// Returns the bytes that training has needed so far: those reserved by a GPU's pool, or the peak resident
/// memory of this process.
pub(crate) fn used_bytes(device: &Device) -> u64 {
    device.memory_pool_usage().map_or_else(peak_bytes, |usage| usage.bytes_reserved)
}

/// Returns the peak resident memory in bytes; 0 if the kernel does not report it.
fn peak_bytes() -> u64 {
    field("VmHWM:")
}

/// Returns the current resident memory in bytes; 0 if the kernel does not report it.
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
