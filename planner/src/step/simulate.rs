//! Walks the action lists of all stages, the same that the workers execute, to get the time of a step.
//!
//! It knows no byte and no device: seconds of each piece come in, seconds of the whole go out.

use crate::step::schedule::PipelineShape;
use dtrain_protocol::{Action, Neighbor, Pass};
use std::collections::BTreeMap;

/// Seconds of one pass through one chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassCost {
    /// Forward.
    pub forward: f64,
    /// The part of backward that the stage before waits for, with what is computed again.
    pub input: f64,
    /// The rest of backward: gradients of weights.
    pub weights: f64,
}

/// What a walk found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedPipeline {
    /// Seconds until the slowest stage is done with its last backward.
    pub seconds: f64,
    /// Seconds the busiest stage computes.
    pub busy: f64,
}

impl SimulatedPipeline {
    /// Seconds the busiest stage stands still: filling, draining and waiting for messages.
    pub fn bubble(&self) -> f64 {
        (self.seconds - self.busy).max(0.0)
    }
}

/// An action of a stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageAction {
    pub(crate) stage: u32,
    pub(crate) action: Action,
}

impl StageAction {
    /// The message that the action waits for, if it waits for one: from where, and the pass that reads it.
    pub(crate) fn reads(self, shape: PipelineShape) -> Option<(Neighbor, Pass)> {
        let (from, _, pass) = self.neighbors()?;
        has_neighbor(shape, self.stage, from, pass).then_some((from, pass))
    }

    /// The message that the action makes, if it makes one: to where, and the pass whose result it is.
    pub(crate) fn sends(self, shape: PipelineShape) -> Option<(Neighbor, Pass)> {
        let (_, to, pass) = self.neighbors()?;
        has_neighbor(shape, self.stage, to, pass).then_some((to, pass))
    }

    /// Where what a pass reads comes from, and where what it makes goes.
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

/// Whether a chunk has a neighbour on that side: the model has a first and a last one.
fn has_neighbor(shape: PipelineShape, stage: u32, with: Neighbor, pass: Pass) -> bool {
    match with {
        Neighbor::Previous => stage > 0 || pass.chunk > 0,
        Neighbor::Next => stage + 1 < shape.stages || pass.chunk + 1 < shape.chunks,
    }
}

/// The other end of a message: the stage, the direction from which it sees this one, and the pass as it counts it.
pub(crate) fn hop(shape: PipelineShape, stage: u32, with: Neighbor, pass: Pass) -> (u32, Neighbor, Pass) {
    match with {
        Neighbor::Next if stage + 1 < shape.stages => (stage + 1, Neighbor::Previous, pass),
        Neighbor::Next => (0, Neighbor::Previous, Pass { chunk: pass.chunk + 1, ..pass }),
        Neighbor::Previous if stage > 0 => (stage - 1, Neighbor::Next, pass),
        Neighbor::Previous => (shape.stages - 1, Neighbor::Next, Pass { chunk: pass.chunk - 1, ..pass }),
    }
}

/// Walks the action lists of all stages of one pipeline; `None` when they wait on each other forever.
///
/// `costs` is by stage, `transfer` the seconds of one activation or gradient between neighbours. A sender goes on at
/// once; a receiver waits until the message is there. `ReduceGradients` and `UpdateWeights` take no time: they are
/// priced by the caller. `tell` hears the stage, the action and the second at which it begins, of every action that takes
/// time; those of one stage in their order.
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
                        // Told again for an exchange that waits: the first time counts.
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

/// Seconds of a reduction of gradients that nothing hides.
///
/// The reduction of each bucket begins when its gradients are ready, inside the last backward; `overlap` is the
/// share of that backward that communication can hide behind. The last bucket is ready only when backward is
/// over, so it is always exposed.
pub fn exposed_reduction(reduction: f64, buckets: u64, last_backward: f64, overlap: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "buckets are few")]
    let last_bucket = reduction / buckets.max(1) as f64;
    (reduction - overlap * last_backward).max(last_bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bucket_is_always_exposed() {
        assert!((exposed_reduction(1.0, 4, 100.0, 1.0) - 0.25).abs() < 1e-12);
        assert!((exposed_reduction(1.0, 1, 100.0, 1.0) - 1.0).abs() < 1e-12);
        assert!((exposed_reduction(1.0, 4, 1.0, 0.5) - 0.5).abs() < 1e-12);
    }

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
