//! Anomaly detection in a trial that has not failed: loss spikes, and stragglers (ranks slower than others
//! with equal work).
//!
//! It only reports. A rank that stays slow becomes a strike against its host, which later launches may leave
//! out.

use crate::reporters::Reporters;
use crate::trial_event::ControllerStatus;
use dtrain_protocol::{Assignment, Event, Rank, StampedEvent, StepFigures};
use std::collections::{BTreeMap, VecDeque};

/// Fewest and most recent losses that a new loss is compared with.
const LOSSES: (usize, usize) = (50, 100);

/// Spreads above the median, and losses in a row above that, that make a spike.
const LEAP: (f64, u32) = (8.0, 3);

/// Smallest spread as a fraction of the median, so that a nearly constant loss causes no spikes.
const LEAST_SPREAD: f64 = 0.005;

/// Steps in a window over which ranks are compared.
const STEPS: usize = 50;

/// Ratio to the median of its peers from which a rank is slow.
const SLOW: f64 = 1.3;

/// Slow windows before a rank becomes a strike against its host; then again at every doubling.
const SLOW_WINDOWS: u32 = 4;

/// Anomaly detector of one attempt.
#[derive(Debug, Default)]
pub struct AnomalyDetector {
    losses: VecDeque<f64>,
    /// Rank whose losses count.
    reporters: Reporters,
    /// Consecutive losses above the threshold.
    high: u32,
    /// For each rank the number of its group of equal work; empty if unknown.
    work: Vec<u32>,
    /// Seconds that each rank computed in each of the last steps.
    computed: BTreeMap<Rank, Vec<f64>>,
    /// Number of slow windows of each rank.
    slow: BTreeMap<Rank, u32>,
    /// Rank that has become a long-term straggler, with a description; taken by the controller.
    long_slow: Option<(Rank, String)>,
}

impl AnomalyDetector {
    /// Returns a detector for an attempt that is about to be launched.
    pub fn of(assignments: &[Assignment]) -> Self {
        let mut kinds: Vec<&Assignment> = Vec::new();
        let mut number = |one| {
            let known = kinds.iter().position(|other| is_same_work(other, one));
            let index = known.unwrap_or_else(|| {
                kinds.push(one);
                kinds.len() - 1
            });
            u32::try_from(index).unwrap_or(u32::MAX)
        };
        Self { work: assignments.iter().map(&mut number).collect(), ..Self::default() }
    }

    /// Returns for each rank the number of its group of equal work; empty if unknown.
    pub fn work(&self) -> &[u32] {
        &self.work
    }

    /// Processes an event; returns an anomaly when it is first detected.
    pub fn observe(&mut self, stamped: &StampedEvent) -> Option<ControllerStatus> {
        let Event::Step(figures) = &stamped.event else { return None };
        let counts = self.reporters.counts_step(stamped.rank, figures);
        let leap = if counts { self.loss(figures) } else { None };
        leap.or_else(|| self.compute(stamped.rank, figures))
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

    fn compute(&mut self, rank: Rank, figures: &StepFigures) -> Option<ControllerStatus> {
        let kind = *self.work.get(rank.0 as usize)?;
        let times = figures.times;
        let own = times.data + times.forward + times.backward + times.optimizer;
        self.computed.entry(rank).or_default().push(own);
        // The last rank of a group to complete the window triggers the comparison.
        if self.computed[&rank].len() < STEPS {
            return None;
        }
        let alike: Vec<Rank> = (0u32..)
            .zip(&self.work)
            .filter(|(_, other)| **other == kind)
            .map(|(rank, _)| Rank(rank))
            .collect();
        let is_whole = |rank: &Rank| self.computed.get(rank).is_some_and(|all| all.len() >= STEPS);
        if !alike.iter().all(is_whole) {
            return None;
        }
        let middles: Vec<(Rank, f64)> = alike
            .into_iter()
            .map(|rank| (rank, median(self.computed.remove(&rank).into_iter().flatten())))
            .collect();
        let usual = median(middles.iter().map(|(_, middle)| *middle));
        let slowest = middles.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
        let (rank, seconds) = slowest;
        if seconds <= SLOW * usual {
            return None;
        }
        let windows = self.slow.entry(rank).or_default();
        *windows += 1;
        if *windows >= SLOW_WINDOWS && windows.is_power_of_two() {
            let steps = *windows as usize * STEPS;
            let factor = seconds / usual;
            let detail = format!("rank {rank} took {factor:.1} times as long as its like, in {steps} steps");
            self.long_slow = Some((rank, detail));
        }
        (*windows == 1).then_some(ControllerStatus::Straggler { rank, seconds, median: usual })
    }

    /// Returns a new long-term straggler with its description, once.
    pub(super) fn take_straggler(&mut self) -> Option<(Rank, String)> {
        self.long_slow.take()
    }
}

/// Returns `true` if two ranks do equal work, on other samples or other parts of equal size.
fn is_same_work(one: &Assignment, other: &Assignment) -> bool {
    let share = |a: &Assignment| a.training.share.end - a.training.share.start;
    one.chunks == other.chunks
        && share(one) == share(other)
        && one.placement.device == other.placement.device
        && one.placement.threads == other.placement.threads
}

/// Returns the lower median; NaN if there are no numbers.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = numbers.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
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

    #[test]
    fn the_slow_one_of_those_with_the_same_work_is_told_and_no_other() {
        let watching = |slow: Option<u32>| {
            // Two stages, the second computes twice as long; three replicas.
            let mut watch = AnomalyDetector { work: vec![0, 0, 0, 1, 1, 1], ..AnomalyDetector::default() };
            let mut told = Vec::new();
            for step in 1..=400 {
                for rank in 0..6 {
                    let usual = if rank < 3 { 0.1 } else { 0.2 };
                    let factor = if slow == Some(rank) && step > 100 { 1.5 } else { 1.0 };
                    let seconds = usual * factor * (1.0 + 0.2 * chance(u64::from(rank), step));
                    told.extend(watch.observe(&said(rank, step, 1.0, seconds)));
                }
            }
            told
        };
        assert_eq!(watching(None), []);
        for slow in 0..6 {
            let told = watching(Some(slow));
            assert!(
                matches!(told.as_slice(), [ControllerStatus::Straggler { rank, .. }] if rank.0 == slow),
                "{slow}: {told:?}"
            );
        }
    }

    #[test]
    fn a_rank_that_is_slow_for_long_is_held_against_its_host_ever_more_rarely() {
        let mut watch = AnomalyDetector { work: vec![0, 0, 0], ..AnomalyDetector::default() };
        let mut told = Vec::new();
        for step in 1..=2000 {
            for rank in 0..3 {
                watch.observe(&said(rank, step, 1.0, if rank == 1 { 0.15 } else { 0.1 }));
                told.extend(watch.take_straggler().map(|(rank, detail)| (rank.0, step, detail)));
            }
        }
        let at: Vec<(u32, u64)> = told.iter().map(|(rank, step, _)| (*rank, *step)).collect();
        assert_eq!(at, [(1, 200), (1, 400), (1, 800), (1, 1600)], "{told:?}");
        assert!(told[0].2.contains("1.5 times"), "{told:?}");
    }
}
