//! The header of a safetensors file: `[u64 length][JSON][data]`, little-endian.

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Length limit of the JSON in a header, in bytes, as the safetensors format has it.
const MAX_JSON: u64 = 100_000_000;

/// Alignment in bytes of the start of the data, so that a reader may map it.
const ALIGNMENT: usize = 4096;

/// The byte range of each entry of a safetensors file, by key, counted from the start of the file.
pub type ByteRanges = BTreeMap<String, Range<u64>>;

/// An entry of a safetensors header, which describes one tensor.
#[derive(Debug, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Element type of the tensor, always `F32`.
    pub dtype: String,
    /// Shape of the tensor.
    pub shape: Vec<u64>,
    /// Offsets of the tensor's first byte and of one past its last byte, counted from the end of the header.
    pub data_offsets: (u64, u64),
}

/// Encodes the header of a safetensors file: length, JSON, and spaces up to the alignment.
pub fn encode(entries: &BTreeMap<String, TensorInfo>) -> Vec<u8> {
    let mut json = serde_json::to_vec(entries).expect("keys are strings");
    json.resize((json.len() + 8).next_multiple_of(ALIGNMENT) - 8, b' ');
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.append(&mut json);
    head
}

/// Returns the length of the JSON in the header of a file of `file_bytes` bytes that begins with `first`.
///
/// `Err` is the reason in words if it is invalid.
pub fn length(first: &[u8], file_bytes: u64) -> Result<u64, String> {
    let Some(word) = first.first_chunk::<8>().filter(|_| file_bytes >= 8) else {
        return Err(format!("a file of {file_bytes} bytes has no head"));
    };
    let length = u64::from_le_bytes(*word);
    if length > MAX_JSON || length > file_bytes - 8 {
        return Err(format!("a head of {length} bytes does not fit into {file_bytes} bytes"));
    }
    Ok(length)
}

/// Parses the JSON header of a file of `file_bytes` bytes into the byte range of each entry.
///
/// `Err` is the reason in words: a type other than `F32`, a shape that does not match its bytes, or bytes
/// outside of the file.
pub fn decode(json: &[u8], file_bytes: u64) -> Result<ByteRanges, String> {
    let HeaderEntries(entries) =
        serde_json::from_slice(json).map_err(|error| format!("the head is not JSON of a head: {error}"))?;
    let data_begin = 8 + json.len() as u64;
    let mut places = ByteRanges::new();
    for (key, entry) in entries {
        let place =
            entry_range(&entry, data_begin, file_bytes).map_err(|detail| format!("entry {key}: {detail}"))?;
        places.insert(key, place);
    }
    Ok(places)
}

/// The entries of a header, without the file's metadata. They are deserialized directly, since a generic JSON
/// value would take sixteen times the memory of its text.
struct HeaderEntries(BTreeMap<String, TensorInfo>);

impl<'de> Deserialize<'de> for HeaderEntries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = HeaderEntries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of entries")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderEntries, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.insert(key, map.next_value()?);
                    }
                }
                Ok(HeaderEntries(entries))
            }
        }
        from.deserialize_map(HeaderVisitor)
    }
}

fn entry_range(entry: &TensorInfo, data_begin: u64, file_bytes: u64) -> Result<Range<u64>, String> {
    if entry.dtype != "F32" {
        return Err(format!("type F32 was expected, found {}", entry.dtype));
    }
    let (begin, end) = entry.data_offsets;
    let bytes = entry.shape.iter().try_fold(4u64, |bytes, side| bytes.checked_mul(*side));
    if begin > end || bytes != Some(end - begin) {
        return Err(format!("shape {:?} does not fill bytes {begin}..{end}", entry.shape));
    }
    match data_begin.checked_add(end) {
        Some(last) if last <= file_bytes => Ok(data_begin + begin..last),
        _ => Err(format!("bytes {begin}..{end} lie outside of the file")),
    }
}
