//! State of the page about a study: its trials, and the best one.

use crate::render::proposal::proposal_reason;
use dtrain_planner::tune::{ProposalSource, StudyEvent};
use dtrain_protocol::TrialId;
use dtrain_runner::ledger::{StudyTrialRow, TrialRow, TrialStatus};
use serde::Deserialize;
use serde_json::Value;

/// A study with its trials, as its page shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StudyModel {
    pub(crate) name: String,
    /// Name of the objective's metric.
    pub(crate) metric: String,
    /// True if a higher metric is better.
    pub(crate) is_max: bool,
    /// Names of the settings that the study searches.
    pub(crate) searched: Vec<String>,
    /// Number of steps per trial; `None` if unknown.
    pub(crate) steps: Option<u64>,
    /// Maximum number of trials that run in parallel; `None` if unknown.
    pub(crate) slots: Option<u64>,
    pub(crate) rows: Vec<TrialLine>,
}

/// Facts about a trial, shown on one line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrialLine {
    /// Number of the trial in its study, from 1; `None` outside a study.
    pub(crate) number: Option<u64>,
    /// Values of the searched settings, in the order of [`StudyModel::searched`].
    pub(crate) values: Vec<String>,
    /// Description of how the study came to propose the trial; empty if unknown.
    pub(crate) source: String,
    /// True if the pruner has paused the trial, which may be resumed.
    pub(crate) is_paused: bool,
    /// Reason why the trial was not trained; `None` if it was.
    pub(crate) refused: Option<String>,
    pub(crate) trial: Option<TrialRow>,
    /// Best value of the objective's metric; `None` before the first.
    pub(crate) best: Option<f64>,
    /// Latest value of the objective's metric, or of the loss; `None` before the first.
    pub(crate) newest: Option<f64>,
    /// Means of the objective's metric, or of the loss, in equal ranges of steps.
    pub(crate) curve: Vec<Option<f64>>,
}

impl TrialLine {
    /// Creates the line of a trial that is listed outside a study.
    pub(crate) fn of(trial: TrialRow) -> Self {
        Self {
            number: None,
            values: Vec::new(),
            source: String::new(),
            is_paused: false,
            refused: None,
            best: trial.best,
            newest: trial.loss,
            trial: Some(trial),
            curve: Vec::new(),
        }
    }

    /// Creates the line of a study's trial; `trial` is `None` if the trial was rejected or deleted.
    pub(crate) fn tried(tried: &StudyTrialRow, searched: &[String], trial: Option<TrialRow>) -> Self {
        let values = match &tried.json["values"] {
            Value::Array(values) => values.iter().map(word).collect(),
            Value::Object(values) => {
                searched.iter().map(|name| values.get(name).map_or(String::new(), word)).collect()
            }
            _ => Vec::new(),
        };
        Self {
            number: Some(tried.number + 1),
            values,
            source: source(&tried.json["source"]),
            is_paused: false,
            refused: tried.rejection.clone(),
            best: trial.as_ref().and_then(|trial| trial.best),
            newest: trial.as_ref().and_then(|trial| trial.loss),
            trial,
            curve: Vec::new(),
        }
    }

    pub(crate) fn status(&self) -> Option<TrialStatus> {
        self.trial.as_ref().map(|trial| trial.status)
    }

    pub(crate) fn id(&self) -> Option<&TrialId> {
        self.trial.as_ref().map(|trial| &trial.id)
    }
}

impl StudyModel {
    /// Parses a study from the history; parts that other versions wrote and this one does not know are
    /// skipped.
    pub(crate) fn of(name: &str, json: &Value) -> Self {
        let recipe = if json["base_recipe"].is_object() { &json["base_recipe"] } else { &json["recipe"] };
        let metric = recipe["objective"]["metric"].as_str().unwrap_or("valid.loss").to_owned();
        let goal = recipe["objective"]["goal"].as_str();
        let dimensions =
            json["study"]["space"]["dimensions"].as_array().or(json["study"]["space"].as_array());
        let searched = dimensions.into_iter().flatten();
        Self {
            name: name.to_owned(),
            is_max: goal.map_or(metric.contains("accuracy"), |goal| goal == "max"),
            metric,
            searched: searched.filter_map(|one| one["name"].as_str().map(str::to_owned)).collect(),
            steps: json["steps"].as_u64(),
            slots: recipe["cluster"]["slots"].as_u64(),
            rows: Vec::new(),
        }
    }

    /// Updates by the study's events which trials are paused.
    pub(crate) fn apply_events(&mut self, events: &[Value]) {
        for event in events {
            // Unknown events of other versions are skipped.
            let (trial, is_paused) = match StudyEvent::deserialize(event) {
                Ok(StudyEvent::Paused { trial, .. }) => (trial, true),
                Ok(StudyEvent::Resumed { trial } | StudyEvent::Ended { trial, .. }) => (trial, false),
                Ok(StudyEvent::Launched { .. } | StudyEvent::Reported { .. }) | Err(_) => continue,
            };
            if let Some(row) = self.rows.iter_mut().find(|row| row.number == Some(trial + 1)) {
                row.is_paused = is_paused;
            }
        }
    }

    /// Returns the line with the best value among completed trials, or among all if none completed; `None`
    /// without values.
    pub(crate) fn best(&self) -> Option<(&TrialLine, f64)> {
        let of = |ended: bool| {
            let rows =
                self.rows.iter().filter(move |row| !ended || row.status() == Some(TrialStatus::Completed));
            let found = rows.filter_map(|row| Some((row, row.best.filter(|best| best.is_finite())?)));
            found.reduce(|one, other| {
                let is_better = if self.is_max { other.1 > one.1 } else { other.1 < one.1 };
                if is_better { other } else { one }
            })
        };
        of(true).or_else(|| of(false))
    }

    /// Returns the number of the study's trials that are running.
    pub(crate) fn running(&self) -> usize {
        self.rows.iter().filter(|row| row.status().is_some_and(TrialStatus::is_live)).count()
    }
}

fn word(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(real) if real != 0.0 && (real.abs() < 1e-2 || real.abs() >= 1e5) => format!("{real:.2e}"),
            Some(real) => format!("{real:.4}").trim_end_matches('0').trim_end_matches('.').to_owned(),
            None => number.to_string(),
        },
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Describes how a study came to propose a trial; empty for sources that this version does not know.
fn source(json: &Value) -> String {
    serde_json::from_value(json.clone())
        .map_or(String::new(), |source: ProposalSource| proposal_reason(&source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_study_is_read_leniently() {
        let kept = json!({
            "format": 1, "steps": 30,
            "base_recipe": { "objective": { "metric": "valid.accuracy" }, "cluster": { "slots": 4 } },
            "study": { "space": [{ "name": "train.learning_rate", "scale": {} }] },
        });
        let study = StudyModel::of("a-tune-1", &kept);
        assert!(study.is_max);
        assert_eq!((study.slots, study.steps), (Some(4), Some(30)));
        assert_eq!(study.searched, ["train.learning_rate"]);
        let unknown = StudyModel::of("b", &json!({ "format": 9 }));
        assert_eq!((unknown.metric.as_str(), unknown.searched.len()), ("valid.loss", 0));
    }

    #[test]
    fn values_are_told_in_few_characters() {
        let words = [json!(0.00384), json!(0.25), json!(32), json!("bf16"), json!(0.020_400_001)]
            .map(|value| word(&value));
        assert_eq!(words, ["3.84e-3", "0.25", "32", "bf16", "0.0204"]);
        assert_eq!(source(&json!({ "model": { "improvement": 0.172_91 } })), "expected improvement 0.1729");
        assert_eq!(source(&json!("sobol")), "space-filling");
    }
}
