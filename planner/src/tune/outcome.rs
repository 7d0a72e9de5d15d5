//! How trials ended, as what a study learns from.

use super::space::{Space, Value};
use serde::{Deserialize, Serialize};

/// How a trial ended. A trial that failed has taught something: it is an outcome, never an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran to its end.
    Done {
        /// What is to be made small, finite.
        value: f64,
    },
    /// It has no value.
    Failed {
        /// Why.
        why: Failure,
    },
    /// It was stopped because others did better.
    Pruned {
        /// What was to be made small when it was stopped, finite.
        value: f64,
    },
}

impl Outcome {
    /// A trial that ran to its end with `value`; one whose value is no number has diverged.
    pub fn done(value: f64) -> Self {
        if value.is_finite() { Self::Done { value } } else { Self::Failed { why: Failure::Diverged } }
    }
}

/// Why a trial has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// It needed more memory than there is.
    OutOfMemory,
    /// Its loss was no longer a number.
    Diverged,
    /// No candidate with these values can be trained.
    Rejected,
    /// The machines failed; says nothing about the values.
    Lost,
}

impl Failure {
    /// Whether the values are to blame, so that those near them would fail too.
    pub fn is_of_the_values(self) -> bool {
        match self {
            Self::OutOfMemory | Self::Diverged | Self::Rejected => true,
            Self::Lost => false,
        }
    }
}

/// A trial that ended: what it tried and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// A value for every dimension of the space.
    pub values: Vec<Value>,
    /// What came of it.
    pub outcome: Outcome,
}

impl Ended {
    /// What is to be made small, of a trial that ran to its end.
    pub fn value(&self) -> Option<f64> {
        match self.outcome {
            Outcome::Done { value } => Some(value).filter(|value| value.is_finite()),
            Outcome::Failed { .. } | Outcome::Pruned { .. } => None,
        }
    }

    /// Whether trying the same again would teach nothing, chance aside.
    pub fn is_settled(&self) -> bool {
        !matches!(self.outcome, Outcome::Failed { why: Failure::Lost })
    }
}

/// What trials teach about places of a space, in the order in which they ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lessons {
    /// Places with what is to be made small there.
    pub costs: Vec<(Vec<f64>, f64)>,
    /// Places that were tried to some avail, and places that failed: whether they can be trained.
    pub feasible: Vec<(Vec<f64>, bool)>,
}

impl Lessons {
    /// What the trials teach; those that have no place in the space teach nothing.
    ///
    /// A pruned trial would have ended no better than the middle of those that ran to their end: it counts
    /// as the middle, or as what it had reached where that is worse.
    pub fn of(space: &Space, ended: &[Ended]) -> Self {
        let middle = median(ended.iter().filter_map(Ended::value).collect());
        let mut lessons = Self::default();
        for (point, trial) in ended.iter().filter_map(|trial| Some((space.point(&trial.values)?, trial))) {
            let cost = match trial.outcome {
                Outcome::Done { value } => Some(value),
                Outcome::Pruned { value } => middle.map(|middle| value.max(middle)),
                Outcome::Failed { .. } => None,
            };
            let cost = cost.filter(|cost| cost.is_finite());
            let is_feasible = match trial.outcome {
                Outcome::Done { value } => Some(value.is_finite()),
                Outcome::Pruned { .. } => Some(true),
                Outcome::Failed { why } => why.is_of_the_values().then_some(false),
            };
            lessons.costs.extend(cost.map(|cost| (point.clone(), cost)));
            lessons.feasible.extend(is_feasible.map(|is_feasible| (point, is_feasible)));
        }
        lessons
    }
}

/// The middle value, the upper one of two; `None` of nothing.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Dimension, Scale};

    fn rate(value: f64, outcome: Outcome) -> Ended {
        Ended { values: vec![Value::Real(value)], outcome }
    }

    #[test]
    fn every_end_teaches_its_lesson() {
        let scale = Scale::Log { low: 1.0, high: 100.0 };
        let space = Space::new(vec![Dimension { name: "rate".into(), scale }]);
        let failed = |why| Outcome::Failed { why };
        let ended = [
            rate(1.0, Outcome::done(3.0)),
            rate(10.0, Outcome::done(2.0)),
            rate(100.0, Outcome::done(f64::NAN)),
            rate(100.0, failed(Failure::OutOfMemory)),
            rate(10.0, failed(Failure::Lost)),
            rate(1.0, Outcome::Pruned { value: 2.5 }),
            rate(1.0, Outcome::Pruned { value: 7.0 }),
            Ended { values: vec![Value::Word("no rate".into())], outcome: Outcome::done(0.0) },
        ];
        let lessons = Lessons::of(&space, &ended);
        let places: Vec<(f64, f64)> = lessons.costs.iter().map(|(point, cost)| (point[0], *cost)).collect();
        // The trial without a place counts for the middle, 2 of {0, 2, 3}, and for nothing else.
        assert_eq!(places, [(0.0, 3.0), (0.5, 2.0), (0.0, 2.5), (0.0, 7.0)]);
        let feasible: Vec<bool> = lessons.feasible.iter().map(|(_, feasible)| *feasible).collect();
        assert_eq!(feasible, [true, true, false, false, true, true]);
        assert!(!ended[4].is_settled() && ended[3].is_settled());
    }

    #[test]
    fn outcomes_are_kept_as_words() {
        let text = |outcome: Outcome| serde_json::to_string(&outcome).expect("outcomes are plain");
        assert_eq!(text(Outcome::done(2.5)), r#"{"done":{"value":2.5}}"#);
        assert_eq!(text(Outcome::done(f64::INFINITY)), r#"{"failed":{"why":"diverged"}}"#);
    }
}
