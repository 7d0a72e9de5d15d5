//! Time limit of a run: the share of the training that has passed, and the end.
//!
//! Validations and the last checkpoint count towards the limit. Progress, and with it the learning rate,
//! follows the time of the steps alone: it does not jump at a validation. The time left for steps is the
//! rest of the limit without the validations that are still due, each estimated by the last one; after a
//! wrong estimate, progress is faster or slower for the rest of the training.

use dtrain_protocol::{Assignment, StepId};
use std::time::Instant;

/// Factor by which a validation is assumed to take longer than the last one.
const MARGIN: f64 = 1.1;

/// Seconds after the time limit from which on the validation at the end uses no further samples.
const GRACE: f64 = 1.0;

/// The clock of a run with a time limit, as one rank reads it.
#[derive(Debug)]
pub(super) struct RunClock {
    began: Instant,
    /// Seconds from the start of the clock to the limit, minus the time reserved for the last checkpoint;
    /// `None` without a limit.
    left: Option<f64>,
    every: u64,
    /// Share of the training that has passed, from 0 to 1.
    share: f64,
    /// Time at which the share was computed, in seconds from the start of the clock.
    at: f64,
    /// Seconds since the share was computed that were not spent on steps.
    paused: f64,
    /// Seconds that a step takes, as a running mean.
    step: f64,
    /// True after the first step, which takes longer than others because kernels are compiled and memory
    /// is allocated.
    is_warm: bool,
    /// Seconds that a validation takes: those of the last one, or an estimate.
    validation: f64,
}

impl RunClock {
    /// Starts the clock of the run that `assignment` describes.
    pub(super) fn of(assignment: &Assignment) -> Self {
        let until = &assignment.until;
        Self {
            began: Instant::now(),
            left: until.seconds.map(|left| left - until.save_seconds),
            every: assignment.validate_every,
            share: until.elapsed().unwrap_or(0.0),
            at: 0.0,
            paused: 0.0,
            step: assignment.waits.step_seconds.unwrap_or(0.0),
            is_warm: false,
            validation: until.validation_seconds,
        }
    }

    /// Returns the share of the training that has passed when the step after `done` steps begins, from 0
    /// to 1; `None` without a limit. If it is 1, that step is the last one.
    pub(super) fn share(&mut self, done: StepId) -> Option<f64> {
        self.share_at(done, self.began.elapsed().as_secs_f64())
    }

    fn share_at(&mut self, done: StepId, now: f64) -> Option<f64> {
        self.left?;
        let took = (now - self.at - self.paused).max(0.0);
        if self.is_warm {
            self.step = if self.step > 0.0 { self.step + (took - self.step) * 0.2 } else { took };
        }
        self.is_warm = self.at > 0.0;
        (self.at, self.paused) = (now, 0.0);
        let left = self.training_left(done, now);
        // A step that leaves no time for another one is the last.
        self.share = if left <= 2.0 * self.step {
            1.0
        } else {
            self.share + (1.0 - self.share) * took / (took + left)
        };
        Some(self.share)
    }

    /// Returns the seconds that are left for steps at time `now`, after `done` steps.
    fn training_left(&self, done: StepId, now: f64) -> f64 {
        let left = self.left.unwrap_or(f64::INFINITY) - now - MARGIN * self.validation;
        let round = self.seconds_of(self.every);
        let next = if self.every == 0 { left } else { self.seconds_of(self.every - done.0 % self.every) };
        if left <= next || round <= 0.0 {
            return left;
        }
        // Validations on the way, each before the steps up to the next one.
        let later = left - next;
        let rounds = (later / (round + self.validation)).floor();
        let rest = later - rounds * (round + self.validation);
        let last = if self.is_worth(rest) { rest - self.validation } else { rest };
        next + rounds * round + last
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of steps are far below 2^52")]
    fn seconds_of(&self, steps: u64) -> f64 {
        steps as f64 * self.step
    }

    /// Returns `true` if a due validation is made when `left` seconds remain until the one at the end:
    /// more training must follow it.
    fn is_worth(&self, left: f64) -> bool {
        left >= self.validation + 0.25 * self.seconds_of(self.every)
    }

    /// Records a validation that took `seconds`; if it was not finished, they do not count as the time of
    /// a validation.
    pub(super) fn validated(&mut self, seconds: f64, is_whole: bool) {
        self.paused += seconds;
        if is_whole {
            self.validation = seconds;
        }
    }

    /// Returns `true` if a validation must end, or must not begin: the one at the end once the time is
    /// over, any other one if it would leave no time for the one at the end.
    pub(super) fn is_over(&self, is_last: bool, has_begun: bool) -> bool {
        self.is_over_at(self.began.elapsed().as_secs_f64(), is_last, has_begun)
    }

    fn is_over_at(&self, now: f64, is_last: bool, has_begun: bool) -> bool {
        let Some(end) = self.left else { return false };
        let left = end - now - MARGIN * self.validation;
        match (is_last, has_begun) {
            (true, _) => now >= end + GRACE,
            (false, false) => !self.is_worth(left),
            (false, true) => left < 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the clock of a run of 100 s with steps of a second and a validation of `validation` seconds
    /// after every tenth.
    fn clock(validation: f64) -> RunClock {
        RunClock {
            began: Instant::now(),
            left: Some(100.0),
            every: 10,
            share: 0.0,
            at: 0.0,
            paused: 0.0,
            step: 1.0,
            is_warm: false,
            validation,
        }
    }

    /// Simulates the run when each validation takes `seconds`: returns the share at each step, and the end.
    fn run(mut clock: RunClock, seconds: f64) -> (Vec<f64>, f64) {
        let (mut now, mut shares) = (0.001, Vec::new());
        for done in 0.. {
            shares.push(clock.share_at(StepId(done), now).expect("there is a limit"));
            now += 1.0;
            if shares.last() == Some(&1.0) {
                return (shares, now + seconds);
            }
            if (done + 1) % 10 == 0 && !clock.is_over_at(now, false, false) {
                now += seconds;
                clock.validated(seconds, true);
            }
        }
        unreachable!("it ends")
    }

    #[test]
    fn the_share_of_the_training_does_not_jump_at_a_validation() {
        let (shares, end) = run(clock(5.0), 5.0);
        let steps: Vec<f64> = shares.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let (last, before) = steps.split_last().expect("it took steps");
        let most = before.iter().copied().fold(0.0, f64::max);
        let mean = 1.0 / f64::from(u32::try_from(shares.len()).unwrap());
        assert!(most < 1.3 * mean && *last < 3.5 * mean, "{most} and {last} of {} steps", shares.len());
        assert!((96.0..=100.0).contains(&end), "it ended after {end} s");
    }

    #[test]
    fn a_run_ends_in_its_time_although_validations_were_planned_wrongly() {
        for (planned, real) in [(0.0, 8.0), (1.0, 8.0), (8.0, 1.0), (5.0, 5.4)] {
            let (shares, end) = run(clock(planned), real);
            assert!((90.0..=101.0).contains(&end), "{planned} s for {real} s: it ended after {end} s");
            assert!(shares.windows(2).all(|pair| pair[0] < pair[1]), "{shares:?}");
        }
    }

    #[test]
    fn a_slow_first_step_does_not_end_a_run() {
        // With a planned step time, and without.
        for step in [1.0, 0.0] {
            let mut clock = RunClock { step, ..clock(1.0) };
            let mut now = 0.001;
            clock.share_at(StepId(0), now);
            now += 75.0;
            let mut done = 1;
            while clock.share_at(StepId(done), now) != Some(1.0) {
                (done, now) = (done + 1, now + 1.0);
            }
            assert!((90.0..=101.0).contains(&now), "{step} s: it ended after {done} steps and {now} s");
        }
    }

    #[test]
    fn a_validation_that_leaves_no_time_for_the_last_one_is_not_begun() {
        let clock = clock(5.0);
        assert!(!clock.is_over_at(80.0, false, false));
        assert!(clock.is_over_at(90.0, false, false) && !clock.is_over_at(90.0, false, true));
        assert!(clock.is_over_at(95.0, false, true) && !clock.is_over_at(95.0, true, true));
        assert!(!clock.is_over_at(100.5, true, true) && clock.is_over_at(101.5, true, true));
    }

    #[test]
    fn without_a_limit_nothing_ends() {
        let mut clock = RunClock { left: None, ..clock(5.0) };
        assert_eq!(clock.share_at(StepId(3), 1e9), None);
        assert!(!clock.is_over_at(1e9, true, true) && !clock.is_over_at(1e9, false, true));
    }
}
