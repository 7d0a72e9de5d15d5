//! Messages on a pipe, a socket or in a spool file: length, checksum, JSON.
//!
//! `[u32 length][u32 crc32c of the payload][payload]`, little-endian. A reader checks the length before it
//! allocates, and the checksum before it parses. A torn tail (a writer killed inside a record) is told apart from
//! a corrupt record: [`FrameError::Torn`] means "wait for more, or cut here".

use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Largest payload in bytes.
pub const MAX_PAYLOAD: usize = 16 << 20;

/// Bytes of a payload that there is room for before any of it came.
const FIRST_ROOM: usize = 64 << 10;

/// Length of the header in bytes.
pub const HEADER: usize = 8;

/// Why a frame cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream ended cleanly between two frames.
    #[error("the other end closed the stream")]
    Closed,
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Torn,
    /// The length is over the limit.
    #[error("a frame of {0} bytes was announced; at most {1} are allowed")]
    TooLong(usize, usize),
    /// The checksum does not match.
    #[error("the checksum of a frame does not match")]
    Corrupt,
    /// The payload is not the expected message.
    #[error("a frame could not be decoded")]
    Json(#[from] serde_json::Error),
    /// The stream failed.
    #[error("the stream failed")]
    Io(#[from] io::Error),
}

/// The bytes of one frame. Panics when the message is over [`MAX_PAYLOAD`]: our own messages never are.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let payload = serde_json::to_vec(message).expect("messages have string keys only");
    assert!(payload.len() <= MAX_PAYLOAD, "a message of {} bytes is over the frame limit", payload.len());
    let length = u32::try_from(payload.len()).expect("the limit is below 2^32");
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend(length.to_le_bytes());
    frame.extend(crc32c::crc32c(&payload).to_le_bytes());
    frame.extend(payload);
    frame
}

/// Writes one frame and flushes.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&encode(message))?;
    to.flush()
}

/// Reads one frame; blocks until it is whole.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, FrameError> {
    read_short(from, MAX_PAYLOAD)
}

/// The same where no payload is over `most` bytes, which is at most [`MAX_PAYLOAD`].
pub fn read_short<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> Result<T, FrameError> {
    let mut header = [0; HEADER];
    match fill(from, &mut header)? {
        0 => return Err(FrameError::Closed),
        HEADER => {}
        _ => return Err(FrameError::Torn),
    }
    let [a, b, c, d, crc @ ..] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > most {
        return Err(FrameError::TooLong(length, most));
    }
    // Room grows with what comes, not with what is announced.
    let mut payload = Vec::with_capacity(length.min(FIRST_ROOM));
    from.take(length as u64).read_to_end(&mut payload)?;
    if payload.len() < length {
        return Err(FrameError::Torn);
    }
    if crc32c::crc32c(&payload) != u32::from_le_bytes(crc) {
        return Err(FrameError::Corrupt);
    }
    Ok(serde_json::from_slice(&payload)?)
}

/// Whether `bytes` begin with a whole frame. `Err` when they begin with one that is too long.
pub fn is_whole(bytes: &[u8]) -> Result<bool, FrameError> {
    let Some([a, b, c, d, ..]) = bytes.get(..HEADER) else { return Ok(false) };
    let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
    if length > MAX_PAYLOAD {
        Err(FrameError::TooLong(length, MAX_PAYLOAD))
    } else {
        Ok(bytes.len() - HEADER >= length)
    }
}

/// Reads until `buffer`, that of a header, is full or the stream ends; returns how much came.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match from.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            drop(read::<String>(&mut bytes.as_slice()));
        }
    }

    #[test]
    fn frames_come_back_whole_and_a_cut_is_told_from_an_end() {
        let mut stream = encode(&"one");
        stream.extend(encode(&"two"));
        let mut from = stream.as_slice();
        assert_eq!(read::<String>(&mut from).expect("whole"), "one");
        assert_eq!(read::<String>(&mut from).expect("whole"), "two");
        assert!(matches!(read::<String>(&mut from), Err(FrameError::Closed)));
        assert!(matches!(read::<String>(&mut &stream[..stream.len() - 1][13..]), Err(FrameError::Torn)));
        assert_eq!(
            [0, 7, 12, 13, 20].map(|length| is_whole(&stream[..length]).expect("short")),
            [false, false, false, true, true]
        );
        let last = stream.len() - 1;
        stream[last] ^= 1;
        assert!(matches!(read::<String>(&mut &stream[13..]), Err(FrameError::Corrupt)));
        assert!(matches!(read::<String>(&mut [255u8; 8].as_slice()), Err(FrameError::TooLong(..))));
        let short = read_short::<String>(&mut stream.as_slice(), 4);
        assert!(matches!(short, Err(FrameError::TooLong(5, 4))), "{short:?}");
    }
}
