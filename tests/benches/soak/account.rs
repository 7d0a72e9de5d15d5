//! What became of the time.

use super::shared::Step;
use std::collections::BTreeMap;

/// How many times the usual a step may take and still count in full: beyond that it was held up.
const HELD_UP: f64 = 2.0;

/// What became of the time between two moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    /// Seconds from the one to the other.
    pub(crate) seconds: f64,
    /// Seconds in steps that count: those that no later attempt did again.
    pub(crate) effective: f64,
    /// Steps that count.
    pub(crate) steps: usize,
    /// Steps that were done and then done again.
    pub(crate) again: usize,
    /// Seconds that a step usually takes.
    pub(crate) usual: f64,
}

impl Account {
    /// Of steps in the order in which they were completed.
    pub(crate) fn of(steps: &[Step], from_ms: u64, until_ms: u64) -> Self {
        let lives: BTreeMap<u64, u64> = steps.iter().map(|step| (step.number, step.life)).collect();
        let counts = |step: &Step| lives[&step.number] == step.life;
        let is_within = |step: &Step| step.at_ms > from_ms && step.at_ms <= until_ms;
        let mut gaps: Vec<f64> = steps.windows(2).filter_map(|pair| gap(&pair[0], &pair[1])).collect();
        gaps.sort_by(f64::total_cmp);
        let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(0.0);
        let took = |pair: &[Step]| gap(&pair[0], &pair[1]).map_or(usual, |gap| gap.min(HELD_UP * usual));
        let counted = steps.windows(2).filter(|pair| is_within(&pair[1]) && counts(&pair[1]));
        let (count, effective) =
            counted.fold((0, 0.0), |(count, seconds), pair| (count + 1, seconds + took(pair)));
        let all = steps.iter().filter(|step| is_within(step)).count();
        let seconds = seconds(until_ms - from_ms);
        Self { seconds, effective, steps: count, again: all - count, usual }
    }

    /// Share of the time, measured by the steps that count, each with what it took.
    pub(crate) fn share(&self) -> f64 {
        self.effective / self.seconds
    }

    /// The same, each with what steps usually take.
    pub(crate) fn share_at_usual_speed(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "thousands of steps")]
        let steps = self.steps as f64;
        steps * self.usual / self.seconds
    }
}

/// What a fault did to the steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    /// The longest time without a completed step.
    pub(crate) seconds: f64,
    /// Steps that were done again.
    pub(crate) again: usize,
}

impl Loss {
    /// Of a fault that struck then.
    pub(crate) fn since(steps: &[Step], struck_ms: u64) -> Self {
        let first = steps.iter().position(|step| step.at_ms > struck_ms).unwrap_or(steps.len());
        let (before, after) = steps.split_at(first);
        let mut most = before.iter().map(|step| step.number).max().unwrap_or(0);
        let mut again = 0;
        for step in after {
            again += usize::from(step.number <= most);
            most = most.max(step.number);
        }
        let from = before.last().map_or(struck_ms, |step| step.at_ms);
        let moments: Vec<u64> = std::iter::once(from).chain(after.iter().map(|step| step.at_ms)).collect();
        let longest = moments.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
        Self { seconds: seconds(longest.unwrap_or(0)), again }
    }
}

/// Seconds of a step, by that before it in the same life; a step that was not heard of counts for half.
fn gap(before: &Step, step: &Step) -> Option<f64> {
    let steps = step.number.checked_sub(before.number).filter(|steps| *steps > 0)?;
    #[expect(clippy::cast_precision_loss, reason = "few steps")]
    let each = seconds(step.at_ms.saturating_sub(before.at_ms)) / steps as f64;
    (before.life == step.life).then_some(each)
}

#[expect(clippy::cast_precision_loss, reason = "some days")]
fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1e3
}
