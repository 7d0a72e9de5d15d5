//! Where the time of a step goes, without gaps: every moment is put down to one phase.
//!
//! Waiting for other pipeline stages is *bubble*: in an `Exchange`, and at the end of the step for the slowest stage. All other
//! waiting, also in the middle of a pass, is *communication*.

use dtrain_protocol::{Action, PhaseTimes};
use std::time::{Duration, Instant};

/// What a rank is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Data,
    Forward,
    Backward,
    /// Waiting for other ranks, but not for other stages of a pipeline.
    Communication,
    /// Waiting for other stages of a pipeline.
    Bubble,
    Optimizer,
}

/// Measures one step.
#[derive(Debug)]
pub(crate) struct Watch {
    last: Instant,
    /// Seconds waited for other ranks inside phases, since some moment before the step.
    waited: f64,
    times: PhaseTimes,
}

impl Watch {
    /// Begins now, when `waited` seconds were waited before.
    pub(crate) fn start(waited: f64) -> Self {
        Self { last: Instant::now(), waited, times: PhaseTimes::default() }
    }

    /// Puts the time since the last call down to `phase`, but what was waited for other ranks since then to
    /// communication. `waited` only grows.
    pub(crate) fn spent(&mut self, phase: Phase, waited: f64) {
        let now = Instant::now();
        let whole = (now - self.last).as_secs_f64();
        let inside = match phase {
            Phase::Communication | Phase::Bubble => 0.0,
            Phase::Data | Phase::Forward | Phase::Backward | Phase::Optimizer => {
                (waited - self.waited).clamp(0.0, whole)
            }
        };
        (self.last, self.waited) = (now, waited);
        let times = &mut self.times;
        times.step += whole;
        times.communication += inside;
        let own = match phase {
            Phase::Data => &mut times.data,
            Phase::Forward => &mut times.forward,
            Phase::Backward => &mut times.backward,
            Phase::Communication => &mut times.communication,
            Phase::Bubble => &mut times.bubble,
            Phase::Optimizer => &mut times.optimizer,
        };
        *own += whole - inside;
    }

    /// Where the time went so far.
    pub(crate) fn times(&self) -> PhaseTimes {
        self.times
    }
}

/// Least time of each pass, and of a copy: stands for a slower device where schedules are studied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slowdown {
    /// Of a forward.
    pub forward: Duration,
    /// Of the part of a backward that the stage before waits for.
    pub input: Duration,
    /// Of the rest of a backward.
    pub weights: Duration,
    /// Of copying the state for a checkpoint.
    pub copy: Duration,
}

impl Slowdown {
    /// Waits until a pass that `began` has taken its least time.
    pub(crate) fn hold(&self, action: &Action, began: Instant) {
        match action {
            Action::Forward(_) => wait_until(began + self.forward),
            Action::Backward(_) => wait_until(began + self.input + self.weights),
            Action::BackwardInput(_) => wait_until(began + self.input),
            Action::BackwardWeights(_) => wait_until(began + self.weights),
            Action::Exchange { .. } | Action::ReduceGradients | Action::UpdateWeights => {}
        }
    }

    /// Waits until a copy that `began` has taken its least time.
    pub(crate) fn hold_copy(&self, began: Instant) {
        wait_until(began + self.copy);
    }
}

fn wait_until(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_belongs_to_one_phase() {
        let mut watch = Watch::start(5.0);
        let pause = Duration::from_millis(3);
        std::thread::sleep(2 * pause);
        watch.spent(Phase::Forward, 5.002);
        std::thread::sleep(pause);
        watch.spent(Phase::Bubble, 5.9);
        // What was waited inside the bubble is not counted again.
        std::thread::sleep(pause);
        watch.spent(Phase::Optimizer, 5.9);
        let times = watch.times();
        assert!((times.communication - 0.002).abs() < 1e-9, "{times:?}");
        assert!(times.forward > 0.003 && times.bubble > 0.002 && times.optimizer > 0.002, "{times:?}");
        assert!((times.parts() - times.step).abs() < 1e-9, "{times:?}");
    }
}
