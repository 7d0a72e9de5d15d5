//! The header of a frame: the length of its payload, and the checksum that the payload is verified with.

use super::{FrameError, MAX_PAYLOAD};

/// Length of a frame's header in bytes.
pub const HEADER: usize = 8;

/// Flag in the length of a piece that another piece of the message follows.
const MORE: u32 = 1 << 31;

/// Encodes the header of `piece`; `has_more` if another piece of the message follows.
pub(super) fn header(piece: &[u8], has_more: bool) -> [u8; HEADER] {
    let length = u32::try_from(piece.len()).expect("a piece is below 2^31 bytes");
    let more = if has_more { MORE } else { 0 };
    let [a, b, c, d] = (length | more).to_le_bytes();
    let [e, f, g, h] = crc32c::crc32c(piece).to_le_bytes();
    [a, b, c, d, e, f, g, h]
}

/// Decodes the length of a piece, and a flag that is `true` if another piece follows. `before` bytes of the
/// message came earlier, and `most` is its size limit.
pub(super) fn length_prefix(
    length: [u8; 4],
    before: usize,
    most: usize,
) -> Result<(usize, bool), FrameError> {
    let word = u32::from_le_bytes(length);
    let (length, has_more) = ((word & !MORE) as usize, word & MORE != 0);
    // Only the last piece may be short, so a message has few pieces.
    let announced = before + if has_more { MAX_PAYLOAD + 1 } else { length };
    if announced > most {
        return Err(FrameError::TooLong(announced, most));
    }
    if length > MAX_PAYLOAD || (has_more && length < MAX_PAYLOAD) {
        return Err(FrameError::Corrupt);
    }
    Ok((length, has_more))
}

/// Verifies the payload of a piece against the checksum in its header. `Err` if they do not match.
pub(super) fn verify_checksum(piece: &[u8], checksum: [u8; 4]) -> Result<(), FrameError> {
    if crc32c::crc32c(piece) != u32::from_le_bytes(checksum) {
        return Err(FrameError::Corrupt);
    }
    Ok(())
}
