//! The events of a study, whose log is the study's only memory.

use super::outcome::{TrialOutcome, TrialResult};
use super::value::TrialValue;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An event of a study. The ledger stores one row for each, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyEvent {
    /// A trial started.
    Launched {
        /// Number of the trial, from 0, in the order of launch.
        trial: u64,
        /// Values of the trial, one for each dimension of the space.
        values: Vec<TrialValue>,
        /// Origin of the values.
        source: ProposalSource,
    },
    /// A trial reported an intermediate value.
    Reported {
        /// Number of the trial in its study.
        trial: u64,
        /// Training done so far, in steps, epochs or tokens; the unit is the same for all trials of a study.
        progress: u64,
        /// Objective value, to be minimized. JSON has `null` where it is not finite.
        #[serde(serialize_with = "serialize_finite", deserialize_with = "deserialize_nullable")]
        value: f64,
    },
    /// A trial was paused at a rung; it can be resumed.
    Paused {
        /// Number of the trial in its study.
        trial: u64,
        /// Training done when it was paused, in the unit of the study.
        progress: u64,
    },
    /// A paused trial was resumed.
    Resumed {
        /// Number of the trial in its study.
        trial: u64,
    },
    /// A trial ended.
    Ended {
        /// Number of the trial in its study.
        trial: u64,
        /// Result of the trial.
        outcome: TrialOutcome,
    },
}

impl StudyEvent {
    /// Returns the number of the trial that the event is about.
    pub fn trial(&self) -> u64 {
        match *self {
            Self::Launched { trial, .. }
            | Self::Reported { trial, .. }
            | Self::Paused { trial, .. }
            | Self::Resumed { trial }
            | Self::Ended { trial, .. } => trial,
        }
    }

    /// Builds the event log of trials that ran one after the other, such as those of a study from an older
    /// version.
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

/// Values proposed for the next trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Number of the trial in its study, from 0, in the order of launch.
    pub trial: u64,
    /// Values to try, one for each dimension of the space.
    pub values: Vec<TrialValue>,
    /// Origin of the values.
    pub source: ProposalSource,
}

impl Proposal {
    /// Returns the event that the proposed trial started.
    pub fn launched(&self) -> StudyEvent {
        StudyEvent::Launched { trial: self.trial, values: self.values.clone(), source: self.source }
    }
}

/// Origin of the values of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposalSource {
    /// The user or the plan gave the values.
    Given,
    /// The values are the next combination of the grid.
    Grid,
    /// The values were drawn uniformly at random.
    Random,
    /// The values are the next point of the Sobol sequence.
    Sobol,
    /// The values maximize the acquisition function.
    Model {
        /// Expected reduction of the best cost, in the units of the objective.
        improvement: f64,
    },
    /// TPE drew the values, which resemble the good trials more than the others.
    Tpe {
        /// Natural logarithm of the ratio of the density of good trials to that of the others.
        log_ratio: f64,
    },
    /// The values were drawn from the normal distribution that CMA-ES adapts.
    CmaEs {
        /// Standard deviation of a step, in widths of the unit cube.
        step: f64,
    },
    /// The values are the next position of a particle of the swarm.
    Swarm {
        /// Index of the particle in the swarm.
        particle: u64,
    },
    /// The values are those of an earlier trial, with one value changed.
    Mutated {
        /// Number of the earlier trial.
        parent: u64,
    },
}

/// Decision of a pruner on a trial that has just reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PruneDecision {
    /// The trial goes on.
    Continue,
    /// The trial frees its slot, and may be resumed.
    Pause,
    /// The trial stops for good: it is pruned.
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
