//! A study, read for its page.

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::render::html::{Believed, Studied, Tried};
use crate::render::show::why;
use crate::trials::{self, ledger};
use dtrain_planner::tune::{Hyperband, Outcome, Pruner, Standing, Status as InStudy, Study, importance};
use dtrain_protocol::TrialId;
use dtrain_recipes::Goal;
use dtrain_runner::ledger::{Filter, History, Page, Sample, Sort, Status, TrialRow};
use dtrain_runner::{Fact, Ledger};
use serde_json::Value;
use std::collections::HashMap;

/// The study of this name with its trials.
pub(super) fn studied(context: &Context, history: &History, name: &str) -> Result<Studied, Failure> {
    let Some(json) = history.study(name).map_err(|error| ledger(&error))? else {
        return Err(Failure::new(Exit::Usage, format!("no study named `{name}`"))
            .hint("`dtrain history` lists trials; the name of their study is in `dtrain show TRIAL`"));
    };
    let filter = Filter { study: Some(name.to_owned()), ..Filter::default() };
    let page = Page { skip: 0, limit: u64::MAX };
    let rows = history
        .trials(&filter, &Sort::Newest, page, &|id| trials::is_alive(context, id))
        .map_err(|error| ledger(&error))?;
    let rows: HashMap<TrialId, TrialRow> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
    let metric = metric(&json, &rows);
    let goal = rows.values().next().map_or_else(|| goal(&json), |row| row.goal);
    let mut found = Vec::new();
    for tried in history.tried(name).map_err(|error| ledger(&error))? {
        let values = tried.json["values"].as_array().cloned().unwrap_or_default();
        let source = tried.json["source"].clone();
        let mut one = Tried {
            number: tried.number,
            values,
            source,
            reason: tried.refused.unwrap_or_default(),
            ..Tried::default()
        };
        if let Some((id, row)) = tried.trial.as_ref().and_then(|id| Some((id, rows.get(id)?))) {
            measured(history, id, row, &metric, &mut one)?;
        }
        found.push(one);
    }
    let mut studied = Studied {
        name: name.to_owned(),
        json,
        metric,
        is_less: goal == Goal::Min,
        tried: found,
        importance: Vec::new(),
        rungs: Vec::new(),
        believed: None,
    };
    learned(history, goal, &mut studied)?;
    Ok(studied)
}

/// What the study itself says of its trials. A study of another version is shown without it.
fn learned(history: &History, goal: Goal, studied: &mut Studied) -> Result<(), Failure> {
    let events = history.study_events(&studied.name).map_err(|error| ledger(&error))?;
    let log = events.into_iter().map(serde_json::from_value).collect::<Result<Vec<_>, _>>();
    let study: Result<Study, _> = serde_json::from_value(studied.json["study"].clone());
    let (Ok(log), Ok(study)) = (log, study) else { return Ok(()) };
    let standing = Standing::of(&study, &log);
    let names = study.space.dimensions().iter().map(|dimension| dimension.name.clone());
    let shares = importance(&study.space, &standing).unwrap_or_default();
    studied.importance = names.zip(shares).collect();
    for tried in &mut studied.tried {
        let seen = usize::try_from(tried.number).ok().and_then(|place| standing.trials().get(place));
        match seen.map(|seen| &seen.status) {
            Some(InStudy::Paused) => tried.is_paused = true,
            Some(InStudy::Ended(Outcome::Pruned { .. })) => {}
            Some(_) | None => continue,
        }
        "others of its study did better".clone_into(&mut tried.reason);
    }
    studied.rungs = rungs(&study.pruner);
    studied.believed = study.recommend_from(&standing).map(|best| {
        let [mean, low, high] = [best.mean, best.low, best.high].map(|cost| goal.cost(cost));
        Believed { number: best.trial, mean, low: low.min(high), high: low.max(high) }
    });
    Ok(())
}

/// Steps at which trials are judged; none where there are no rungs.
fn rungs(pruner: &Pruner) -> Vec<u64> {
    let asha = match pruner {
        Pruner::Asha(asha) => *asha,
        Pruner::Hyperband(hyperband) => Hyperband::asha(*hyperband, 0),
        Pruner::None | Pruner::Median(_) | Pruner::Threshold(_) => return Vec::new(),
    };
    (0..).map_while(|rung| asha.level(rung)).collect()
}

/// What was measured of a trial.
fn measured(
    history: &History,
    id: &TrialId,
    row: &TrialRow,
    metric: &str,
    one: &mut Tried,
) -> Result<(), Failure> {
    let series = |key: &str| history.curve(id, key).map_err(|error| ledger(&error));
    one.label = Some(row.label.clone());
    one.status = Some(row.status);
    one.metric = series(metric)?;
    one.result = one.metric.last().map(|sample: &Sample| sample.value);
    if metric != "loss" {
        one.loss = series("loss")?;
    }
    if !matches!(row.status, Status::Completed | Status::Created | Status::Running) {
        let facts = history.facts(id).map_err(|error| ledger(&error))?;
        let verdict = facts.iter().rev().find_map(|fact| match fact {
            Fact::TrialEnded { verdict } => Some(why(verdict)),
            _ => None,
        });
        one.reason = verdict.unwrap_or_else(|| "it has not ended".to_owned());
    }
    Ok(())
}

/// The metric that decides: what most of the trials say, or the recipe of the study.
fn metric(json: &Value, rows: &HashMap<TrialId, TrialRow>) -> String {
    let of_trials = rows.values().next().map(|row| row.objective.clone());
    let of_recipe = || json["settled"]["objective"]["metric"].as_str().map(str::to_owned);
    of_trials.filter(|name| !name.is_empty()).or_else(of_recipe).unwrap_or_else(|| "valid.loss".to_owned())
}

/// Which way the metric is better, as the recipe of the study says.
fn goal(json: &Value) -> Goal {
    match json["settled"]["objective"]["goal"].as_str() {
        Some("max") => Goal::Max,
        Some(_) | None => Goal::Min,
    }
}
