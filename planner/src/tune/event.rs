//! What happens in a study, one event after the other: the only thing a study remembers.

use super::outcome::{TrialOutcome, TrialResult};
use super::solver::FinishReason;
use super::value::TrialValue;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What happened in a study, in order. The ledger keeps one row for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyEvent {
    /// A trial was begun.
    Launched {
        /// Its number, from 0, in the order of launch.
        trial: u64,
        /// A value for every dimension of the space.
        values: Vec<TrialValue>,
        /// Why it is tried.
        source: ProposalSource,
    },
    /// A trial measured itself on its way.
    Reported {
        /// Which.
        trial: u64,
        /// Units of training done: steps, epochs, tokens; the same for all trials of a study.
        progress: u64,
        /// What is to be made small. Where it is not finite, JSON has `null`.
        #[serde(serialize_with = "serialize_finite", deserialize_with = "deserialize_nullable")]
        value: f64,
    },
    /// A trial was stopped at a rung and can be resumed.
    Paused {
        /// Which.
        trial: u64,
        /// Units of training done.
        progress: u64,
    },
    /// A trial that was paused goes on.
    Resumed {
        /// Which.
        trial: u64,
    },
    /// A trial is over.
    Ended {
        /// Which.
        trial: u64,
        /// How.
        outcome: TrialOutcome,
    },
}

impl StudyEvent {
    /// The trial it is about.
    pub fn trial(&self) -> u64 {
        match *self {
            Self::Launched { trial, .. }
            | Self::Reported { trial, .. }
            | Self::Paused { trial, .. }
            | Self::Resumed { trial }
            | Self::Ended { trial, .. } => trial,
        }
    }

    /// The log of trials that ran one after the other, such as those of a study of an older version.
    pub fn of(ended: &[TrialResult]) -> Vec<Self> {
        let events = |(trial, TrialResult { values, outcome }): (u64, &TrialResult)| {
            let values = values.clone();
            let launched = Self::Launched { trial, values, source: ProposalSource::Given };
            [launched, Self::Ended { trial, outcome: outcome.clone() }]
        };
        (0..).zip(ended).flat_map(events).collect()
    }
}

fn serialize_finite<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    Some(*value).filter(|value| value.is_finite()).serialize(to)
}

fn deserialize_nullable<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// What to try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Number of the trial in its study, from 0, in the order of launch.
    pub trial: u64,
    /// A value for every dimension of the space.
    pub values: Vec<TrialValue>,
    /// Why it is tried.
    pub source: ProposalSource,
}

impl Proposal {
    /// The event that it was begun.
    pub fn launched(&self) -> StudyEvent {
        StudyEvent::Launched { trial: self.trial, values: self.values.clone(), source: self.source }
    }
}

/// Why something is tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposalSource {
    /// It was asked for.
    Given,
    /// It is next in the grid.
    Grid,
    /// By chance.
    Random,
    /// To fill the space evenly.
    Sobol,
    /// It promises most.
    Model {
        /// By how much it is expected to lower the best cost, in the units of the trials.
        improvement: f64,
    },
    /// It looks more like the good trials than like the others.
    Tpe {
        /// The natural logarithm of how much more.
        log_ratio: f64,
    },
    /// Drawn from the normal distribution that CMA-ES has adapted.
    CmaEs {
        /// Standard deviation of its steps, in widths of the cube.
        step: f64,
    },
    /// Where a particle of a swarm flies.
    Swarm {
        /// Which.
        particle: u64,
    },
    /// A trial with one value changed.
    Mutated {
        /// Of which trial.
        parent: u64,
    },
}

/// What to do with a free slot.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotAction {
    /// Begin a trial.
    Launch(Proposal),
    /// Go on with a paused trial.
    Resume {
        /// Which.
        trial: u64,
        /// Units of training at which it is decided on next; `None`: it runs to its end.
        until: Option<u64>,
    },
    /// Nothing, until another trial reports or ends.
    Wait,
    /// The study is over. Trials that are still paused are pruned.
    Finished(FinishReason),
}

/// What to do with a trial that reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PruneDecision {
    /// It goes on.
    Continue,
    /// It gives its slot to others, and may be resumed.
    Pause,
    /// It is over: pruned.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_their_text_also_where_nothing_was_measured() {
        let log = [
            StudyEvent::Launched {
                trial: 0,
                values: vec![TrialValue::Inactive],
                source: ProposalSource::Sobol,
            },
            StudyEvent::Reported { trial: 0, progress: 10, value: 2.5 },
            StudyEvent::Paused { trial: 0, progress: 10 },
            StudyEvent::Resumed { trial: 0 },
            StudyEvent::Ended { trial: 0, outcome: TrialOutcome::done(2.0) },
        ];
        let text = serde_json::to_string(&log).expect("events are plain");
        assert_eq!(serde_json::from_str::<Vec<StudyEvent>>(&text).expect("it was just written"), log);
        let text =
            serde_json::to_string(&StudyEvent::Reported { trial: 1, progress: 3, value: f64::INFINITY });
        let text = text.expect("events are plain");
        assert_eq!(text, r#"{"reported":{"trial":1,"progress":3,"value":null}}"#);
        let read = serde_json::from_str(&text).expect("it was just written");
        assert!(matches!(read, StudyEvent::Reported { value, .. } if value.is_nan()));
    }
}
