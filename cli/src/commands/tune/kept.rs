//! What the history keeps of a study, and how its trials ended.

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::trials;
use crate::trials::ledger;
use dtrain_planner::tune::{Ended, Failure as Why, Outcome, Searched, Study, Value};
use dtrain_recipes::Recipe;
use dtrain_runner::Verdict;
use dtrain_runner::ledger::{History, Summary, Trial, Tried};
use serde::{Deserialize, Serialize};

/// Version of what is kept; a newer one is refused.
const FORMAT: u32 = 1;

/// A study: written once, when it begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    format: u32,
    /// The recipe as it was given.
    recipe: Recipe,
    /// The recipe with the layout that all trials have.
    pub(super) settled: Recipe,
    pub(super) study: Study,
    pub(super) searched: Searched,
    /// Optimizer steps of a trial.
    pub(super) steps: u64,
}

impl Kept {
    pub(super) fn new(
        recipe: &Recipe,
        settled: Recipe,
        study: Study,
        searched: Searched,
        steps: u64,
    ) -> Self {
        Self { format: FORMAT, recipe: recipe.clone(), settled, study, searched, steps }
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a study has string keys only")
    }

    /// Reads a study. `Err` when a newer program wrote it, or when it is of another recipe or of trials of other than
    /// `steps`.
    pub(super) fn read(
        json: serde_json::Value,
        name: &str,
        recipe: &Recipe,
        steps: Option<u64>,
    ) -> Result<Self, Failure> {
        let format = json["format"].as_u64().unwrap_or(0);
        let cannot =
            |why: String| Failure::new(Exit::Usage, format!("the study {name} cannot be resumed")).cause(why);
        if format != u64::from(FORMAT) {
            return Err(cannot(format!("it has format {format}; this version reads {FORMAT}")));
        }
        let kept: Self = serde_json::from_value(json).map_err(|error| cannot(error.to_string()))?;
        if kept.recipe != *recipe {
            return Err(cannot("it was started with another recipe or other settings".to_owned())
                .hint("use the original recipe and settings, or omit --study to start a new study"));
        }
        if let Some(steps) = steps.filter(|steps| *steps != kept.steps) {
            return Err(cannot(format!("its trials have {} steps, not {steps}", kept.steps))
                .hint("omit --steps to resume, or omit --study to start a new study"));
        }
        Ok(kept)
    }
}

/// The trials of a study that ended, in their order; one that did not is the last and is left out.
pub(super) fn ended(context: &Context, history: &History, name: &str) -> Result<Vec<Ended>, Failure> {
    let mut found = Vec::new();
    for tried in history.tried(name).map_err(|error| ledger(&error))? {
        let Some(outcome) = outcome(context, history, &tried)? else { break };
        found.push(Ended { values: values(&tried)?, outcome });
    }
    Ok(found)
}

/// The values that were tried.
pub(super) fn values(tried: &Tried) -> Result<Vec<Value>, Failure> {
    serde_json::from_value(tried.json["values"].clone()).map_err(|error| {
        Failure::new(Exit::Infrastructure, "the trials of the study cannot be read").cause(error.to_string())
    })
}

/// How a trial of a study ended; `None` while it has not.
fn outcome(context: &Context, history: &History, tried: &Tried) -> Result<Option<Outcome>, Failure> {
    let Some(id) = &tried.trial else {
        // A trial that somebody deleted teaches nothing.
        let why = if tried.refused.is_some() { Why::Rejected } else { Why::Lost };
        return Ok(Some(Outcome::Failed { why }));
    };
    let is_alive = |id: &_| trials::is_alive(context, id);
    let trial = history.trial(id, &is_alive).map_err(|error| ledger(&error))?;
    Ok(trial.verdict.as_ref().and_then(|verdict| of_verdict(verdict, &trial)))
}

/// What a study learns of a verdict; `None` of a trial that can go on.
pub(super) fn of_verdict(verdict: &Verdict, trial: &Trial) -> Option<Outcome> {
    match verdict {
        Verdict::Completed(_) => Some(value(trial).map_or(Outcome::Failed { why: Why::Lost }, Outcome::done)),
        Verdict::Pruned => value(trial).map(|value| Outcome::Pruned { value }),
        Verdict::OutOfMemory => Some(Outcome::Failed { why: Why::OutOfMemory }),
        Verdict::Diverged => Some(Outcome::Failed { why: Why::Diverged }),
        Verdict::Failed(_) => Some(Outcome::Failed { why: Why::Lost }),
        Verdict::Stopped => None,
    }
}

/// What is to be made small: the newest value of the objective, with its sign turned where larger is better.
fn value(trial: &Trial) -> Option<f64> {
    let is_objective = |figure: &&Summary| figure.key == trial.row.objective && figure.rank.0 == 0;
    let last = trial.figures.iter().find(is_objective).and_then(|figure| figure.last);
    last.map(|last| trial.row.goal.cost(last))
}
