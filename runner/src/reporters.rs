//! Reporting rank of each figure: the lowest rank that reports it.
//!
//! Any rank of a script may report. Megatron-LM, for example, prints its losses on the last rank. All ranks
//! of dtrain's own models report the same results, and those of rank 0 are stored.

use crate::ledger;
use dtrain_protocol::{Event, Rank, StampedEvent, StepFigures};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Lowest rank that has reported each figure so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reporters(BTreeMap<String, Rank>);

impl Reporters {
    /// Notes that `rank` reports the figure `name`; returns `true` if its value counts.
    pub fn counts(&mut self, name: &str, rank: Rank) -> bool {
        match self.0.get_mut(name) {
            Some(lowest) => {
                *lowest = rank.min(*lowest);
                *lowest == rank
            }
            None => {
                self.0.insert(name.to_owned(), rank);
                true
            }
        }
    }

    /// Notes that `rank` reports the figures of a step; returns `true` if its loss counts.
    pub fn counts_step(&mut self, rank: Rank, figures: &StepFigures) -> bool {
        if figures.is_of_script() { self.counts("loss", rank) } else { rank == Rank(0) }
    }

    /// Returns the results of an event that count, each with the name of its series, as in
    /// `objective.metric`.
    pub fn results<'e>(&mut self, said: &'e StampedEvent) -> Vec<(Cow<'e, str>, f64)> {
        let mut results = results(&said.event);
        results.retain(|(name, _)| self.counts(name, said.rank));
        results
    }
}

/// Returns all results in an event, each with the name of its series.
fn results(event: &Event) -> Vec<(Cow<'_, str>, f64)> {
    match event {
        Event::Step(figures) => {
            let rate = Some(figures.learning_rate).filter(|rate| !rate.is_nan());
            let seconds = Some(figures.times.step).filter(|seconds| *seconds > 0.0);
            let speed = seconds.filter(|_| figures.tokens > 0).map(|seconds| figures.tokens as f64 / seconds);
            let others = [
                ("learning_rate", rate),
                ("gradient_norm", figures.gradient_norm),
                ("step_seconds", seconds),
                ("tokens_per_second", speed),
            ];
            let others = others.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
            std::iter::once(("loss".into(), figures.loss)).chain(others).collect()
        }
        Event::Validated { loss, accuracy, .. } => {
            let accuracy = accuracy.map(|accuracy| ("valid.accuracy".into(), accuracy));
            std::iter::once(("valid.loss".into(), *loss)).chain(accuracy).collect()
        }
        Event::Metrics { figures, .. } => {
            figures.iter().map(|figure| (ledger::key_of(&figure.name), figure.value)).collect()
        }
        Event::Listening(_)
        | Event::Validating { .. }
        | Event::Notice(_)
        | Event::Ready { .. }
        | Event::Saved { .. }
        | Event::SaveFailed { .. }
        | Event::Finished { .. }
        | Event::Failed(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{AttemptId, NamedFigure, StepId};

    #[test]
    fn the_lowest_rank_that_reports_a_figure_counts() {
        let mut reporters = Reporters::default();
        let mut results = |rank, names: &[&str]| {
            let figure = |name: &&str| NamedFigure { name: (*name).into(), value: f64::from(rank) };
            let event = Event::Metrics { step: StepId(1), figures: names.iter().map(figure).collect() };
            let said = StampedEvent { attempt: AttemptId(1), rank: Rank(rank), sequence: 0, at_ms: 0, event };
            reporters.results(&said).into_iter().map(|(name, _)| name.into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(results(3, &["acc"]), ["acc"]);
        assert_eq!(results(4, &["acc", "f1"]), ["f1"]);
        assert_eq!(results(1, &["acc"]), ["acc"]);
        assert!(results(3, &["acc"]).is_empty());
        assert_eq!(results(4, &["f1"]), ["f1"]);
    }
}
