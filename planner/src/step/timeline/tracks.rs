//! Tracks of a step's timeline: simulates the passes action by action, with one track for each stage.

use super::{Activity, StageTrack};
use crate::pipeline_schedule::simulate::{PassCost, simulate_pipeline};
use crate::pipeline_schedule::{PipelineShape, passes};
use dtrain_protocol::Action;
use dtrain_recipes::PipelineSchedule;

/// Seconds of a pass of one micro-batch through one chunk of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ChunkTimes {
    /// Seconds of computing in a forward pass.
    pub(crate) forward: f64,
    /// Seconds of computing in a backward pass, including weight gradients.
    pub(crate) backward: f64,
    /// Part of `backward` that computes weight gradients, in seconds.
    pub(crate) weights: f64,
    /// Seconds of exposed communication in a forward pass.
    pub(crate) sent_forward: f64,
    /// Seconds of exposed communication in a backward pass.
    pub(crate) sent_backward: f64,
}

impl ChunkTimes {
    /// Returns the durations of passes for the simulation, with communication included.
    pub(crate) fn cost(&self) -> PassCost {
        PassCost {
            forward: self.forward + self.sent_forward,
            input: self.backward + self.sent_backward - self.weights,
            weights: self.weights,
        }
    }
}

/// Returns the tracks of the stages, each up to the end of its last pass; `None` when the schedule deadlocks.
/// `transfer` is the seconds of a message between neighbors.
pub(crate) fn stage_tracks(
    works: &[ChunkTimes],
    schedule: PipelineSchedule,
    shape: PipelineShape,
    transfer: f64,
) -> Option<Vec<StageTrack>> {
    let mut lanes = vec![StageTrack::default(); works.len()];
    let costs: Vec<PassCost> = works.iter().map(ChunkTimes::cost).collect();
    simulate_pipeline(&passes(schedule, shape), shape, &costs, transfer, |stage, action, begin| {
        lanes[stage].until(begin);
        act(&mut lanes[stage], &works[stage], action);
    })?;
    Some(lanes)
}

/// Appends a pass to a track: computing first, then its exposed communication.
fn act(lane: &mut StageTrack, work: &ChunkTimes, action: Action) {
    let ChunkTimes { forward, backward, weights, sent_forward, sent_backward } = *work;
    let (pass, doing, computed, sent) = match action {
        Action::Forward(pass) => (pass, Activity::Forward, forward, sent_forward),
        Action::Backward(pass) => (pass, Activity::Backward, backward, sent_backward),
        Action::BackwardInput(pass) => (pass, Activity::Backward, backward - weights, sent_backward),
        Action::BackwardWeights(pass) => (pass, Activity::Weights, weights, 0.0),
        Action::Exchange { .. } | Action::ReduceGradients | Action::UpdateWeights => return,
    };
    lane.put(doing, computed, Some(pass));
    lane.put(Activity::Communication, sent, Some(pass));
}
