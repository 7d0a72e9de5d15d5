//! The codec of frames: messages are serialized as JSON into frames, and parsed from them.

use super::length_and_checksum::{HEADER, header, length_prefix, verify_checksum};
use super::{FrameError, MAX_PAYLOAD};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Maximum number of bytes allocated for a payload before any of it has arrived.
const FIRST_ROOM: usize = 64 << 10;

/// Encodes one message as one or several frames. The reader limits its length.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let payload = serde_json::to_vec(message).expect("messages have string keys only");
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    let (mut piece, mut rest) = payload.split_at(payload.len().min(MAX_PAYLOAD));
    loop {
        frame.extend(header(piece, !rest.is_empty()));
        frame.extend(piece);
        if rest.is_empty() {
            return frame;
        }
        (piece, rest) = rest.split_at(rest.len().min(MAX_PAYLOAD));
    }
}

/// Writes one message to a stream and flushes it.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&encode(message))?;
    to.flush()
}

/// Reads one message of at most [`MAX_PAYLOAD`] bytes from a stream; blocks until it is whole.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, FrameError> {
    read_within(from, MAX_PAYLOAD)
}

/// Reads one message of at most `most` bytes, such as [`super::MAX_IN_PIECES`], from a stream; blocks until
/// it is whole.
pub fn read_within<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> Result<T, FrameError> {
    let mut payload = Vec::new();
    loop {
        let mut header = [0; HEADER];
        match fill(from, &mut header)? {
            0 if payload.is_empty() => return Err(FrameError::Closed),
            HEADER => {}
            _ => return Err(FrameError::Torn),
        }
        let [a, b, c, d, crc @ ..] = header;
        let (begin, (length, has_more)) = (payload.len(), length_prefix([a, b, c, d], payload.len(), most)?);
        // The buffer grows with the data received, not with the announced length.
        payload.reserve(length.min(FIRST_ROOM));
        from.take(length as u64).read_to_end(&mut payload)?;
        if payload.len() < begin + length {
            return Err(FrameError::Torn);
        }
        verify_checksum(&payload[begin..], crc)?;
        if !has_more {
            return Ok(serde_json::from_slice(&payload)?);
        }
    }
}

/// Returns `true` if `bytes` begins with a complete message. `Err` if the message has more than
/// [`MAX_PAYLOAD`] bytes.
pub fn is_whole(bytes: &[u8]) -> Result<bool, FrameError> {
    is_whole_within(bytes, MAX_PAYLOAD)
}

/// Returns `true` if `bytes` begins with a complete message. `Err` if the message has more than `most` bytes.
pub fn is_whole_within(bytes: &[u8], most: usize) -> Result<bool, FrameError> {
    let (mut rest, mut before) = (bytes, 0);
    loop {
        let Some([a, b, c, d, ..]) = rest.get(..HEADER) else { return Ok(false) };
        let (length, has_more) = length_prefix([*a, *b, *c, *d], before, most)?;
        let Some(after) = rest.get(HEADER + length..) else { return Ok(false) };
        if !has_more {
            return Ok(true);
        }
        (rest, before) = (after, before + length);
    }
}

/// Reads from a stream until `buffer` is full or the stream ends; returns the number of bytes read.
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
    use crate::frame::MAX_IN_PIECES;
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
        let short = read_within::<String>(&mut stream.as_slice(), 4);
        assert!(matches!(short, Err(FrameError::TooLong(5, 4))), "{short:?}");
    }

    #[test]
    fn a_message_that_is_too_long_for_one_piece_travels_in_several() {
        let message = "dtrain".repeat(6 << 20);
        let mut stream = encode(&message);
        assert_eq!(stream.len(), message.len() + 2 + 3 * HEADER);
        stream.extend(encode(&"next"));
        let mut from = stream.as_slice();
        assert_eq!(read_within::<String>(&mut from, MAX_IN_PIECES).expect("whole"), message);
        assert_eq!(read::<String>(&mut from).expect("whole"), "next");
        // A reader that takes no pieces fails on the first.
        let refused = read::<String>(&mut stream.as_slice());
        assert!(matches!(refused, Err(FrameError::TooLong(16_777_217, MAX_PAYLOAD))), "{refused:?}");
        assert!(is_whole(&stream[..HEADER]).is_err());
        let refused = read_within::<String>(&mut stream.as_slice(), 33 << 20);
        assert!(matches!(refused, Err(FrameError::TooLong(..))), "{refused:?}");
        let end = stream.len() - from.len() - encode(&"next").len();
        let second = HEADER + MAX_PAYLOAD;
        for cut in [second - 1, second, second + 3, second + HEADER, end - 1] {
            let torn = read_within::<String>(&mut &stream[..cut], MAX_IN_PIECES);
            assert!(matches!(torn, Err(FrameError::Torn)), "{cut}: {torn:?}");
            assert!(!is_whole_within(&stream[..cut], MAX_IN_PIECES).expect("it is a piece"), "{cut}");
        }
        assert!(is_whole_within(&stream[..end], MAX_IN_PIECES).expect("all of it"));
        stream[second + HEADER] ^= 1;
        let altered = read_within::<String>(&mut stream.as_slice(), MAX_IN_PIECES);
        assert!(matches!(altered, Err(FrameError::Corrupt)), "{altered:?}");
    }

    #[test]
    fn a_piece_is_whole_unless_it_is_the_last() {
        let mut stream = encode(&"one");
        stream[3] |= 0x80;
        stream.extend(encode(&"two"));
        assert!(matches!(
            read_within::<String>(&mut stream.as_slice(), MAX_IN_PIECES),
            Err(FrameError::Corrupt)
        ));
        assert!(matches!(is_whole_within(&stream, MAX_IN_PIECES), Err(FrameError::Corrupt)));
    }
}
