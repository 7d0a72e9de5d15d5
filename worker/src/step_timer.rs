//! Step timer: divides the time of a step into phases without gaps.
//!
//! Waiting for other pipeline stages is *bubble*: in an `Exchange`, and at the end of the step for the
//! slowest stage. All other waiting, also in the middle of a pass, is *communication*.
//!
//! A device only queues its work, and the host would count its time wherever it happens to wait for it. So
//! in some steps the host waits for the device at every border of phases, and the time of all others is
//! divided as in the last such step.

use crate::device::is_host;
use burn::tensor::Device;
use dtrain_protocol::{Action, PhaseTimes};
use std::time::{Duration, Instant};

/// A phase of a train step, to which time is assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepPhase {
    Data,
    Forward,
    Backward,
    /// Waiting for other ranks, but not for other stages of a pipeline.
    Communication,
    /// Waiting for other stages of a pipeline.
    Bubble,
    Optimizer,
}

/// A timer that divides one step into phases.
#[derive(Debug)]
pub(crate) struct StepTimer {
    last: Instant,
    /// Seconds waited for other ranks inside phases, since some time before the step.
    waited: f64,
    times: PhaseTimes,
}

impl StepTimer {
    /// Starts the timer, with `waited` seconds of earlier waiting.
    pub(crate) fn start(waited: f64) -> Self {
        Self { last: Instant::now(), waited, times: PhaseTimes::default() }
    }

    /// Counts the time since the last call as `phase`, except waiting for other ranks, which counts as
    /// communication. `waited` only grows.
    pub(crate) fn record_phase(&mut self, phase: StepPhase, waited: f64) {
        let now = Instant::now();
        let whole = (now - self.last).as_secs_f64();
        let inside = match phase {
            StepPhase::Communication | StepPhase::Bubble => 0.0,
            StepPhase::Data | StepPhase::Forward | StepPhase::Backward | StepPhase::Optimizer => {
                (waited - self.waited).clamp(0.0, whole)
            }
        };
        (self.last, self.waited) = (now, waited);
        let times = &mut self.times;
        times.step += whole;
        times.communication += inside;
        let own = match phase {
            StepPhase::Data => &mut times.data,
            StepPhase::Forward => &mut times.forward,
            StepPhase::Backward => &mut times.backward,
            StepPhase::Communication => &mut times.communication,
            StepPhase::Bubble => &mut times.bubble,
            StepPhase::Optimizer => &mut times.optimizer,
        };
        *own += whole - inside;
    }

    /// Returns the time spent in each phase so far.
    pub(crate) fn times(&self) -> PhaseTimes {
        self.times
    }
}

/// Number of steps of a device between two steps whose phases are timed.
const TIMED_EVERY: u64 = 50;

/// A clock that waits until a device is idle, and divides the time of its steps by phases.
pub(crate) struct DeviceClock {
    /// Function that waits for the device; `None` if tensors are on the host, whose operations end before
    /// they return.
    wait: Option<Box<dyn FnMut()>>,
    /// Number of steps so far.
    steps: u64,
    /// Share of each phase in the last timed step; their sum is 1.
    shares: Option<PhaseTimes>,
}

impl DeviceClock {
    /// Creates the clock of a rank whose tensors are on `device`.
    pub(crate) fn of(device: &Device) -> Self {
        if is_host(device) {
            return Self::with(None);
        }
        let device = device.clone().inner();
        // Errors appear when results are read.
        Self::with(Some(Box::new(move || drop(device.sync()))))
    }

    /// Creates a clock that calls `wait` to wait for the device.
    pub(crate) fn with(wait: Option<Box<dyn FnMut()>>) -> Self {
        Self { wait, steps: 0, shares: None }
    }

    /// Returns `true` if the device only queues operations, so that timing them needs a wait.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.wait.is_some()
    }

    /// Waits until all queued work of the device is done.
    pub(crate) fn wait(&mut self) {
        if let Some(wait) = &mut self.wait {
            wait();
        }
    }

    /// Begins a step; returns `true` if its phases are timed, with a [`DeviceClock::wait`] at the end of
    /// each: the first two steps, of which the first also compiles kernels, and some later ones.
    pub(crate) fn begin_step(&mut self) -> bool {
        let step = self.steps;
        self.steps += 1;
        self.is_asynchronous() && (step == 1 || step.is_multiple_of(TIMED_EVERY))
    }

    /// Ends a step and returns its time by phases: that `seen` by the host if phases were timed or the host
    /// computes, otherwise divided as in the last timed step.
    pub(crate) fn end_step(&mut self, seen: PhaseTimes, is_timed: bool) -> PhaseTimes {
        if is_timed && seen.step > 0.0 {
            self.shares = Some(seen.scaled(seen.step.recip()));
        }
        match self.shares {
            Some(shares) if !is_timed => shares.scaled(seen.step),
            _ => seen,
        }
    }
}

/// Minimum durations of passes and of a copy, which simulate a slower device in tests and studies of
/// schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slowdown {
    /// Minimum duration of a forward pass.
    pub forward: Duration,
    /// Minimum duration of the part of a backward that the stage before waits for.
    pub input: Duration,
    /// Minimum duration of the rest of a backward.
    pub weights: Duration,
    /// Minimum duration of a forward pass of a validation.
    pub validation: Duration,
    /// Minimum duration of copying the state for a checkpoint.
    pub copy: Duration,
}

impl Slowdown {
    /// Waits until `action`, a pass that began at `began`, has taken its minimum time.
    pub(crate) fn hold(&self, action: &Action, began: Instant) {
        match action {
            Action::Forward(_) => wait_until(began + self.forward),
            Action::Backward(_) => wait_until(began + self.input + self.weights),
            Action::BackwardInput(_) => wait_until(began + self.input),
            Action::BackwardWeights(_) => wait_until(began + self.weights),
            Action::Exchange { .. } | Action::ReduceGradients | Action::UpdateWeights => {}
        }
    }

    /// Waits until a pass of a validation that began at `began` has taken its minimum time.
    pub(crate) fn hold_validation(&self, began: Instant) {
        wait_until(began + self.validation);
    }

    /// Waits until a copy that began at `began` has taken its minimum time.
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
        let mut watch = StepTimer::start(5.0);
        let pause = Duration::from_millis(3);
        std::thread::sleep(2 * pause);
        watch.record_phase(StepPhase::Forward, 5.002);
        std::thread::sleep(pause);
        watch.record_phase(StepPhase::Bubble, 5.9);
        // Waiting inside the bubble is not counted twice.
        std::thread::sleep(pause);
        watch.record_phase(StepPhase::Optimizer, 5.9);
        let times = watch.times();
        assert!((times.communication - 0.002).abs() < 1e-9, "{times:?}");
        assert!(times.forward > 0.003 && times.bubble > 0.002 && times.optimizer > 0.002, "{times:?}");
        assert!((times.parts() - times.step).abs() < 1e-9, "{times:?}");
    }

    fn phases(forward: f64, backward: f64, optimizer: f64) -> PhaseTimes {
        let step = forward + backward + optimizer;
        PhaseTimes { step, forward, backward, optimizer, ..PhaseTimes::default() }
    }

    #[test]
    fn steps_between_those_that_are_timed_are_divided_as_the_last_of_them() {
        let mut clock = DeviceClock::with(Some(Box::new(|| ())));
        let mut step = |seen| {
            let is_timed = clock.begin_step();
            (is_timed, clock.end_step(seen, is_timed))
        };
        assert_eq!(step(phases(8.0, 1.0, 1.0)), (true, phases(8.0, 1.0, 1.0)), "kernels are compiled");
        assert_eq!(step(phases(1.0, 2.0, 1.0)), (true, phases(1.0, 2.0, 1.0)));
        // The host counts all of the time at the read of the norm.
        for _ in 2..TIMED_EVERY {
            assert_eq!(step(phases(0.0, 0.0, 8.0)), (false, phases(2.0, 4.0, 2.0)));
        }
        assert_eq!(step(phases(1.0, 1.0, 2.0)), (true, phases(1.0, 1.0, 2.0)));
        assert_eq!(step(phases(0.0, 0.0, 4.0)), (false, phases(1.0, 1.0, 2.0)));
    }

    #[test]
    fn what_the_host_computes_is_told_as_it_was_seen() {
        let mut clock = DeviceClock::of(&Device::flex());
        for seen in [phases(1.0, 2.0, 3.0), phases(3.0, 2.0, 1.0)] {
            assert!(!clock.begin_step());
            assert_eq!(clock.end_step(seen, false), seen);
        }
    }
}
