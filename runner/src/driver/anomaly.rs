//! Anomaly detection in a trial that has not failed: loss spikes, and the slow ranks of `straggler`.
//!
//! It only reports.

use super::straggler::{StragglerDetector, median};
use crate::reporters::Reporters;
use crate::trial_event::ControllerStatus;
use dtrain_protocol::{Assignment, Event, Rank, StampedEvent, StepFigures};
use std::collections::VecDeque;

/// The fewest losses to compare a new loss with, and the number of recent ones that are kept.
const LOSSES: (usize, usize) = (50, 100);

/// The number of spreads above the median, and of consecutive losses above that, that make a loss spike.
const LEAP: (f64, u32) = (8.0, 3);

/// Smallest spread as a fraction of the median, so that a nearly constant loss causes no spikes.
const LEAST_SPREAD: f64 = 0.005;

/// Detector of anomalies in one attempt.
#[derive(Debug, Default)]
pub struct AnomalyDetector {
    losses: VecDeque<f64>,
    /// Lowest rank that has reported each figure; only its losses count.
    reporters: Reporters,
    /// Number of consecutive losses above the threshold.
    high: u32,
    stragglers: StragglerDetector,
}

impl AnomalyDetector {
    /// Creates the detector of an attempt that is about to be launched.
    pub fn of(assignments: &[Assignment]) -> Self {
        Self { stragglers: StragglerDetector::of(assignments), ..Self::default() }
    }

    /// Returns for each rank the number of its group of equal work; empty if unknown.
    pub fn work(&self) -> &[u32] {
        self.stragglers.work()
    }

    /// Processes an event; returns an anomaly when it is first detected.
    pub fn observe(&mut self, stamped: &StampedEvent) -> Option<ControllerStatus> {
        let Event::Step(figures) = &stamped.event else { return None };
        let counts = self.reporters.counts_step(stamped.rank, figures);
        let leap = if counts { self.loss(figures) } else { None };
        leap.or_else(|| self.stragglers.observe(stamped.rank, figures.times))
    }

    fn loss(&mut self, figures: &StepFigures) -> Option<ControllerStatus> {
        let (loss, usual) = (figures.loss, median(self.losses.iter().copied()));
        let off = median(self.losses.iter().map(|known| (known - usual).abs()));
        // For a normal distribution, 1.4826 times the median absolute deviation is the standard deviation.
        let spread = (1.4826 * off).max(LEAST_SPREAD * usual.abs());
        if self.losses.len() >= LOSSES.0 && loss > usual + LEAP.0 * spread {
            self.high += 1;
            if self.high as usize >= LOSSES.0 {
                // The loss stays high: start over from the new level.
                (self.high, self.losses) = (0, VecDeque::new());
            }
            return (self.high == LEAP.1).then_some(ControllerStatus::LossSpike {
                step: figures.step,
                loss,
                median: usual,
            });
        }
        self.high = 0;
        self.losses.push_back(loss);
        if self.losses.len() > LOSSES.1 {
            self.losses.pop_front();
        }
        None
    }

    /// Returns a new long-term straggler with its description; each is returned once.
    pub(super) fn take_straggler(&mut self) -> Option<(Rank, String)> {
        self.stragglers.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::shuffle::splitmix64;
    use dtrain_protocol::{AttemptId, PhaseTimes, ResidentBytes, StepId};

    fn said(rank: u32, step: u64, loss: f64, seconds: f64) -> StampedEvent {
        let figures = StepFigures {
            step: StepId(step),
            loss,
            gradient_norm: None,
            learning_rate: 1e-3,
            elapsed: None,
            noise: None,
            tokens: 1,
            times: PhaseTimes { forward: seconds, communication: 1.0 - seconds, ..PhaseTimes::default() },
            memory_bytes: 1,
            sent_bytes: 0,
            held: ResidentBytes::default(),
        };
        let event = Event::Step(figures);
        StampedEvent { attempt: AttemptId(1), rank: Rank(rank), sequence: step, at_ms: 0, event }
    }

    /// Returns a pseudo-random number from -0.5 to 0.5.
    fn chance(seed: u64, step: u64) -> f64 {
        splitmix64(seed, step) as f64 / u64::MAX as f64 - 0.5
    }

    #[test]
    fn a_loss_that_leaps_is_told_once_and_noise_is_not() {
        let mut watch = AnomalyDetector::default();
        let curve = |step: u64| 2.0 + 6.0 / (1.0 + step as f64 / 20.0) + 0.3 * chance(1, step);
        let mut told = Vec::new();
        for step in 1..=20_000 {
            let leaps = if (15_000..15_020).contains(&step) { 4.0 } else { 0.0 };
            told.extend(watch.observe(&said(0, step, curve(step) + leaps, 0.1)));
        }
        let [ControllerStatus::LossSpike { step: StepId(15_002), loss, median: usual }] = told.as_slice()
        else {
            panic!("once, at the third of them: {told:?}")
        };
        assert!(*loss > 5.0 && *usual < 3.0);
        // A single outlier is no spike.
        assert!(
            (1..200).all(|step| watch
                .observe(&said(0, step, if step == 150 { 9.0 } else { 2.0 }, 0.1))
                .is_none())
        );
    }

    #[test]
    fn a_loss_that_leaps_is_told_where_only_the_last_rank_of_a_script_reports() {
        let mut watch = AnomalyDetector::default();
        let mut told = Vec::new();
        for step in 1..=200 {
            let mut said = said(3, step, if step > 150 { 9.0 } else { 2.0 + 0.1 * chance(1, step) }, 0.0);
            if let Event::Step(figures) = &mut said.event {
                (figures.memory_bytes, figures.times) = (0, PhaseTimes::default());
            }
            told.extend(watch.observe(&said));
        }
        assert!(matches!(told.as_slice(), [ControllerStatus::LossSpike { .. }]), "{told:?}");
    }
}
