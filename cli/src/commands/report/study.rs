//! Reads a study from the history for its report.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::html::{PlottedTrial, PosteriorEstimate, StudyPage};
use crate::render::show::verdict_text;
use crate::trials::{self, history_failure};
use dtrain_planner::tune::{Hyperband, Pruner, Study, StudyState, TrialOutcome, TrialPhase, importance};
use dtrain_protocol::TrialId;
use dtrain_recipes::Goal;
use dtrain_runner::ledger::{Filter, History, MetricSample, Pagination, Sort, TrialRow, TrialStatus};
use dtrain_runner::{Fact, Ledger};
use serde_json::Value;
use std::collections::HashMap;

/// Reads the study `name` with its trials.
pub(super) fn read_study(
    context: &Context,
    history: &History,
    name: &str,
) -> Result<StudyPage, CommandError> {
    let Some(json) = history.study(name).map_err(|error| history_failure(&error))? else {
        return Err(CommandError::new(ExitReason::Usage, format!("no study named `{name}`"))
            .hint("`dtrain history` lists trials; the name of their study is in `dtrain show TRIAL`"));
    };
    let filter = Filter { study: Some(name.to_owned()), ..Filter::default() };
    let page = Pagination { skip: 0, limit: u64::MAX };
    let rows = history
        .trials(&filter, &Sort::Newest, page, &|id| trials::activity(context, id))
        .map_err(|error| history_failure(&error))?;
    let rows: HashMap<TrialId, TrialRow> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
    let metric = metric(&json, &rows);
    let goal = rows.values().next().map_or_else(|| goal(&json), |row| row.goal);
    let mut found = Vec::new();
    for tried in history.study_trials(name).map_err(|error| history_failure(&error))? {
        let values = tried.json["values"].as_array().cloned().unwrap_or_default();
        let source = tried.json["source"].clone();
        let mut one = PlottedTrial {
            number: tried.number,
            values,
            source,
            reason: tried.rejection.unwrap_or_default(),
            ..PlottedTrial::default()
        };
        if let Some((id, row)) = tried.trial.as_ref().and_then(|id| Some((id, rows.get(id)?))) {
            plotted_trial(history, id, row, &metric, &mut one)?;
        }
        found.push(one);
    }
    let mut studied = StudyPage {
        name: name.to_owned(),
        json,
        metric,
        is_less: goal == Goal::Min,
        tried: found,
        importance: Vec::new(),
        rungs: Vec::new(),
        believed: None,
    };
    read_insights(history, goal, &mut studied)?;
    Ok(studied)
}

/// Adds the study's own insights to the page. Skipped if another version of dtrain wrote the study.
fn read_insights(history: &History, goal: Goal, studied: &mut StudyPage) -> Result<(), CommandError> {
    let events = history.study_events(&studied.name).map_err(|error| history_failure(&error))?;
    let log = events.into_iter().map(serde_json::from_value).collect::<Result<Vec<_>, _>>();
    let study: Result<Study, _> = serde_json::from_value(studied.json["study"].clone());
    let (Ok(log), Ok(study)) = (log, study) else { return Ok(()) };
    let study_state = StudyState::of(&study, &log);
    let names = study.space.dimensions().iter().map(|dimension| dimension.name.clone());
    let shares = importance(&study.space, &study_state).unwrap_or_default();
    studied.importance = names.zip(shares).collect();
    for tried in &mut studied.tried {
        let seen = usize::try_from(tried.number).ok().and_then(|place| study_state.trials().get(place));
        match seen.map(|seen| &seen.status) {
            Some(TrialPhase::Paused) => tried.is_paused = true,
            Some(TrialPhase::Ended(TrialOutcome::Pruned { .. })) => {}
            Some(_) | None => continue,
        }
        "others of its study did better".clone_into(&mut tried.reason);
    }
    studied.rungs = rungs(&study.pruner);
    studied.believed = study.recommend_from(&study_state).map(|best| {
        let [mean, low, high] = [best.mean, best.low, best.high].map(|cost| goal.cost(cost));
        PosteriorEstimate { number: best.trial, mean, low: low.min(high), high: low.max(high) }
    });
    Ok(())
}

/// Returns the steps at which a pruner judges trials; empty if it has no such rungs.
fn rungs(pruner: &Pruner) -> Vec<u64> {
    let asha = match pruner {
        Pruner::Asha(asha) => *asha,
        Pruner::Hyperband(hyperband) => Hyperband::asha(*hyperband, 0),
        Pruner::None | Pruner::Median(_) | Pruner::Threshold(_) => return Vec::new(),
    };
    (0..).map_while(|rung| asha.level(rung)).collect()
}

/// Reads the settings and results of a trial as the report plots them.
fn plotted_trial(
    history: &History,
    id: &TrialId,
    row: &TrialRow,
    metric: &str,
    one: &mut PlottedTrial,
) -> Result<(), CommandError> {
    let series = |key: &str| history.curve(id, key).map_err(|error| history_failure(&error));
    one.label = Some(row.label.clone());
    one.status = Some(row.status);
    one.metric = series(metric)?;
    one.result = one.metric.last().map(|sample: &MetricSample| sample.value);
    if metric != "loss" {
        one.loss = series("loss")?;
    }
    if !(row.status.is_live() || matches!(row.status, TrialStatus::Completed | TrialStatus::Created)) {
        let facts = history.facts(id).map_err(|error| history_failure(&error))?;
        let verdict = facts.iter().rev().find_map(|fact| match fact {
            Fact::TrialEnded { verdict } => Some(verdict_text(verdict)),
            _ => None,
        });
        one.reason = verdict.unwrap_or_else(|| "it has not ended".to_owned());
    }
    Ok(())
}

/// Returns the name of the objective's metric: that of most trials, or else that of the study's recipe.
fn metric(json: &Value, rows: &HashMap<TrialId, TrialRow>) -> String {
    let of_trials = rows.values().next().map(|row| row.objective.clone());
    let of_recipe = || json["base_recipe"]["objective"]["metric"].as_str().map(str::to_owned);
    of_trials.filter(|name| !name.is_empty()).or_else(of_recipe).unwrap_or_else(|| "valid.loss".to_owned())
}

/// Returns the goal (minimize or maximize) that the study's recipe has.
fn goal(json: &Value) -> Goal {
    match json["base_recipe"]["objective"]["goal"].as_str() {
        Some("max") => Goal::Max,
        Some(_) | None => Goal::Min,
    }
}
