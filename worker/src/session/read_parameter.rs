//! Reads this rank's region of a parameter from a checkpoint of any layout.

use crate::checkpoint::{CheckpointError, TensorReader};
use crate::network::ModelParameter;
use dtrain_protocol::{Slice, TensorKind};
use std::ops::Range;

/// Reads the elements `range` of this rank's region of `parameter`, or of one of its moments, as `kind`
/// says.
pub(super) fn read(
    reader: &TensorReader,
    parameter: &ModelParameter,
    kind: TensorKind,
    range: Range<usize>,
) -> Result<Vec<f32>, CheckpointError> {
    let mut values = vec![0.0; range.len()];
    let slice = Slice::of(parameter.region.clone(), range.start as u64..range.end as u64);
    reader.read(&parameter.name, kind, &slice, &mut values)?;
    if kind == TensorKind::Parameter && values.iter().any(|value| !value.is_finite()) {
        let detail = format!("tensor {} has a weight that is not finite", parameter.name);
        return Err(CheckpointError::Unusable { folder: reader.folder().to_owned(), detail });
    }
    Ok(values)
}
