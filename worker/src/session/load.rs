//! Goes on from a checkpoint, whatever layout wrote it.

use crate::checkpoint::{CheckpointError, Reader};
use crate::optimizer::Optimizer;
use crate::stage::{Parameter, Stage};
use dtrain_protocol::{Failure, ResumePoint, TensorKind};

/// Puts the weights and moments of `point` into `stage` and `optimizer`.
///
/// `Err` when anything is not as it was written, lacks, or has another shape; then both are unusable.
pub(crate) fn load(point: &ResumePoint, stage: &mut Stage, optimizer: &mut Optimizer) -> Result<(), Failure> {
    let corrupt = |detail: String| Failure::CorruptCheckpoint { folder: point.folder.clone(), detail };
    let reader = Reader::open(&point.folder).map_err(|error| corrupt(error.to_string()))?;
    let found = reader.manifest().step;
    if found != point.step {
        return Err(corrupt(format!("it holds step {found}, step {} was to be resumed", point.step)));
    }
    weights(&reader, stage).map_err(|error| corrupt(error.to_string()))?;
    moments(&reader, stage.parameters(), optimizer).map_err(|error| corrupt(error.to_string()))
}

/// Puts the weights of a checkpoint into `stage`.
pub(crate) fn weights(reader: &Reader, stage: &mut Stage) -> Result<(), CheckpointError> {
    for index in 0..stage.parameters().len() {
        let values = whole(reader, &stage.parameters()[index], TensorKind::Parameter)?;
        stage.set_values(index, values);
    }
    Ok(())
}

fn moments(
    reader: &Reader,
    parameters: &[Parameter],
    optimizer: &mut Optimizer,
) -> Result<(), CheckpointError> {
    for (index, parameter) in parameters.iter().enumerate() {
        let (first, second) = optimizer.moments(index);
        let read =
            |moment: Option<_>, kind| moment.map(|_: Vec<f32>| whole(reader, parameter, kind)).transpose();
        let first = read(first, TensorKind::FirstMoment)?;
        let second = read(second, TensorKind::SecondMoment)?;
        optimizer.set_moments(index, first, second);
    }
    Ok(())
}

/// All elements of a tensor that must have the shape of `parameter`.
fn whole(reader: &Reader, parameter: &Parameter, kind: TensorKind) -> Result<Vec<f32>, CheckpointError> {
    let wanted: Vec<_> = parameter.shape.iter().map(|side| *side as u64).collect();
    if let Some(tensor) = reader.tensor(&parameter.name, kind).filter(|tensor| tensor.shape != wanted) {
        let detail = format!("it has shape {:?} there", tensor.shape);
        return Err(CheckpointError::Missing {
            wanted: format!("{} of shape {wanted:?}", parameter.name),
            detail,
        });
    }
    let mut values = vec![0.0; parameter.range.len()];
    reader.read(&parameter.name, kind, 0..values.len() as u64, &mut values)?;
    Ok(values)
}
