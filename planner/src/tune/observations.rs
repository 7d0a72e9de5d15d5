//! Observations of a study: the points of its trials with costs and failures, as a surrogate model uses them.

use super::outcome::{TrialOutcome, median};
use super::space::Coordinates;
use super::study_state::StudyState;
use super::study_trial::{StudyTrial, TrialPhase};

/// The points of a search space that were tried, with the results of their trials in the order in which they
/// ended; paused and running trials follow in the order of launch. Trials whose values are not in the space
/// are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StudyObservations {
    /// Points that have a cost, which is to be minimized.
    pub costs: Vec<(Coordinates, f64)>,
    /// Points with a flag for whether they can be trained: `false` where the trial failed because of its
    /// values.
    pub feasible: Vec<(Coordinates, bool)>,
    /// Points of running trials that have no cost yet.
    pub pending: Vec<Coordinates>,
    /// Number, point and cost of each observed trial; the cost is infinite where it failed.
    pub tries: Vec<(u64, Coordinates, f64)>,
}

impl StudyObservations {
    /// Returns the observations of a study from its state.
    ///
    /// A pruned trial would probably have ended no better than the median of the completed ones: it counts
    /// with the median, or with its last value where that is worse. So does a paused trial.
    pub fn of(study_state: &StudyState) -> Self {
        let done = study_state.ended().filter_map(|(_, seen)| match seen.status {
            TrialPhase::Ended(TrialOutcome::Done { value }) => Some(value),
            _ => None,
        });
        let middle = median(done.filter(|value| value.is_finite()).collect());
        let mut observations = Self::default();
        let on_the_way =
            (0..).zip(study_state.trials()).filter(|(_, seen)| !matches!(seen.status, TrialPhase::Ended(_)));
        for (trial, seen) in study_state.ended().chain(on_the_way) {
            observations.record(trial, seen, middle);
        }
        observations
    }

    fn record(&mut self, trial: u64, seen: &StudyTrial, middle: Option<f64>) {
        let Some(place) = &seen.place else { return };
        let at_least = |value: f64| middle.map_or(value, |middle| value.max(middle));
        let cost = match &seen.status {
            TrialPhase::Ended(TrialOutcome::Done { value }) => Some(*value),
            TrialPhase::Ended(TrialOutcome::Pruned { value }) => Some(at_least(*value)),
            TrialPhase::Paused => seen.reports.last().map(|(_, value)| at_least(*value)),
            TrialPhase::Ended(TrialOutcome::Failed { .. }) => None,
            TrialPhase::Running => {
                self.pending.push(place.clone());
                return;
            }
        };
        let is_feasible = match &seen.status {
            TrialPhase::Ended(TrialOutcome::Failed { reason: why }) => {
                why.depends_on_values().then_some(false)
            }
            TrialPhase::Ended(TrialOutcome::Done { value }) => Some(value.is_finite()),
            TrialPhase::Ended(TrialOutcome::Pruned { .. }) | TrialPhase::Paused | TrialPhase::Running => {
                Some(true)
            }
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
    use crate::tune::{
        Dimension, ProposalSource, Scale, SearchSpace, Study, StudyEvent, TrialFailure, TrialResult,
        TrialValue,
    };

    #[test]
    fn every_end_teaches_its_lesson() {
        let rate = |value: f64, outcome| TrialResult { values: vec![TrialValue::Real(value)], outcome };
        let space = SearchSpace::new(vec![Dimension::new("rate", Scale::Log { low: 1.0, high: 100.0 })]);
        let failed = |why| TrialOutcome::Failed { reason: why };
        let ended = [
            rate(1.0, TrialOutcome::done(3.0)),
            rate(10.0, TrialOutcome::done(2.0)),
            rate(100.0, TrialOutcome::done(f64::NAN)),
            rate(100.0, failed(TrialFailure::OutOfMemory)),
            rate(10.0, failed(TrialFailure::Lost)),
            rate(1.0, TrialOutcome::Pruned { value: 2.5 }),
            rate(1.0, TrialOutcome::Pruned { value: 7.0 }),
            TrialResult {
                values: vec![TrialValue::Word("no rate".into())],
                outcome: TrialOutcome::done(0.0),
            },
        ];
        let mut log = StudyEvent::of(&ended);
        let launched = |trial| StudyEvent::Launched {
            trial,
            values: vec![TrialValue::Real(100.0)],
            source: ProposalSource::Random,
        };
        log.extend([launched(8), launched(9), StudyEvent::Reported { trial: 9, progress: 1, value: 1.0 }]);
        log.push(StudyEvent::Paused { trial: 9, progress: 1 });
        let observations = StudyObservations::of(&StudyState::of(&Study::new(space, 0), &log));
        let places = observations.costs.iter().map(|(place, cost)| (place[0].expect("it exists"), *cost));
        // The trial outside the space counts for the median, 2 of {0, 2, 3}, and for nothing else.
        assert_eq!(places.collect::<Vec<_>>(), [(0.0, 3.0), (0.5, 2.0), (0.0, 2.5), (0.0, 7.0), (1.0, 2.0)]);
        let feasible: Vec<bool> = observations.feasible.iter().map(|(_, feasible)| *feasible).collect();
        assert_eq!(feasible, [true, true, false, false, true, true, true]);
        assert_eq!(observations.pending, [vec![Some(1.0)]]);
        let tries: Vec<(u64, f64)> =
            observations.tries.iter().map(|(trial, _, cost)| (*trial, *cost)).collect();
        let none = f64::INFINITY;
        assert_eq!(tries, [(0, 3.0), (1, 2.0), (2, none), (3, none), (5, 2.5), (6, 7.0), (9, 2.0)]);
    }
}
