//! The head of a safetensors file: `[u64 length][JSON][data]`, little-endian.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest JSON that is read, in bytes: the limit of the format.
pub(super) const MAX_JSON: u64 = 100_000_000;

/// Where the data begins is a multiple of this, so that a reader may map it.
const ALIGNMENT: usize = 4096;

/// One entry of the head.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Always `F32`.
    pub(super) dtype: String,
    /// Shape of the entry.
    pub(super) shape: Vec<u64>,
    /// First byte and one past the last, counted from the end of the head.
    pub(super) data_offsets: (u64, u64),
}

/// The head of a file in bytes: length, JSON, and spaces up to the alignment.
pub(super) fn encode(entries: &BTreeMap<String, Entry>) -> Vec<u8> {
    let mut json = serde_json::to_vec(entries).expect("keys are strings");
    json.resize((json.len() + 8).next_multiple_of(ALIGNMENT) - 8, b' ');
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.append(&mut json);
    head
}

/// The byte range of each entry in a file of `file_bytes`, counted from the begin of the file.
///
/// `Err` says in words what is wrong: a type other than `F32`, a shape that does not match its bytes, bytes outside
/// of the file.
pub(super) fn decode(json: &[u8], file_bytes: u64) -> Result<BTreeMap<String, (u64, u64)>, String> {
    let mut values: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|error| format!("the head is not JSON: {error}"))?;
    values.remove("__metadata__");
    let data_begin = 8 + json.len() as u64;
    let mut places = BTreeMap::new();
    for (key, value) in values {
        let place =
            place(value, data_begin, file_bytes).map_err(|detail| format!("entry {key}: {detail}"))?;
        places.insert(key, place);
    }
    Ok(places)
}

fn place(value: serde_json::Value, data_begin: u64, file_bytes: u64) -> Result<(u64, u64), String> {
    let entry: Entry = serde_json::from_value(value).map_err(|error| error.to_string())?;
    if entry.dtype != "F32" {
        return Err(format!("type F32 was expected, found {}", entry.dtype));
    }
    let (begin, end) = entry.data_offsets;
    let bytes = entry.shape.iter().try_fold(4u64, |bytes, side| bytes.checked_mul(*side));
    if begin > end || bytes != Some(end - begin) {
        return Err(format!("shape {:?} does not fill bytes {begin}..{end}", entry.shape));
    }
    match data_begin.checked_add(end) {
        Some(last) if last <= file_bytes => Ok((data_begin + begin, last)),
        _ => Err(format!("bytes {begin}..{end} lie outside of the file")),
    }
}
