//! The layout of the memory mapping that the ranks of one host share.
//!
//! The agent that creates the mapping and the ranks that use it share these functions. A new mapping is all
//! zeros, which is the valid first state, so it needs no initialization.
//!
//! ```text
//! control blocks   one for each channel and rank     counters of the collectives
//! mail controls    one for each ordered pair         counters of the exchanges
//! slots            two for each channel and rank     what a rank shows to all others
//! mails            two for each ordered pair         what a rank sends to one other
//! ```

use crate::Channel;

/// Number of channels, each with its own set of slots, so that collectives of different channels may run at
/// the same time.
pub const CHANNELS: u64 = Channel::ALL.len() as u64;

/// Size of one slot in `f32` values.
pub const SLOT_VALUES: usize = 128 << 10;

/// Size of one mail in `f32` values.
pub const MAIL_VALUES: usize = 64 << 10;

/// Size in bytes of the control block of a rank in a channel; counters of different ranks never share a cache
/// line.
const CONTROL_BYTES: u64 = 512;

/// Size in bytes of the control block of the mails from one rank to another.
const MAIL_CONTROL_BYTES: u64 = 256;

/// Size of a page in bytes; slots are page-aligned.
const PAGE: u64 = 4096;

/// Returns the length in bytes of the mapping for `ranks` ranks. Untouched pages use no memory.
pub fn mapping_bytes(ranks: u32) -> u64 {
    mail_offset(ranks, ranks - 1, ranks - 1, 1) + 4 * MAIL_VALUES as u64
}

/// Returns the byte offset of the control block of `rank` in `channel`.
pub fn control_offset(ranks: u32, channel: u64, rank: u32) -> u64 {
    (channel * u64::from(ranks) + u64::from(rank)) * CONTROL_BYTES
}

/// Returns the byte offset of the control block of the mails that rank `from` sends to rank `to`.
pub fn mail_control_offset(ranks: u32, from: u32, to: u32) -> u64 {
    control_offset(ranks, CHANNELS, 0) + pair(ranks, from, to) * MAIL_CONTROL_BYTES
}

/// Returns the byte offset of slot `which` (0 or 1) of `rank` in `channel`.
pub fn slot_offset(ranks: u32, channel: u64, rank: u32, which: u64) -> u64 {
    let begin = mail_control_offset(ranks, ranks, 0).next_multiple_of(PAGE);
    begin + ((channel * u64::from(ranks) + u64::from(rank)) * 2 + which) * 4 * SLOT_VALUES as u64
}

/// Returns the byte offset of mail `which` (0 or 1) that rank `from` sends to rank `to`.
pub fn mail_offset(ranks: u32, from: u32, to: u32, which: u64) -> u64 {
    slot_offset(ranks, CHANNELS, 0, 0) + (pair(ranks, from, to) * 2 + which) * 4 * MAIL_VALUES as u64
}

fn pair(ranks: u32, from: u32, to: u32) -> u64 {
    u64::from(from) * u64::from(ranks) + u64::from(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_all_lies_inside() {
        for ranks in 1..5 {
            let mut areas = Vec::new();
            for rank in 0..ranks {
                for channel in 0..CHANNELS {
                    areas.push((control_offset(ranks, channel, rank), CONTROL_BYTES));
                    areas.extend(
                        (0..2).map(|w| (slot_offset(ranks, channel, rank, w), 4 * SLOT_VALUES as u64)),
                    );
                }
                for to in 0..ranks {
                    areas.push((mail_control_offset(ranks, rank, to), MAIL_CONTROL_BYTES));
                    areas.extend((0..2).map(|w| (mail_offset(ranks, rank, to, w), 4 * MAIL_VALUES as u64)));
                }
            }
            areas.sort_unstable();
            assert!(areas.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "areas overlap");
            let (begin, length) = areas[areas.len() - 1];
            assert_eq!(begin + length, mapping_bytes(ranks));
        }
    }
}
