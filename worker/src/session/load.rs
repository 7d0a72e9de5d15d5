//! Goes on from a checkpoint, whatever layout wrote it: a rank reads its region of every parameter, and of the moments
//! the part that its optimizer holds.

use crate::checkpoint::{CheckpointError, Reader};
use crate::optimizer::Optimizer;
use crate::stage::{Parameter, Stage};
use dtrain_protocol::{Assignment, Failure, Manifest, ResumePoint, Slice, TensorKind};
use std::ops::Range;

/// Puts the weights and moments of `point` into `stage` and `optimizer`.
///
/// `Err` when anything is not as it was written, lacks, or has another shape; then both are unusable.
pub(crate) fn load(
    point: &ResumePoint,
    assignment: &Assignment,
    stage: &mut Stage,
    optimizer: &mut Optimizer,
) -> Result<(), Failure> {
    let corrupt = |detail: String| Failure::CorruptCheckpoint { folder: point.folder.clone(), detail };
    let reader = Reader::open(&point.folder).map_err(|error| corrupt(error.to_string()))?;
    continues(reader.manifest(), point, assignment).map_err(corrupt)?;
    weights(&reader, stage).map_err(|error| corrupt(error.to_string()))?;
    moments(&reader, stage.parameters(), optimizer).map_err(|error| corrupt(error.to_string()))
}

/// Whether what follows `point` in the assignment is what followed the checkpoint: step, samples and seed.
fn continues(manifest: &Manifest, point: &ResumePoint, assignment: &Assignment) -> Result<(), String> {
    let Manifest { step, cursor, seed, .. } = manifest;
    if *step != point.step {
        return Err(format!("it holds step {step}, step {} was to be resumed", point.step));
    }
    let training = &assignment.training;
    let wanted = step.0 * training.batch;
    if *cursor != wanted {
        let batch = training.batch;
        return Err(format!(
            "its next sample is {cursor}; after {step} steps of a batch of {batch} it is {wanted}"
        ));
    }
    match seed {
        Some(seed) if *seed != training.seed => {
            Err(format!("it was trained with seed {seed}, the assignment has {}", training.seed))
        }
        Some(_) | None => Ok(()),
    }
}

/// Puts the weights of a checkpoint into `stage`.
pub(crate) fn weights(reader: &Reader, stage: &mut Stage) -> Result<(), CheckpointError> {
    for index in 0..stage.parameters().len() {
        let parameter = &stage.parameters()[index];
        let values = read(reader, parameter, TensorKind::Parameter, 0..parameter.range.len())?;
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
        let own = optimizer.owned(index);
        let read = |moment: Option<_>, kind| {
            moment.map(|_: Vec<f32>| read(reader, parameter, kind, own.clone())).transpose()
        };
        let first = read(first, TensorKind::FirstMoment)?;
        let second = read(second, TensorKind::SecondMoment)?;
        optimizer.set_moments(index, first, second);
    }
    Ok(())
}

/// Elements `range` of what this rank holds of `parameter`, or of one of its moments.
fn read(
    reader: &Reader,
    parameter: &Parameter,
    kind: TensorKind,
    range: Range<usize>,
) -> Result<Vec<f32>, CheckpointError> {
    let mut values = vec![0.0; range.len()];
    let slice = Slice::of(parameter.region.clone(), range.start as u64..range.end as u64);
    reader.read(&parameter.name, kind, &slice, &mut values)?;
    Ok(values)
}
