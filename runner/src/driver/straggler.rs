//! Detection of stragglers: ranks that are slower than others with equal work.
//!
//! It only reports. A rank that stays slow becomes a strike against its host, which later launches may leave
//! out.

use crate::trial_event::ControllerStatus;
use dtrain_protocol::{Assignment, PhaseTimes, Rank};
use std::collections::BTreeMap;

/// Number of steps in a window over which ranks are compared.
const STEPS: usize = 50;

/// A rank is slow if its time is more than this multiple of the median of its peers.
const SLOW: f64 = 1.3;

/// Number of slow windows before a rank becomes a strike against its host; then again at every doubling.
const SLOW_WINDOWS: u32 = 4;

/// Detector of stragglers in one attempt.
#[derive(Debug, Default)]
pub(super) struct StragglerDetector {
    /// For each rank the number of its group of equal work; empty if unknown.
    work: Vec<u32>,
    /// Seconds that each rank computed in each step of the current window.
    computed: BTreeMap<Rank, Vec<f64>>,
    /// Number of slow windows of each rank.
    slow: BTreeMap<Rank, u32>,
    /// The rank that has just become a long-term straggler, with a description; `None` once the controller
    /// took it.
    long_slow: Option<(Rank, String)>,
}

impl StragglerDetector {
    /// Creates the detector of an attempt that is about to be launched.
    pub(super) fn of(assignments: &[Assignment]) -> Self {
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
    pub(super) fn work(&self) -> &[u32] {
        &self.work
    }

    /// Processes the phase times of one step of `rank`; returns a straggler when it is first detected.
    pub(super) fn observe(&mut self, rank: Rank, times: PhaseTimes) -> Option<ControllerStatus> {
        let kind = *self.work.get(rank.0 as usize)?;
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

    /// Returns a new long-term straggler with its description; each is returned once.
    pub(super) fn take(&mut self) -> Option<(Rank, String)> {
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
pub(super) fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = numbers.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::shuffle::splitmix64;

    fn computed(seconds: f64) -> PhaseTimes {
        PhaseTimes { forward: seconds, communication: 1.0 - seconds, ..PhaseTimes::default() }
    }

    /// Returns a pseudo-random number from -0.5 to 0.5.
    fn chance(seed: u64, step: u64) -> f64 {
        splitmix64(seed, step) as f64 / u64::MAX as f64 - 0.5
    }

    #[test]
    fn the_slow_one_of_those_with_the_same_work_is_told_and_no_other() {
        let watching = |slow: Option<u32>| {
            // Two stages, the second computes twice as long; three replicas.
            let mut watch =
                StragglerDetector { work: vec![0, 0, 0, 1, 1, 1], ..StragglerDetector::default() };
            let mut told = Vec::new();
            for step in 1..=400 {
                for rank in 0..6 {
                    let usual = if rank < 3 { 0.1 } else { 0.2 };
                    let factor = if slow == Some(rank) && step > 100 { 1.5 } else { 1.0 };
                    let seconds = usual * factor * (1.0 + 0.2 * chance(u64::from(rank), step));
                    told.extend(watch.observe(Rank(rank), computed(seconds)));
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
        let mut watch = StragglerDetector { work: vec![0, 0, 0], ..StragglerDetector::default() };
        let mut told = Vec::new();
        for step in 1..=2000 {
            for rank in 0..3 {
                watch.observe(Rank(rank), computed(if rank == 1 { 0.15 } else { 0.1 }));
                told.extend(watch.take().map(|(rank, detail)| (rank.0, step, detail)));
            }
        }
        let at: Vec<(u32, u64)> = told.iter().map(|(rank, step, _)| (*rank, *step)).collect();
        assert_eq!(at, [(1, 200), (1, 400), (1, 800), (1, 1600)], "{told:?}");
        assert!(told[0].2.contains("1.5 times"), "{told:?}");
    }
}
