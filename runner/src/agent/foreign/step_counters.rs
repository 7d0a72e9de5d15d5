//! Counters in a program's output lines, and the steps that they represent.

use dtrain_recipes::line_template::Number;
use std::collections::BTreeMap;

/// Steps per unit of a fractional counter, such as an epoch.
pub(super) const STEPS_OF_A_UNIT: f64 = 1000.0;

/// The step counter in the output lines of one kind, in its own units.
struct StepCounter {
    /// The counter's first value, also after a restart of the counter.
    first: f64,
    newest: f64,
    /// Difference between the counter's last two values.
    stride: f64,
    /// Offset added to the counter's values since it restarted.
    offset: f64,
    /// True if the counter's values have fractions, as an epoch may.
    has_fractions: bool,
    /// True if the counter is independent: another kind of line showed another value at the same time.
    is_apart: bool,
    /// The largest offset among all counters when this one last had a value.
    round: f64,
}

/// A value of a counter, with its place in the run.
#[derive(Clone, Copy)]
pub(super) struct CounterPosition {
    /// The value as printed in the line.
    pub(super) value: f64,
    /// The value, continued across restarts of the counter.
    pub(super) continued: f64,
    /// Index of the kind of line that has the value.
    pub(super) kind: usize,
}

/// The step counters of all kinds of lines; the lines of one template are of one kind.
#[derive(Default)]
pub(super) struct StepCounters {
    of: BTreeMap<usize, StepCounter>,
    newest: Option<CounterPosition>,
}

impl StepCounters {
    /// Returns the position of the newest line with a step.
    pub(super) fn newest(&self) -> Option<CounterPosition> {
        self.newest
    }

    /// Returns `true` if the counter in lines of this kind has fractions.
    pub(super) fn has_fractions(&self, kind: usize) -> bool {
        self.of.get(&kind).is_some_and(|counter| counter.has_fractions)
    }

    /// Marks the counter in lines of this kind as fractional.
    pub(super) fn set_has_fractions(&mut self, kind: usize) {
        if let Some(counter) = self.of.get_mut(&kind) {
            counter.has_fractions = true;
        }
    }

    /// Converts a position of a counter to a number of steps.
    pub(super) fn step(&self, position: CounterPosition) -> u64 {
        whole(position.continued * if self.has_fractions(position.kind) { STEPS_OF_A_UNIT } else { 1.0 })
    }

    /// Records a counter's value. Returns its position and, if the counter restarted, the value before the
    /// restart.
    pub(super) fn count(&mut self, number: Number, kind: usize) -> (CounterPosition, Option<f64>) {
        let value = number.value;
        let furthest = self.of.values().map(|counter| counter.offset).fold(0.0, f64::max);
        let newest = self.newest;
        let other_has_fractions = newest.is_some_and(|position| self.has_fractions(position.kind));
        let counter = self.of.entry(kind).or_insert_with(|| StepCounter::new(value, furthest));
        // `1.0` of an epoch after 0.98 in another kind of line is the same counter.
        counter.has_fractions |= value.fract() != 0.0 || (number.has_decimals && other_has_fractions);
        let is_later_round = std::mem::replace(&mut counter.round, furthest) < furthest;
        let joined = newest
            .filter(|position| position.kind != kind)
            .and_then(|position| counter.adopt_value(value, position));
        counter.has_fractions |= joined.is_some() && other_has_fractions;
        let (continued, before) = joined
            .map_or_else(|| counter.advance(value, furthest, is_later_round), |continued| (continued, None));
        let position = CounterPosition { value, continued, kind };
        self.newest = Some(position);
        (position, before)
    }
}

impl StepCounter {
    fn new(value: f64, furthest: f64) -> Self {
        Self {
            first: value,
            newest: value,
            stride: 0.0,
            offset: 0.0,
            has_fractions: false,
            is_apart: false,
            round: furthest,
        }
    }

    /// Takes over the position of another kind of line if its value is the same; returns the continued value.
    ///
    /// A counter that once differed is one of its own. None moves back because of another.
    fn adopt_value(&mut self, value: f64, other: CounterPosition) -> Option<f64> {
        self.is_apart |= other.value != value;
        let falls_back = value < self.newest && other.continued <= self.newest + self.offset;
        if self.is_apart || falls_back {
            return None;
        }
        if value < self.newest {
            self.first = value;
        }
        (self.newest, self.offset) = (value, other.continued - value);
        Some(other.continued)
    }

    /// Advances the counter to a value. Returns the continued value and, if the counter restarted, the value
    /// before.
    fn advance(&mut self, value: f64, furthest: f64, is_later_round: bool) -> (f64, Option<f64>) {
        // A separate counter may repeat a value once in each round of the others.
        let is_of_a_round = self.is_apart && value == self.newest && is_later_round;
        let falls = value < self.newest && value <= self.first.max(self.newest / 2.0);
        let begins_again = is_of_a_round || falls;
        if begins_again {
            let reached = self.newest + self.offset;
            // A counter that starts at 0 continues with 100 after 99.
            let gap = if value == 0.0 { self.stride } else { 0.0 };
            let is_known = furthest > self.offset && furthest + value > reached;
            self.offset = if is_known { furthest } else { reached + gap };
            self.first = value;
        } else if value > self.newest {
            self.stride = value - self.newest;
        }
        let before = std::mem::replace(&mut self.newest, value);
        (value + self.offset, begins_again.then_some(before))
    }
}

/// Returns the whole number nearest to a value of at least 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "callers check the range")]
pub(super) fn whole(value: f64) -> u64 {
    value.round() as u64
}
