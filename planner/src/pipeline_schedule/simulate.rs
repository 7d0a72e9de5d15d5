//! Discrete-event simulation of a pipeline: runs the action lists of all stages to find the duration of a
//! step.
//!
//! It knows neither bytes nor devices: durations of the pieces come in, the duration of the whole goes out.

use crate::pipeline_schedule::PipelineShape;
use dtrain_protocol::{Action, Neighbor, Pass};
use std::collections::BTreeMap;

/// Seconds of a pass of one micro-batch through one chunk of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassCost {
    /// Seconds of the forward pass.
    pub forward: f64,
    /// Seconds of the backward pass for the input gradient, which the stage before waits for, including
    /// recompute.
    pub input: f64,
    /// Seconds of the rest of the backward pass, for the weight gradients.
    pub weights: f64,
}

/// Result of simulating one step of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedPipeline {
    /// Seconds until the slowest stage ends its last backward pass.
    pub seconds: f64,
    /// Seconds that the busiest stage computes.
    pub busy: f64,
}

impl SimulatedPipeline {
    /// Returns the pipeline bubble: the idle seconds of the busiest stage, in fill, drain and waits for
    /// messages.
    pub fn bubble(&self) -> f64 {
        (self.seconds - self.busy).max(0.0)
    }
}

/// An action in the simulated schedule, and the pipeline stage that performs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageAction {
    pub(crate) stage: u32,
    pub(crate) action: Action,
}

impl StageAction {
    /// Returns the message that the action waits for, if any: the neighbor that sends it, and the pass that
    /// needs it.
    pub(crate) fn reads(self, shape: PipelineShape) -> Option<(Neighbor, Pass)> {
        let (from, _, pass) = self.neighbors()?;
        has_neighbor(shape, self.stage, from, pass).then_some((from, pass))
    }

    /// Returns the message that the action sends, if any: the neighbor that receives it, and the pass whose
    /// result it is.
    pub(crate) fn sends(self, shape: PipelineShape) -> Option<(Neighbor, Pass)> {
        let (_, to, pass) = self.neighbors()?;
        has_neighbor(shape, self.stage, to, pass).then_some((to, pass))
    }

    /// Returns the neighbor that a forward or backward pass receives from, the neighbor that it sends to, and
    /// the pass itself; `None` for other actions.
    fn neighbors(self) -> Option<(Neighbor, Neighbor, Pass)> {
        match self.action {
            Action::Forward(pass) => Some((Neighbor::Previous, Neighbor::Next, pass)),
            Action::Backward(pass) | Action::BackwardInput(pass) => {
                Some((Neighbor::Next, Neighbor::Previous, pass))
            }
            Action::BackwardWeights(_)
            | Action::Exchange { .. }
            | Action::ReduceGradients
            | Action::UpdateWeights => None,
        }
    }
}

/// Returns `true` if the chunk of `pass` on `stage` has a neighbor in direction `with`: the first chunk of
/// the model has none before it, and the last none after it.
fn has_neighbor(shape: PipelineShape, stage: u32, with: Neighbor, pass: Pass) -> bool {
    match with {
        Neighbor::Previous => stage > 0 || pass.chunk > 0,
        Neighbor::Next => stage + 1 < shape.stages || pass.chunk + 1 < shape.chunks,
    }
}

/// Returns the other end of a message between stages: the stage there, the direction from there back to
/// `stage`, and the pass as numbered there.
pub(crate) fn hop(shape: PipelineShape, stage: u32, with: Neighbor, pass: Pass) -> (u32, Neighbor, Pass) {
    match with {
        Neighbor::Next if stage + 1 < shape.stages => (stage + 1, Neighbor::Previous, pass),
        Neighbor::Next => (0, Neighbor::Previous, Pass { chunk: pass.chunk + 1, ..pass }),
        Neighbor::Previous if stage > 0 => (stage - 1, Neighbor::Next, pass),
        Neighbor::Previous => (shape.stages - 1, Neighbor::Next, Pass { chunk: pass.chunk - 1, ..pass }),
    }
}

/// Simulates the action lists of all stages in one pipeline; `None` when they deadlock.
///
/// `costs` has an entry for each stage; `transfer` is the seconds of one activation or gradient between
/// neighbors. A sender does not wait; a receiver waits for the message. `ReduceGradients` and `UpdateWeights`
/// take no time here: the caller prices them. Calls `tell` with the stage, the action and its start in
/// seconds, for every action that takes time, in order within a stage.
pub fn simulate_pipeline(
    stages: &[Vec<Action>],
    shape: PipelineShape,
    costs: &[PassCost],
    transfer: f64,
    mut tell: impl FnMut(usize, Action, f64),
) -> Option<SimulatedPipeline> {
    let mut next = vec![0; stages.len()];
    let (mut clocks, mut busy) = (vec![0.0_f64; stages.len()], vec![0.0_f64; stages.len()]);
    let mut arrived: BTreeMap<(u32, Neighbor, Pass), f64> = BTreeMap::new();
    let mut moved = true;
    while std::mem::take(&mut moved) {
        for stage in 0..shape.stages {
            let at = stage as usize;
            while let Some(action) = stages[at].get(next[at]) {
                if let Action::Exchange { with, send, recv } = *action {
                    if let Some(pass) = send {
                        let (other, back, theirs) = hop(shape, stage, with, pass);
                        // A waiting exchange comes here again: the first time counts.
                        arrived.entry((other, back, theirs)).or_insert(clocks[at] + transfer);
                    }
                    if let Some(pass) = recv {
                        let Some(tick) = arrived.get(&(stage, with, pass)) else { break };
                        clocks[at] = clocks[at].max(*tick);
                    }
                }
                let seconds = seconds(*action, costs[at]);
                if seconds > 0.0 {
                    tell(at, *action, clocks[at]);
                }
                clocks[at] += seconds;
                busy[at] += seconds;
                next[at] += 1;
                moved = true;
            }
        }
    }
    let is_done = next.iter().zip(stages).all(|(next, actions)| *next == actions.len());
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    is_done.then(|| SimulatedPipeline { seconds: most(&clocks), busy: most(&busy) })
}

fn seconds(action: Action, cost: PassCost) -> f64 {
    match action {
        Action::Forward(_) => cost.forward,
        Action::Backward(_) => cost.input + cost.weights,
        Action::BackwardInput(_) => cost.input,
        Action::BackwardWeights(_) => cost.weights,
        Action::Exchange { .. } | Action::ReduceGradients | Action::UpdateWeights => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_received_by_the_pass_that_reads_it() {
        let shape = PipelineShape { stages: 3, chunks: 2, micros: 1 };
        for stage in 0..3 {
            for chunk in 0..2 {
                for action in
                    [Action::Forward(Pass { micro: 0, chunk }), Action::Backward(Pass { micro: 0, chunk })]
                {
                    let Some((with, pass)) = StageAction { stage, action }.sends(shape) else { continue };
                    let (other, back, theirs) = hop(shape, stage, with, pass);
                    assert_eq!(hop(shape, other, back, theirs), (stage, with, pass));
                }
            }
        }
    }
}
