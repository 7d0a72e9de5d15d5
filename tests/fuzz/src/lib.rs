//! What dtrain does with bytes that nobody vouches for, by decoder. Nothing here may panic, or take much more memory than the bytes.
//!
//! The fuzz targets call it, and so does the property test of every run, `protocol/tests/malformed.rs`.

use dtrain_protocol::bundle::{MAGIC, Reader};
use dtrain_protocol::checkpoint::{header, merge};
use dtrain_protocol::frame::{self, FrameError, HEADER};
use dtrain_protocol::{
    Assignment, EvaluateRequest, EvaluateResponse, Event, HostFacts, Manifest, Order, PredictRequest,
    PredictResponse, ProbeRequest, RankRates, SampleRequest, SampleResponse, StampedEvent,
};
use dtrain_recipes::{CheckContext, ConfigLayer, Document, check, render_all};
use std::io::Read;
use std::path::Path;

/// Frames one after the other, as a pipe, a socket or a spool has them.
pub fn frames(bytes: &[u8]) {
    let mut from = bytes;
    let mut offset = 0;
    loop {
        let is_whole = frame::is_whole(from);
        match frame::read::<StampedEvent>(&mut from) {
            Ok(_) | Err(FrameError::Json(_) | FrameError::Corrupt) => {
                assert!(matches!(is_whole, Ok(true)), "what was read was whole");
                let read = bytes.len() - from.len();
                assert!(read >= offset + HEADER, "every frame is longer than nothing");
                offset = read;
            }
            Err(FrameError::TooLong(..)) => {
                break assert!(is_whole.is_err(), "both know that it is too long");
            }
            Err(FrameError::Closed | FrameError::Torn) => {
                break assert!(!is_whole.unwrap_or(true), "a cut is no whole frame");
            }
            Err(FrameError::Io(error)) => panic!("a slice does not fail: {error}"),
        }
    }
    drop(frame::read_within::<Order>(&mut &*bytes, 16));
    drop(frame::read_within::<Order>(&mut &*bytes, frame::MAX_IN_PIECES));
    drop(frame::is_whole_within(bytes, frame::MAX_IN_PIECES));
}

/// The payload of a frame whose length and checksum are right, as each of the messages.
pub fn messages(payload: &[u8]) {
    let framed = framed(payload);
    let from = || framed.as_slice();
    drop(frame::read::<Order>(&mut from()));
    drop(frame::read::<StampedEvent>(&mut from()));
    drop(frame::read::<ProbeRequest>(&mut from()));
    drop(frame::read::<RankRates>(&mut from()));
    drop(frame::read::<HostFacts>(&mut from()));
    drop(frame::read::<SampleRequest>(&mut from()));
    drop(frame::read::<SampleResponse>(&mut from()));
    drop(frame::read::<PredictRequest>(&mut from()));
    drop(frame::read::<PredictResponse>(&mut from()));
    drop(frame::read::<EvaluateRequest>(&mut from()));
    drop(frame::read::<EvaluateResponse>(&mut from()));
    if let Ok(assignment) = frame::read::<Assignment>(&mut from()) {
        frame::encode(&assignment);
    }
    match frame::read::<Event>(&mut from()) {
        // What ranks say of a checkpoint becomes its table of contents.
        Ok(Event::Saved { files, .. }) => drop(merge(files)),
        Ok(event) => drop(frame::encode(&event)),
        Err(_) => {}
    }
}

/// The table of contents of a checkpoint, which its author vouches for.
pub fn manifest(text: &[u8]) {
    let Ok(manifest) = Manifest::parse_committed(text, blake3::hash(text).to_hex().as_bytes()) else {
        return;
    };
    for file in &manifest.files {
        (0..file.chunks.len() as u64 + 1).for_each(|index| drop((file.chunk(index), file.check(index, ""))));
    }
    for tensor in &manifest.tensors {
        let slices = tensor.slices().expect("it was committed");
        assert_eq!(slices.len(), tensor.pieces.len());
    }
}

/// A file of a checkpoint: its first eight bytes, then the table of what lies where.
pub fn head(file: &[u8]) {
    let bytes = file.len() as u64;
    let first = &file[..file.len().min(8)];
    let Ok(length) = header::length(first, bytes) else { return };
    let json = &file[8..8 + usize::try_from(length).expect("it is inside of the file")];
    for place in header::decode(json, bytes).iter().flat_map(|places| places.values()) {
        assert!(place.start <= place.end && place.end <= bytes, "{place:?} lies in {bytes} bytes");
    }
}

/// A bundle of somebody's trials, as a whole and without its first bytes.
pub fn bundle(bytes: &[u8]) {
    for begin in [&[][..], &[&MAGIC[..], &[1, 0, 0, 0]].concat()] {
        let Ok(mut reader) = Reader::new(begin.chain(bytes)) else { continue };
        while let Ok(Some(record)) = reader.read() {
            drop(record);
        }
    }
}

/// A recipe of somebody else.
pub fn recipe(text: &[u8]) {
    let checked = Document::parse_bytes(Path::new("recipe.toml"), ConfigLayer::Recipe, text.to_vec())
        .and_then(|document| check(&document, &CheckContext::of_file(Path::new("recipe.toml"))));
    if let Err(problems) = checked {
        assert!(!render_all(&problems, false).is_empty());
    }
}

/// A frame around any payload.
pub fn framed(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &crc32c(payload).to_le_bytes(), payload].concat()
}

/// The checksum of a frame, bit by bit: it is no secret, and so written here once more.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}
