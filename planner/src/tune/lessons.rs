//! What the trials of a study teach about places of its space.

use super::outcome::{Outcome, median};
use super::space::Place;
use super::standing::{Seen, Standing, Status};

/// What trials teach about places of a space, in the order in which they ended; those that are paused or run follow in the order
/// of launch. Trials that have no place in the space teach nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lessons {
    /// Places with what is to be made small there.
    pub costs: Vec<(Place, f64)>,
    /// Places that were tried to some avail, and places that failed: whether they can be trained.
    pub feasible: Vec<(Place, bool)>,
    /// Places of trials that run and have no cost yet.
    pub pending: Vec<Place>,
    /// What came of each place that says something: the trial, the place, and its cost, infinite where it failed.
    pub tries: Vec<(u64, Place, f64)>,
}

impl Lessons {
    /// What a study teaches that stands so.
    ///
    /// A pruned trial would have ended no better than the middle of those that ran to their end: it counts as the middle, or
    /// as what it had reached where that is worse. So does one that is paused.
    pub fn of(standing: &Standing) -> Self {
        let done = standing.ended().filter_map(|(_, seen)| match seen.status {
            Status::Ended(Outcome::Done { value }) => Some(value),
            _ => None,
        });
        let middle = median(done.filter(|value| value.is_finite()).collect());
        let mut lessons = Self::default();
        let on_the_way =
            (0..).zip(standing.trials()).filter(|(_, seen)| !matches!(seen.status, Status::Ended(_)));
        for (trial, seen) in standing.ended().chain(on_the_way) {
            lessons.learn(trial, seen, middle);
        }
        lessons
    }

    fn learn(&mut self, trial: u64, seen: &Seen, middle: Option<f64>) {
        let Some(place) = &seen.place else { return };
        let at_least = |value: f64| middle.map_or(value, |middle| value.max(middle));
        let cost = match &seen.status {
            Status::Ended(Outcome::Done { value }) => Some(*value),
            Status::Ended(Outcome::Pruned { value }) => Some(at_least(*value)),
            Status::Paused => seen.reports.last().map(|(_, value)| at_least(*value)),
            Status::Ended(Outcome::Failed { .. }) => None,
            Status::Running => {
                self.pending.push(place.clone());
                return;
            }
        };
        let is_feasible = match &seen.status {
            Status::Ended(Outcome::Failed { why }) => why.is_of_the_values().then_some(false),
            Status::Ended(Outcome::Done { value }) => Some(value.is_finite()),
            Status::Ended(Outcome::Pruned { .. }) | Status::Paused | Status::Running => Some(true),
        };
        let cost = cost.filter(|cost| cost.is_finite());
        if let Some(is_feasible) = is_feasible {
            let cost = cost.filter(|_| is_feasible).unwrap_or(f64::INFINITY);
            self.tries.push((trial, place.clone(), cost));
        }
        self.costs.extend(cost.map(|cost| (place.clone(), cost)));
        self.feasible.extend(is_feasible.map(|is_feasible| (place.clone(), is_feasible)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Dimension, Ended, Failure, Scale, Source, Space, Study, StudyEvent, Value};

    #[test]
    fn every_end_teaches_its_lesson() {
        let rate = |value: f64, outcome| Ended { values: vec![Value::Real(value)], outcome };
        let space = Space::new(vec![Dimension::new("rate", Scale::Log { low: 1.0, high: 100.0 })]);
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
        let mut log = StudyEvent::of(&ended);
        let launched =
            |trial| StudyEvent::Launched { trial, values: vec![Value::Real(100.0)], source: Source::Random };
        log.extend([launched(8), launched(9), StudyEvent::Reported { trial: 9, at: 1, value: 1.0 }]);
        log.push(StudyEvent::Paused { trial: 9, at: 1 });
        let lessons = Lessons::of(&Standing::of(&Study::new(space, 0), &log));
        let places = lessons.costs.iter().map(|(place, cost)| (place[0].expect("it exists"), *cost));
        // The trial without a place counts for the middle, 2 of {0, 2, 3}, and for nothing else.
        assert_eq!(places.collect::<Vec<_>>(), [(0.0, 3.0), (0.5, 2.0), (0.0, 2.5), (0.0, 7.0), (1.0, 2.0)]);
        let feasible: Vec<bool> = lessons.feasible.iter().map(|(_, feasible)| *feasible).collect();
        assert_eq!(feasible, [true, true, false, false, true, true, true]);
        assert_eq!(lessons.pending, [vec![Some(1.0)]]);
        let tries: Vec<(u64, f64)> = lessons.tries.iter().map(|(trial, _, cost)| (*trial, *cost)).collect();
        let none = f64::INFINITY;
        assert_eq!(tries, [(0, 3.0), (1, 2.0), (2, none), (3, none), (5, 2.5), (6, 7.0), (9, 2.0)]);
    }
}
