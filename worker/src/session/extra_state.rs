//! Extra state in checkpoints, beyond weights and moments: the loss scale, and the state of approximate
//! synchronization.
//!
//! The state of one replica is restored to it. With another number of replicas each starts with the state
//! of the first, and with an empty residual.

use super::read_parameter::read;
use super::tensor_snapshot::TensorSnapshot;
use crate::checkpoint::{CheckpointError, TensorReader};
use crate::network::ModelParameter;
use crate::parallel::sync::put;
use crate::snapshot::Snapshot;
use crate::stage::Stage;
use crate::train_step::Replica;
use dtrain_protocol::{Region, ReplicaState, Slice, TensorKind};

/// Name of the loss scale in a checkpoint, where it belongs to no parameter.
const LOSS_SCALE: &str = "all";

/// Returns the extra state of this replica as copies, because it changes at other times than weights do.
pub(super) fn taken(replica: &Replica<'_>) -> Vec<TensorSnapshot> {
    let Replica { stage, optimizer, reduction, outer, loss_scale, mesh, .. } = replica;
    let index = mesh.replicas().rank();
    let own = |state| TensorKind::Own { replica: index, state };
    let mut taken = Vec::new();
    let mut copy = |name: &str, kind, region: &Region, values| {
        let (slice, values) = (Slice::all(region.clone()), Snapshot::Copy(values));
        taken.push(TensorSnapshot { name: name.into(), kind, slice, values });
    };
    for (parameter, ModelParameter { name, region, range, .. }) in stage.parameters().iter().enumerate() {
        if let Some(outer) = outer {
            if outer.has_diverged() {
                let mut values = vec![0.0; range.len()];
                stage.copy_values(range.clone(), &mut values);
                copy(name, own(ReplicaState::Weights), region, values);
            }
            let (first, second) = optimizer.moments(parameter);
            for (kind, moment) in moments(index).into_iter().zip([first, second]) {
                if let Some(moment) = moment {
                    copy(name, kind, region, moment);
                }
            }
        }
        if let Some(residual) = reduction.residual() {
            copy(name, own(ReplicaState::Residual), region, residual[range.clone()].to_vec());
        }
    }
    if let Some(low_rank) = reduction.low_rank().filter(|_| index == 0) {
        for (parameter, shape, values) in low_rank.factors() {
            let region = Region::whole(&shape.map(|side| side as u64));
            copy(&stage.parameters()[parameter].name, TensorKind::Factor, &region, values.to_vec());
        }
    }
    if let Some(scale) = loss_scale.as_ref().filter(|_| mesh.world().rank() == 0) {
        let state = scale.state();
        let region = Region::whole(&[state.len() as u64]);
        copy(LOSS_SCALE, TensorKind::LossScale, &region, state.to_vec());
    }
    taken
}

/// Returns the tensor kinds under which replica `index` saves its moments. A run in any other layout
/// continues with the moments of the first replica.
fn moments(index: u32) -> [TensorKind; 2] {
    let own = |state| TensorKind::Own { replica: index, state };
    match index {
        0 => [TensorKind::FirstMoment, TensorKind::SecondMoment],
        _ => [own(ReplicaState::FirstMoment), own(ReplicaState::SecondMoment)],
    }
}

/// Loads the extra state in a checkpoint into `replica`, after weights and moments; returns a notice
/// about state that was reset, if any was.
pub(super) fn load(
    reader: &TensorReader,
    replica: &mut Replica<'_>,
) -> Result<Option<String>, CheckpointError> {
    let Replica { stage, optimizer, reduction, outer, loss_scale, mesh, .. } = replica;
    if let Some(scale) =
        loss_scale.as_mut().filter(|_| reader.tensor(LOSS_SCALE, TensorKind::LossScale).is_some())
    {
        let mut state = scale.state();
        let all = Slice::whole(&[state.len() as u64]);
        reader.read(LOSS_SCALE, TensorKind::LossScale, &all, &mut state)?;
        scale.set_state(state);
    }
    let (index, replicas) = (mesh.replicas().rank(), mesh.replicas().ranks());
    let found = reader.manifest().layout.data.get();
    let mut begins = found != replicas;
    let own = |state| TensorKind::Own { replica: index, state };
    if let Some(outer) = outer {
        outer.begin(stage);
        begins |= !read_all(reader, stage, TensorKind::OuterMomentum, outer.velocity_mut())?;
        let mut values = outer.anchor().to_vec();
        if found == replicas && read_all(reader, stage, own(ReplicaState::Weights), &mut values)? {
            put(stage, &values);
            outer.mark_diverged();
        }
        if found == replicas && has(reader, stage, moments(index)[0]) {
            for (parameter, held) in stage.parameters().iter().enumerate() {
                let all = 0..held.range.len();
                let read = |kind| {
                    let is_there = reader.tensor(&held.name, kind).is_some();
                    is_there.then(|| read(reader, held, kind, all.clone())).transpose()
                };
                let [first, second] = moments(index);
                optimizer.set_moments(parameter, read(first)?, read(second)?);
            }
        }
    }
    if let Some(residual) = reduction.residual_mut() {
        begins |= found != replicas || !read_all(reader, stage, own(ReplicaState::Residual), residual)?;
    }
    let factors = reduction.low_rank_mut().into_iter().flat_map(|low_rank| low_rank.factors_mut());
    for (parameter, shape, values) in factors {
        let (name, shape) = (&stage.parameters()[parameter].name, shape.map(|side| side as u64));
        if reader.tensor(name, TensorKind::Factor).is_some_and(|factor| factor.shape == shape) {
            reader.read(name, TensorKind::Factor, &Slice::whole(&shape), values)?;
        }
    }
    let keeps = outer.is_some() || reduction.residual().is_some();
    Ok((keeps && begins).then(|| {
        let why = if found == replicas {
            "its replicas were synchronised in another way".into()
        } else {
            format!("it has {found} replicas, this run has {replicas}")
        };
        format!("the checkpoint has no per-replica state for this layout; it is reset: {why}")
    }))
}

/// Returns `true` if the checkpoint has a tensor of kind `kind` for every parameter of `stage`.
fn has(reader: &TensorReader, stage: &Stage, kind: TensorKind) -> bool {
    stage.parameters().iter().all(|parameter| reader.tensor(&parameter.name, kind).is_some())
}

/// Reads the tensors of kind `kind` for all parameters of `stage` into `values`, in flat order; returns
/// `false` and leaves `values` unchanged if the checkpoint lacks some of them.
fn read_all(
    reader: &TensorReader,
    stage: &Stage,
    kind: TensorKind,
    values: &mut [f32],
) -> Result<bool, CheckpointError> {
    if !has(reader, stage, kind) {
        return Ok(false);
    }
    for parameter in stage.parameters() {
        values[parameter.range.clone()].copy_from_slice(&read(
            reader,
            parameter,
            kind,
            0..parameter.range.len(),
        )?);
    }
    Ok(true)
}
