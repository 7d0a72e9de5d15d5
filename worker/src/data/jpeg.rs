//! JPEG completeness: a check for missing parts, which decoders silently fill with gray.

/// Codes of markers that have no length: the restart markers, and `TEM`, which has no meaning.
const BARE: [u8; 9] = [0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0x01];
const BEGIN: u8 = 0xd8;
const END: u8 = 0xd9;
const SCAN: u8 = 0xda;

/// Returns `true` if the JPEG at the beginning of `bytes` has its end marker. More data may follow, such as
/// the video in a phone's file.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    let mut at = 0;
    while let Some(marker) = next_marker(bytes, &mut at) {
        match marker {
            END => return true,
            BEGIN => {}
            marker if BARE.contains(&marker) => {}
            marker => {
                let Some(&[high, low]) = bytes.get(at..at + 2) else { return false };
                at += usize::from(u16::from_be_bytes([high, low]));
                if marker == SCAN {
                    skip_scan(bytes, &mut at);
                }
            }
        }
    }
    false
}

/// Returns the marker at `at`, after any fill bytes, and moves `at` past it; `None` if there is no
/// marker.
fn next_marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    let begin = *at + bytes.get(*at..)?.iter().position(|byte| *byte == 0xff)?;
    let marker = begin + bytes[begin..].iter().position(|byte| *byte != 0xff)?;
    *at = marker + 1;
    Some(bytes[marker])
}

/// Moves `at` past the data of a scan, to the next marker. In the data, a zero follows each byte 255 that
/// does not begin a marker.
fn skip_scan(bytes: &[u8], at: &mut usize) {
    while let Some(found) = bytes.get(*at..).and_then(|rest| rest.iter().position(|byte| *byte == 0xff)) {
        *at += found;
        match bytes.get(*at + 1) {
            Some(0 | 0xd0..=0xd7) => *at += 2,
            Some(_) => return,
            None => break,
        }
    }
    *at = bytes.len();
}
