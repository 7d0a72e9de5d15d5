//! Goes on from a checkpoint, whatever layout wrote it: a rank reads its region of every parameter, and of the moments
//! the part that its optimizer holds.

use super::apart;
use crate::checkpoint::{CheckpointError, Reader};
use crate::interpret::Replica;
use crate::optimizer::Optimizer;
use crate::stage::{Parameter, Stage};
use dtrain_protocol::{Assignment, Failure, Manifest, ResumePoint, Slice, TensorKind};
use std::ops::Range;

/// Puts the state of `point` into `replica`; gives what of it could not be taken up, in words.
///
/// `Err` when anything is not as it was written, lacks, or has another shape, or when the checkpoint is of another
/// training; then the replica is unusable.
pub(super) fn load(
    point: &ResumePoint,
    assignment: &Assignment,
    replica: &mut Replica<'_>,
) -> Result<Option<String>, Failure> {
    let corrupt = |detail: String| Failure::CorruptCheckpoint { folder: point.folder.clone(), detail };
    // A disk that lost it is to blame; files, rights or memory that the system refuses say nothing of the checkpoint.
    let failed = |error: CheckpointError| {
        if error.is_of_this_process() {
            Failure::Other(error.to_string())
        } else {
            corrupt(error.to_string())
        }
    };
    let reader = Reader::open(&point.folder).map_err(failed)?;
    let Manifest { step, cursor, .. } = *reader.manifest();
    if step != point.step {
        return Err(corrupt(format!("it is for step {step}, expected step {}", point.step)));
    }
    if !cursor.is_multiple_of(step.0) {
        return Err(corrupt(format!(
            "its next sample is {cursor}, which is within a batch after {step} steps"
        )));
    }
    if let Some(detail) = difference(reader.manifest(), assignment) {
        return Err(Failure::OtherTraining { folder: point.folder.clone(), detail });
    }
    let Replica { stage, optimizer, .. } = &mut *replica;
    let loaded = weights(&reader, stage)
        .and_then(|()| moments(&reader, stage.parameters(), optimizer))
        .and_then(|()| apart::load(&reader, replica));
    loaded.map_err(failed)
}

/// Which settings of the checkpoint give other samples than those of the assignment, and what to do about it.
fn difference(manifest: &Manifest, assignment: &Assignment) -> Option<String> {
    let training = &assignment.training;
    let batch = manifest.cursor.checked_div(manifest.step.0);
    let settings = [("train.batch", batch, training.batch), ("train.seed", manifest.seed, training.seed)];
    let differs = settings.into_iter().filter_map(|(key, found, wanted)| {
        let found = found.filter(|found| *found != wanted)?;
        Some(format!("it has {key} = {found}, expected {wanted}"))
    });
    let differs: Vec<_> = differs.collect();
    (!differs.is_empty())
        .then(|| format!("{}; resume with its settings, or start a new trial", differs.join("; ")))
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
pub(super) fn read(
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
