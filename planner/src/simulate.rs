//! Walks the action lists of all stages, the same that the workers execute, to get the time of a step.
//!
//! It knows no byte and no device: seconds of each piece come in, seconds of the whole go out.

use dtrain_protocol::{Action, Toward};

/// Seconds of one micro-batch on one stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCost {
    /// Forward.
    pub forward: f64,
    /// Backward, with what is computed again.
    pub backward: f64,
}

/// What a walk found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walked {
    /// Seconds until the slowest stage is done with its last backward.
    pub seconds: f64,
    /// Seconds the busiest stage computes.
    pub busy: f64,
}

impl Walked {
    /// Seconds the busiest stage stands still: filling, draining and waiting for messages.
    pub fn bubble(&self) -> f64 {
        (self.seconds - self.busy).max(0.0)
    }
}

/// Walks the action lists of all stages of one pipeline over unbuffered links; `None` when they wait on each
/// other forever. `transfer` is the seconds of one activation or gradient between neighbours.
///
/// `ReduceGradients` and `UpdateWeights` end a stage's walk: they are priced by the caller.
pub fn walk(stages: &[Vec<Action>], costs: &[StageCost], transfer: f64) -> Option<Walked> {
    let mut at = vec![Progress::default(); stages.len()];
    loop {
        let mut moved = false;
        for stage in 0..stages.len() {
            while step(stages, costs, transfer, &mut at, stage) {
                moved = true;
            }
        }
        if (0..stages.len()).all(|s| at[s].next == stages[s].len()) {
            break;
        }
        if !moved {
            return None;
        }
    }
    let seconds = at.iter().map(|p| p.clock).fold(0.0, f64::max);
    let busy = at.iter().map(|p| p.busy).fold(0.0, f64::max);
    Some(Walked { seconds, busy })
}

/// Where a stage stands.
#[derive(Clone, Copy, Default)]
struct Progress {
    next: usize,
    clock: f64,
    busy: f64,
    /// When the send half of the pending exchange was taken by the neighbour.
    sent: Option<f64>,
    /// When the receive half of the pending exchange arrived.
    received: Option<f64>,
}

/// Advances one stage by one action; false when it must wait or is done.
fn step(
    stages: &[Vec<Action>],
    costs: &[StageCost],
    transfer: f64,
    at: &mut [Progress],
    stage: usize,
) -> bool {
    let Some(action) = stages[stage].get(at[stage].next) else { return false };
    let seconds = match *action {
        Action::Forward(_) => costs[stage].forward,
        Action::Backward(_) => costs[stage].backward,
        Action::ReduceGradients | Action::UpdateWeights => 0.0,
        Action::Exchange { with, send, recv } => {
            meet(stages, transfer, at, stage, with);
            let mine = at[stage];
            let whole =
                (send.is_none() || mine.sent.is_some()) && (recv.is_none() || mine.received.is_some());
            if !whole {
                return false;
            }
            let ends = [mine.sent, mine.received].into_iter().flatten().fold(mine.clock, f64::max);
            at[stage] = Progress { next: mine.next + 1, clock: ends, sent: None, received: None, ..mine };
            return true;
        }
    };
    at[stage].clock += seconds;
    at[stage].busy += seconds;
    at[stage].next += 1;
    true
}

/// Completes the halves that both `stage` and its neighbour have posted.
fn meet(stages: &[Vec<Action>], transfer: f64, at: &mut [Progress], stage: usize, with: Toward) {
    let (neighbour, back) = match with {
        Toward::Previous => (stage - 1, Toward::Next),
        Toward::Next => (stage + 1, Toward::Previous),
    };
    let (
        Some(Action::Exchange { send, recv, .. }),
        Some(Action::Exchange { with: theirs, send: s, recv: r }),
    ) = (stages[stage].get(at[stage].next), stages[neighbour].get(at[neighbour].next))
    else {
        return;
    };
    if *theirs != back {
        return;
    }
    let arrives = at[stage].clock.max(at[neighbour].clock) + transfer;
    if send.is_some() && send == r && at[stage].sent.is_none() && at[neighbour].received.is_none() {
        (at[stage].sent, at[neighbour].received) = (Some(arrives), Some(arrives));
    }
    if recv.is_some() && recv == s && at[stage].received.is_none() && at[neighbour].sent.is_none() {
        (at[stage].received, at[neighbour].sent) = (Some(arrives), Some(arrives));
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
    use crate::schedule::{all_forward_all_backward, one_forward_one_backward};
    use std::num::NonZeroU32;

    fn walked(stages: u32, micros: u32, gpipe: bool) -> Walked {
        let n = |n| NonZeroU32::new(n).expect("positive");
        let schedule = if gpipe { all_forward_all_backward } else { one_forward_one_backward };
        let actions: Vec<_> = (0..stages).map(|s| schedule(s, n(stages), n(micros))).collect();
        let cost = StageCost { forward: 1.0, backward: 2.0 };
        walk(&actions, &vec![cost; stages as usize], 0.0).expect("no deadlock")
    }

    #[test]
    fn equal_stages_have_the_bubble_of_the_textbook() {
        for (stages, micros) in [(1, 1), (2, 4), (4, 4), (4, 16), (8, 32)] {
            for gpipe in [false, true] {
                let expected = f64::from(micros + stages - 1) * 3.0;
                let found = walked(stages, micros, gpipe);
                assert!((found.seconds - expected).abs() < 1e-9, "{stages} × {micros}: {found:?}");
                assert!((found.bubble() - f64::from(stages - 1) * 3.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn the_last_bucket_is_always_exposed() {
        assert!((exposed_reduction(1.0, 4, 100.0, 1.0) - 0.25).abs() < 1e-12);
        assert!((exposed_reduction(1.0, 1, 100.0, 1.0) - 1.0).abs() < 1e-12);
        assert!((exposed_reduction(1.0, 4, 1.0, 0.5) - 0.5).abs() < 1e-12);
    }
}
