//! Properties of a trial as JSON, for exports.

use crate::ledger::TrialOutline;
use serde_json::{Map, Value, json};

/// Returns a number as a JSON value; a number that is not finite becomes a string.
pub(super) fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

/// Returns the full metadata of a trial: names, status, settings, tags, notes, times.
pub(super) fn trial_metadata(trial: &TrialOutline) -> Value {
    Value::Object(about_trial(trial))
}

/// Returns the names and the result of a trial, for metadata that must be short.
pub(super) fn brief_metadata(trial: &TrialOutline) -> Value {
    let row = &trial.row;
    json!({
        "trial": row.id, "label": row.label, "recipe": row.recipe, "study": row.study, "status": row.status,
        "objective": row.objective, "best": row.best.map(number),
    })
}

pub(super) fn about_trial(trial: &TrialOutline) -> Map<String, Value> {
    let row = &trial.row;
    let params: Map<_, _> =
        trial.params.iter().map(|param| (param.path.clone(), param.value.clone())).collect();
    let about = json!({
        "trial": row.id, "label": row.label, "recipe": row.recipe, "study": row.study, "status": row.status,
        "verdict": trial.verdict, "objective": row.objective, "best": row.best.map(number), "params": params,
        "tags": trial.tags, "notes": trial.notes, "attempts": trial.attempts, "created_ms": row.created_ms,
        "started_ms": row.started_ms, "ended_ms": row.ended_ms, "git_revision": row.git_revision,
        "command": trial.command,
    });
    match about {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
