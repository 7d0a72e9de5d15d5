//! The counters that lines of a program show, and the steps that they stand for.

use dtrain_recipes::line_template::Number;
use std::collections::BTreeMap;

/// Steps that a counter with fractions counts from one whole number to the next.
pub(super) const STEPS_OF_A_UNIT: f64 = 1000.0;

/// A counter as lines of one kind show it, in its own units.
struct StepCounter {
    /// What it began with, and began again with.
    first: f64,
    newest: f64,
    /// How far it went on from one line to the next.
    stride: f64,
    /// What is added to it, since it began again.
    offset: f64,
    /// Whether it has fractions, such as those of an epoch.
    has_fractions: bool,
    /// Whether it counts something of its own: lines of another kind showed another value just before.
    is_apart: bool,
    /// The largest offset of all counters when it was shown last.
    round: f64,
}

/// Where a counter is.
#[derive(Clone, Copy)]
pub(super) struct CounterPosition {
    /// As it stands in the line.
    pub(super) value: f64,
    /// The same, continued where the counter began again.
    pub(super) continued: f64,
    /// The kind of the line.
    pub(super) kind: usize,
}

/// The counters of all kinds of lines. Lines of one template, for example, are of one kind.
#[derive(Default)]
pub(super) struct StepCounters {
    of: BTreeMap<usize, StepCounter>,
    newest: Option<CounterPosition>,
}

impl StepCounters {
    /// Where the newest line is that named a step.
    pub(super) fn newest(&self) -> Option<CounterPosition> {
        self.newest
    }

    /// Whether the counter in lines of a kind has fractions.
    pub(super) fn has_fractions(&self, kind: usize) -> bool {
        self.of.get(&kind).is_some_and(|counter| counter.has_fractions)
    }

    /// Takes note that the counter in lines of a kind has fractions.
    pub(super) fn set_has_fractions(&mut self, kind: usize) {
        if let Some(counter) = self.of.get_mut(&kind) {
            counter.has_fractions = true;
        }
    }

    /// The step that a position stands for.
    pub(super) fn step(&self, position: CounterPosition) -> u64 {
        whole(position.continued * if self.has_fractions(position.kind) { STEPS_OF_A_UNIT } else { 1.0 })
    }

    /// Takes in the value of a counter. Returns where that is, and the value before where the counter began again.
    pub(super) fn count(&mut self, number: Number, kind: usize) -> (CounterPosition, Option<f64>) {
        let value = number.value;
        let furthest = self.of.values().map(|counter| counter.offset).fold(0.0, f64::max);
        let newest = self.newest;
        let other_has_fractions = newest.is_some_and(|position| self.has_fractions(position.kind));
        let counter = self.of.entry(kind).or_insert_with(|| StepCounter::new(value, furthest));
        // `1.0` of an epoch after 0.98 in another kind of line is of the same counter.
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

    /// Takes over the step that lines of another kind showed just before, where this counter is at the same value. Returns the
    /// step, continued.
    ///
    /// A counter that once disagreed counts something of its own, and none falls back by what another shows.
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

    /// Goes on to a value. Returns it, continued, and the value before where it begins again.
    fn advance(&mut self, value: f64, furthest: f64, is_later_round: bool) -> (f64, Option<f64>) {
        // It may show the same value once in each round of the others.
        let is_of_a_round = self.is_apart && value == self.newest && is_later_round;
        let falls = value < self.newest && value <= self.first.max(self.newest / 2.0);
        let begins_again = is_of_a_round || falls;
        if begins_again {
            let reached = self.newest + self.offset;
            // After 99 of a counter from 0 comes 100.
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

/// The whole number that is nearest to a value from 0 on.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "callers check the range")]
pub(super) fn whole(value: f64) -> u64 {
    value.round() as u64
}
