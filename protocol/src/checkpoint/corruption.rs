//! Corruption of checkpoint files, reported with the names of the affected tensors.

use super::header::ByteRanges;
use super::{FileEntry, Manifest};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Maximum number of tensor names in a message; a [`CorruptRange`] has all of them.
const NAMED: usize = 6;

/// A byte range of a checkpoint file that is corrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorruptRange {
    /// Name of the corrupt file.
    pub file: String,
    /// Offset of the first byte that may be wrong.
    pub begin: u64,
    /// Offset one past the last byte that may be wrong.
    pub end: u64,
    /// Names of the tensors that have elements in the range.
    pub tensors: Vec<String>,
    /// The kind of damage, in words.
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
    /// Returns a corrupt byte range of a file with the tensors that have elements in it; without `places`,
    /// with all tensors in the file.
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

    /// Checks that `places` has a byte range for every piece that the manifest stores in `file`.
    ///
    /// `Err` describes the first piece without one.
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

    /// Returns the corruption of a file whose length is not that in the manifest; `None` if it is. `found` is
    /// the actual length, `None` if the file is missing.
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
