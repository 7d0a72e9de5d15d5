//! Overlap of training and validation data: samples that are in both.

use super::describe::batches;
use super::{Batch, DataError, DataSet, SampleSource};
use std::collections::HashSet;

impl DataSet {
    /// Returns the number of validation rows or images whose values equal those of a training sample;
    /// `None` for tokens.
    pub fn shared(&self) -> Result<Option<u64>, DataError> {
        let mut trained = HashSet::new();
        let is_of_rows = each(&*self.train, |hash| {
            trained.insert(hash);
        })?;
        let mut shared = 0;
        let is_of_rows =
            is_of_rows && each(&*self.valid, |hash| shared += u64::from(trained.contains(&hash)))?;
        Ok(is_of_rows.then_some(shared))
    }
}

/// Calls `seen` with the hash of each row of a source; returns `Ok(false)` if the source has tokens.
fn each(source: &dyn SampleSource, mut seen: impl FnMut([u8; 16])) -> Result<bool, DataError> {
    for batch in batches(source) {
        let Batch::Rows { values, width, .. } = batch? else { return Ok(false) };
        for row in values.chunks_exact(width) {
            let hash = blake3::hash(bytemuck::cast_slice(row));
            seen(hash.as_bytes()[..16].try_into().expect("16 of 32 bytes"));
        }
    }
    Ok(true)
}
