//! Loads checkpoints of any layout: a rank reads its region of every parameter, and the part of the
//! moments that its optimizer holds.

use super::extra_state;
use super::read_parameter::read;
use crate::checkpoint::{CheckpointError, TensorReader};
use crate::data::DataSet;
use crate::network::ModelParameter;
use crate::optimizer::StageOptimizer;
use crate::stage::Stage;
use crate::train_step::Replica;
use dtrain_protocol::checkpoint::FETCHED;
use dtrain_protocol::input_manifest::{INPUTS, TOKENIZER};
use dtrain_protocol::{Assignment, Failure, InputManifest, Manifest, ResumePoint, StepId, TensorKind};
use std::path::{Path, PathBuf};

/// Opens the checkpoint that `point` names.
///
/// `Err` unless it was committed after the step that `point` names.
pub(super) fn open(point: &ResumePoint) -> Result<TensorReader, Failure> {
    let reader = TensorReader::open(&point.folder).map_err(|error| failure(&point.folder, &error))?;
    let Manifest { step, cursor, .. } = *reader.manifest();
    let corrupt = |detail: String| Failure::CorruptCheckpoint { folder: checkpoint(&point.folder), detail };
    if step != point.step {
        return Err(corrupt(format!("it is for step {step}, expected step {}", point.step)));
    }
    if !cursor.is_multiple_of(step.0) {
        return Err(corrupt(format!(
            "its next sample is {cursor}, which is within a batch after {step} steps"
        )));
    }
    Ok(reader)
}

/// Returns the tokenizer in a checkpoint, as JSON; `None` if it has none.
pub(super) fn tokenizer(reader: &TensorReader) -> Result<Option<Vec<u8>>, Failure> {
    reader.file(TOKENIZER).map_err(|error| failure(reader.folder(), &error))
}

/// Loads the state in a checkpoint into `replica`; returns a notice about state that could not be
/// restored.
///
/// A checkpoint of step 0 has the initial weights, and nothing else.
///
/// `Err` if anything is damaged, missing, or has another shape, or if the checkpoint is of another training
/// or of other data; then the replica is unusable.
pub(super) fn load(
    reader: &TensorReader,
    assignment: &Assignment,
    data: &DataSet,
    replica: &mut Replica<'_>,
) -> Result<Option<String>, Failure> {
    let folder = reader.folder();
    let failed = |error: CheckpointError| failure(folder, &error);
    let other = |detail| Failure::OtherTraining { folder: folder.to_owned(), detail };
    if reader.manifest().step == StepId(0) {
        return weights(reader, &mut replica.stage).map_err(failed).map(|()| None);
    }
    if let Some(detail) = difference(reader.manifest(), assignment) {
        return Err(other(detail));
    }
    let recorded = inputs(reader)?;
    if let Some(detail) = recorded.as_ref().and_then(|then| changed_data(then, data)) {
        return Err(other(detail));
    }
    let Replica { stage, optimizer, .. } = &mut *replica;
    let notice = weights(reader, stage)
        .and_then(|()| moments(reader, stage.parameters(), optimizer))
        .and_then(|()| extra_state::load(reader, replica))
        .map_err(failed)?;
    let unknown = "the checkpoint does not record its data, so that the data was not compared";
    Ok(notice.or_else(|| recorded.is_none().then(|| unknown.to_owned())))
}

/// Converts an error from reading the checkpoint in `folder` to a failure of the attempt.
fn failure(folder: &Path, error: &CheckpointError) -> Failure {
    // A disk that lost data is to blame; refused files, rights or memory say nothing about the checkpoint.
    if error.is_of_this_process() {
        Failure::Other(error.to_string())
    } else {
        Failure::CorruptCheckpoint { folder: checkpoint(folder), detail: error.to_string() }
    }
}

/// Returns the folder of the checkpoint itself if `folder` has its fetched parts: the agent knows the
/// checkpoint by that name.
fn checkpoint(folder: &Path) -> PathBuf {
    let name = folder.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(FETCHED));
    name.map_or_else(|| folder.to_owned(), |name| folder.with_file_name(name))
}

/// Returns the description of the data that a checkpoint was trained on; `None` if an older version wrote
/// it.
fn inputs(reader: &TensorReader) -> Result<Option<InputManifest>, Failure> {
    let json = reader.file(INPUTS).map_err(|error| failure(reader.folder(), &error))?;
    let parse = |json: Vec<u8>| {
        serde_json::from_slice(&json).map_err(|error| Failure::CorruptCheckpoint {
            folder: checkpoint(reader.folder()),
            detail: format!("{INPUTS}: {error}"),
        })
    };
    json.map(parse).transpose()
}

/// Describes how the data differs from that of the checkpoint, with a remedy; `None` if it does not
/// differ.
fn changed_data(then: &InputManifest, data: &DataSet) -> Option<String> {
    let differences = then.differences(&data.inputs());
    (!differences.is_empty()).then(|| {
        format!(
            "its data has changed: {}; restore the data, or accept it as it is now with `dtrain resume --accept-data`",
            differences.join("; ")
        )
    })
}

/// Describes the settings in which the checkpoint and the assignment differ so that they give other
/// samples, with a remedy; `None` if there are none.
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

/// Loads the weights of a checkpoint into `stage`. Adapters that a checkpoint of step 0 lacks, because its
/// model has none, keep their initial values.
pub(crate) fn weights(reader: &TensorReader, stage: &mut Stage) -> Result<(), CheckpointError> {
    let begins = reader.manifest().step == StepId(0);
    let has_frozen = !stage.frozen_parameters().is_empty();
    for index in 0..stage.parameters().len() {
        let parameter = &stage.parameters()[index];
        let is_there = reader.tensor(&parameter.name, TensorKind::Parameter).is_some();
        if begins && has_frozen && !is_there {
            continue;
        }
        let values = read(reader, parameter, TensorKind::Parameter, 0..parameter.range.len())?;
        stage.set_values(index, values);
    }
    for index in 0..stage.frozen_parameters().len() {
        let parameter = &stage.frozen_parameters()[index];
        let values = read(reader, parameter, TensorKind::Parameter, 0..parameter.range.len())?;
        stage.set_frozen(index, values);
    }
    Ok(())
}

fn moments(
    reader: &TensorReader,
    parameters: &[ModelParameter],
    optimizer: &mut StageOptimizer,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_of_what_was_fetched_is_damage_of_the_checkpoint() {
        let folder = Path::new("/t/step-000000005.a1.fetched");
        let found = || CheckpointError::Unusable { folder: folder.to_owned(), detail: "damage".into() };
        let Failure::CorruptCheckpoint { folder: named, .. } = failure(folder, &found()) else {
            panic!("damage")
        };
        assert_eq!(named, Path::new("/t/step-000000005.a1"));
        let hole = CheckpointError::NotFetched { tensor: "w".into(), file: "a".into(), offset: 0 };
        assert!(matches!(failure(folder, &hole), Failure::Other(_)), "a hole says nothing of the checkpoint");
    }
}
