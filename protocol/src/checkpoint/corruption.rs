//! What is not as it was written, by the names that people know.

use super::header::ByteRanges;
use super::{FileEntry, Manifest};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Most names of tensors in a message; all of them are in the value.
const NAMED: usize = 6;

/// Bytes of a file of a checkpoint that are not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorruptRange {
    /// The file.
    pub file: String,
    /// First byte that may be wrong.
    pub begin: u64,
    /// One past the last.
    pub end: u64,
    /// The tensors with elements there.
    pub tensors: Vec<String>,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for CorruptRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, begin, tensors, detail, .. } = self;
        match tensors.as_slice() {
            [] => {}
            [one] => write!(f, "tensor {one} in ")?,
            some if some.len() <= NAMED => write!(f, "tensors {} in ", some.join(", "))?,
            many => {
                let (some, more) = many.split_at(NAMED);
                write!(f, "tensors {} and {} more in ", some.join(", "), more.len())?;
            }
        }
        write!(f, "{file} at byte {begin}: {detail}")
    }
}

impl Manifest {
    /// Bytes of a file that are wrong, with the tensors that have elements there; where nobody knows what lies where in the
    /// file, with all that have elements in it.
    pub fn damage(
        &self,
        file: &str,
        places: Option<&ByteRanges>,
        bytes: Range<u64>,
        detail: String,
    ) -> CorruptRange {
        let is_there = |key: &str| match places.and_then(|places| places.get(key)) {
            Some(place) => place.start < bytes.end && bytes.start < place.end,
            None => true,
        };
        let has_part = |tensor: &&super::Tensor| {
            tensor.pieces.iter().any(|piece| {
                piece.file == file && piece.begin < piece.end && !bytes.is_empty() && is_there(&piece.key)
            })
        };
        let tensors = self.tensors.iter().filter(has_part).map(super::Tensor::full_name).collect();
        CorruptRange { file: file.to_owned(), begin: bytes.start, end: bytes.end, tensors, detail }
    }

    /// Whether `places` can be believed as far as names go: everything that lies in `file` has its place there.
    ///
    /// `Err` tells of the first that has not.
    pub fn check_places(&self, file: &FileEntry, places: &ByteRanges) -> Result<(), CorruptRange> {
        for tensor in &self.tensors {
            for piece in tensor.pieces.iter().filter(|piece| piece.file == file.name) {
                piece.byte_range(places).map_err(|(begin, detail)| CorruptRange {
                    file: file.name.clone(),
                    begin,
                    end: file.bytes,
                    tensors: vec![tensor.full_name()],
                    detail,
                })?;
            }
        }
        Ok(())
    }

    /// What is wrong with a file of which `found` bytes are there, `None` when it is not; `None` when it has its length.
    pub fn wrong_length(
        &self,
        file: &FileEntry,
        found: Option<u64>,
        places: Option<&ByteRanges>,
    ) -> Option<CorruptRange> {
        let FileEntry { name, bytes, .. } = file;
        match found {
            Some(found) if found == *bytes => None,
            Some(found) => {
                let detail = format!("it has {found} bytes, expected {bytes}");
                let mut damage = self.damage(name, places, found.min(*bytes)..*bytes, detail);
                damage.end = found.max(*bytes);
                Some(damage)
            }
            None => Some(self.damage(name, places, 0..*bytes, "the file is missing".into())),
        }
    }
}
