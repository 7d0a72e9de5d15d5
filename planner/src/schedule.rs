//! What each pipeline stage does within one step, in order.
//!
//! Two neighbours that owe each other a message post both halves at once (`Exchange`): sent one after the
//! other over unbuffered links, one-forward-one-backward deadlocks in most shapes.

use dtrain_protocol::{Action, Toward};
use std::num::NonZeroU32;

/// One step of stage `stage` under one-forward-one-backward: at most `min(stages - stage, micro_batches)`
/// micro-batches are alive at once.
pub fn one_forward_one_backward(stage: u32, stages: NonZeroU32, micro_batches: NonZeroU32) -> Vec<Action> {
    let (stages, micros) = (stages.get(), micro_batches.get());
    assert!(stage < stages, "stage {stage} is outside a pipeline of {stages}");
    let warmup = (stages - stage - 1).min(micros);
    let mut step = Step { stage, stages, actions: Vec::new() };
    for micro in 0..warmup {
        step.exchange(Toward::Previous, None, Some(micro));
        step.act(Action::Forward(micro));
        step.exchange(Toward::Next, Some(micro), None);
    }
    if warmup < micros {
        step.exchange(Toward::Previous, None, Some(warmup));
    }
    for oldest in 0..micros - warmup {
        let newest = warmup + oldest;
        step.act(Action::Forward(newest));
        step.exchange(Toward::Next, Some(newest), Some(oldest));
        step.act(Action::Backward(oldest));
        step.exchange(Toward::Previous, Some(oldest), (newest + 1 < micros).then_some(newest + 1));
    }
    for oldest in micros - warmup..micros {
        step.exchange(Toward::Next, None, Some(oldest));
        step.act(Action::Backward(oldest));
        step.exchange(Toward::Previous, Some(oldest), None);
    }
    step.finish()
}

/// One step of stage `stage` with all forwards before all backwards: every micro-batch is alive at once.
pub fn all_forward_all_backward(stage: u32, stages: NonZeroU32, micro_batches: NonZeroU32) -> Vec<Action> {
    let (stages, micros) = (stages.get(), micro_batches.get());
    assert!(stage < stages, "stage {stage} is outside a pipeline of {stages}");
    let mut step = Step { stage, stages, actions: Vec::new() };
    for micro in 0..micros {
        step.exchange(Toward::Previous, None, Some(micro));
        step.act(Action::Forward(micro));
        step.exchange(Toward::Next, Some(micro), None);
    }
    for micro in 0..micros {
        step.exchange(Toward::Next, None, Some(micro));
        step.act(Action::Backward(micro));
        step.exchange(Toward::Previous, Some(micro), None);
    }
    step.finish()
}

/// The actions of one stage while they are written down.
struct Step {
    stage: u32,
    stages: u32,
    actions: Vec<Action>,
}

impl Step {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Exchanges with a neighbour, when there is one on that side.
    fn exchange(&mut self, with: Toward, send: Option<u32>, recv: Option<u32>) {
        let edge = match with {
            Toward::Previous => self.stage == 0,
            Toward::Next => self.stage + 1 == self.stages,
        };
        if !edge {
            self.act(Action::Exchange { with, send, recv });
        }
    }

    fn finish(mut self) -> Vec<Action> {
        self.actions.extend([Action::ReduceGradients, Action::UpdateWeights]);
        self.actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{StageCost, walk};

    type Schedule = fn(u32, NonZeroU32, NonZeroU32) -> Vec<Action>;

    fn positive(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).expect("tests use positive counts")
    }

    fn stages(schedule: Schedule, stages: u32, micros: u32) -> Vec<Vec<Action>> {
        (0..stages).map(|stage| schedule(stage, positive(stages), positive(micros))).collect()
    }

    fn live_peak(actions: &[Action]) -> u32 {
        let (mut live, mut peak) = (0u32, 0u32);
        for action in actions {
            match action {
                Action::Forward(_) => live += 1,
                Action::Backward(_) => live -= 1,
                Action::Exchange { .. } | Action::ReduceGradients | Action::UpdateWeights => {}
            }
            peak = peak.max(live);
        }
        assert_eq!(live, 0, "every forward has its backward");
        peak
    }

    #[test]
    fn no_shape_deadlocks_with_unbuffered_links() {
        for schedule in [one_forward_one_backward as Schedule, all_forward_all_backward] {
            for shape in (1..=8).flat_map(|s| (1..=16).map(move |m| (s, m))) {
                let actions = stages(schedule, shape.0, shape.1);
                let costs = vec![StageCost { forward: 1.0, backward: 2.0 }; actions.len()];
                let walked = walk(&actions, &costs, 0.1).expect("no stage waits forever");
                let busy = f64::from(shape.1) * 3.0;
                assert!(
                    walked.seconds >= busy - 1e-9,
                    "{shape:?}: {} is shorter than the work",
                    walked.seconds
                );
            }
        }
    }

    #[test]
    fn a_broken_schedule_is_seen_to_deadlock() {
        let mut actions = stages(one_forward_one_backward, 2, 2);
        let first = actions[1].iter().position(|a| matches!(a, Action::Exchange { .. }));
        actions[1].remove(first.expect("the second stage receives"));
        assert!(walk(&actions, &[StageCost { forward: 1.0, backward: 2.0 }; 2], 0.0).is_none());
    }

    #[test]
    fn live_activations_stay_within_the_bound() {
        for (s, m) in (1..=8).flat_map(|s| (1..=16).map(move |m| (s, m))) {
            for (stage, actions) in (0..s).zip(stages(one_forward_one_backward, s, m)) {
                assert_eq!(
                    live_peak(&actions),
                    (s - stage).min(m),
                    "stage {stage} of {s}, {m} micro-batches"
                );
            }
            assert!(stages(all_forward_all_backward, s, m).iter().all(|actions| live_peak(actions) == m));
        }
    }

    #[test]
    fn one_stage_goes_forward_and_backward_then_reduces_and_updates() {
        use Action::*;
        let expected =
            [Forward(0), Backward(0), Forward(1), Backward(1), ReduceGradients, UpdateWeights].to_vec();
        assert_eq!(one_forward_one_backward(0, positive(1), positive(2)), expected);
    }
}
