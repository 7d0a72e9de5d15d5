//! Old names in stored files: plans of format 1, histories before 2.0, and bundles of format 1.
//!
//! Only this module knows these names, besides [`dtrain_recipes::OLD_KEYS`] for recipes. Readers convert
//! files to today's names here, and use only those.

use dtrain_recipes::{OLD_KEYS, OLD_WORDS};
use serde_json::{Map, Value};

/// A renamed key: the path of its object (`*` for each element of a list or value of an object), its old name
/// and its new name.
type Renamed = (&'static str, &'static str, &'static str);

/// Renamed keys of plans. They are applied in order: the path of a later row has the new names of earlier
/// rows.
const PLAN: &[Renamed] = &[
    ("", "weighed", "tradeoffs"),
    ("tradeoffs", "front", "pareto_front"),
    ("tradeoffs", "named", "distinct"),
    ("tradeoffs.choice", "what", "candidate"),
    ("tradeoffs.choice.cost", "memory_full", "memory_fraction"),
    ("tradeoffs.pareto_front.*", "what", "candidate"),
    ("tradeoffs.pareto_front.*.cost", "memory_full", "memory_fraction"),
    ("choices.*", "pace", "run_length"),
    ("choices.*", "tie", "is_tied"),
    ("choices.*.run_length", "saving", "checkpointing"),
    ("choices.*.run_length.checkpointing", "hold_seconds", "stall_seconds"),
    ("alternatives.*", "tie", "is_tied"),
    ("alternatives.*", "growth", "time_delta"),
    ("rejected.*.rejection.too_large_tensor", "what", "tensor"),
    ("rejected.*.rejection.too_large_tensor", "most", "limit"),
    ("rejected.*.rejection.does_not_divide", "what", "dimension"),
];

/// Renamed words in plans: the path of the value, the old word and the new word.
const PLAN_WORDS: &[Renamed] = &[
    ("choices.*.run_length.checkpointing.reason", "said", "recipe"),
    ("choices.*.run_length.checkpointing.reason", "short", "short_run"),
    ("choices.*.run_length.checkpointing.reason", "patience", "lost_work"),
    ("choices.*.run_length.checkpointing.reason", "cost", "overhead"),
];

/// Renamed keys of studies.
const STUDY: &[Renamed] = &[
    ("", "settled", "base_recipe"),
    ("", "searched", "search_space"),
    ("", "learned", "prior_trials"),
    ("study.pruner.asha", "least", "min_resource"),
    ("study.pruner.asha", "most", "max_resource"),
    ("study.pruner.hyperband", "least", "min_resource"),
    ("study.pruner.hyperband", "most", "max_resource"),
    ("study.pruner.median", "trials", "startup_trials"),
    ("study.pruner.median", "from", "warmup"),
    ("study.pruner.threshold", "most", "limit"),
    ("study.pruner.threshold", "from", "warmup"),
];

/// Renamed keys of the events of a study.
const STUDY_EVENT: &[Renamed] = &[
    ("reported", "at", "progress"),
    ("paused", "at", "progress"),
    ("ended.outcome.failed", "why", "reason"),
];

/// Renamed keys of the records of a trial.
const RECORD: &[Renamed] = &[("", "checkpoint_durable", "checkpoint_committed")];

/// Renamed keys of the trials in a bundle.
const BUNDLE_TRIAL: &[Renamed] = &[("", "facts", "records")];
const BUNDLE_STUDY: &[Renamed] = &[("", "tried", "trials"), ("trials.*", "refused", "rejection")];

/// Format version of plans with today's names.
const PLAN_FORMAT: u64 = 2;

/// Last format version of studies with old names, and first with today's names.
const STUDY_FORMATS: (u64, u64) = (2, 3);

/// Converts a plan of format 1 to format 2; leaves any other as it is.
pub fn plan(plan: &mut Value) {
    if plan.get("format").and_then(Value::as_u64).is_none_or(|format| format >= PLAN_FORMAT) {
        return;
    }
    rename_all(plan, PLAN);
    for (path, old, new) in PLAN_WORDS {
        values_at(plan, path, &mut |value| reword(value, old, new));
    }
    plan["format"] = PLAN_FORMAT.into();
    values_at(plan, "recipe", &mut recipe);
    if let Some(Value::Object(settings)) = plan.get_mut("settings") {
        *settings = std::mem::take(settings).into_iter().map(setting).collect();
    }
}

/// Converts a stored recipe to today's names.
pub fn recipe(recipe: &mut Value) {
    rename_all(recipe, OLD_KEYS);
    for (section, key, old, new) in OLD_WORDS {
        values_at(recipe, &format!("{section}.{key}"), &mut |value| reword(value, old, new));
    }
}

/// Converts a document of a trial to today's names; `kind` is the document's key.
pub fn document(kind: &str, document: &mut Value) {
    match kind {
        "recipe" => recipe(document),
        "plan" => plan(document),
        _ => {}
    }
}

/// Converts a record of a trial to today's names.
pub fn record(record: &mut Value) {
    rename_all(record, RECORD);
}

/// Converts a study to today's names. A study older than the last old format keeps its format, so that
/// readers refuse it.
pub fn study(study: &mut Value) {
    if study.get("format").and_then(Value::as_u64).is_some_and(|format| format >= STUDY_FORMATS.1) {
        return;
    }
    rename_all(study, STUDY);
    if study.get("format") == Some(&STUDY_FORMATS.0.into()) {
        study["format"] = STUDY_FORMATS.1.into();
    }
    for path in ["recipe", "base_recipe"] {
        values_at(study, path, &mut recipe);
    }
}

/// Converts an event of a study to today's names.
pub fn study_event(event: &mut Value) {
    rename_all(event, STUDY_EVENT);
}

/// Converts the trial of a bundle of format 1 to today's names, including the JSON texts in it.
pub(crate) fn bundle_trial(trial: &mut Value) {
    rename_all(trial, BUNDLE_TRIAL);
    if let Some(Value::Object(documents)) = trial.get_mut("documents") {
        for (kind, json) in documents {
            in_text(json, |json| document(kind, json));
        }
    }
    values_at(trial, "records.*.1", &mut |json| in_text(json, record));
    values_at(trial, "params.*", &mut |one| {
        let Some(path) = one.get(0).and_then(Value::as_str).map(str::to_owned) else { return };
        for (old, new) in words_of_param(&path) {
            if let Some(value) = one.get_mut(1) {
                reword(value, &old, &new);
            }
        }
        if let Some(new) = param(&path) {
            one[0] = new.into();
        }
    });
}

/// Converts the study of a bundle of format 1 to today's names, including the JSON texts in it.
pub(crate) fn bundle_study(one: &mut Value) {
    rename_all(one, BUNDLE_STUDY);
    values_at(one, "json", &mut |json| in_text(json, study));
    values_at(one, "events.*.2", &mut |json| in_text(json, study_event));
}

/// Returns today's path of the recipe value at an old `path`; `None` if it was not renamed.
pub fn param(path: &str) -> Option<String> {
    OLD_KEYS.iter().find_map(|(section, old, new)| {
        let rest = path.strip_prefix(section)?.strip_prefix('.')?.strip_prefix(old)?;
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("{section}.{new}{rest}"))
    })
}

/// Returns the renamed words that the value at `path` can be, as JSON texts: pairs of the old and the new
/// word.
pub fn words_of_param(path: &str) -> Vec<(String, String)> {
    let json = |word: &str| Value::from(word).to_string();
    let of_path = OLD_WORDS.iter().filter(|(section, key, ..)| path == format!("{section}.{key}"));
    of_path.map(|(_, _, old, new)| (json(old), json(new))).collect()
}

/// Converts a setting of a plan: its path, and its value as TOML.
fn setting((path, mut value): (String, Value)) -> (String, Value) {
    for (old, new) in words_of_param(&path) {
        reword(&mut value, &old, &new);
    }
    (param(&path).unwrap_or(path), value)
}

fn rename_all(root: &mut Value, table: &[Renamed]) {
    for (path, old, new) in table {
        rename(root, path, old, new);
    }
}

/// Renames a key of the objects at `path`, except those that already have the new name.
fn rename(root: &mut Value, path: &str, old: &str, new: &str) {
    values_at(root, path, &mut |object| {
        if let Value::Object(fields) = object
            && !fields.contains_key(new)
            && let Some(value) = fields.remove(old)
        {
            fields.insert(new.to_owned(), value);
        }
    });
}

fn reword(value: &mut Value, old: &str, new: &str) {
    if value.as_str() == Some(old) {
        *value = new.into();
    }
}

/// Applies `change` to the JSON in a text; leaves any other text as it is.
fn in_text(text: &mut Value, change: impl FnOnce(&mut Value)) {
    let Some(mut json) = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return;
    };
    let before = json.clone();
    change(&mut json);
    if json != before {
        *text = json.to_string().into();
    }
}

/// Calls `change` with every value at `path`, in which `*` stands for each element.
fn values_at(root: &mut Value, path: &str, change: &mut dyn FnMut(&mut Value)) {
    if path.is_empty() {
        return change(root);
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match (root, first) {
        (Value::Array(items), "*") => items.iter_mut().for_each(|item| values_at(item, rest, change)),
        (Value::Object(fields), "*") => fields_at(fields, rest, change),
        (Value::Object(fields), name) => {
            if let Some(value) = fields.get_mut(name) {
                values_at(value, rest, change);
            }
        }
        (Value::Array(items), index) => {
            if let Some(item) = index.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                values_at(item, rest, change);
            }
        }
        _ => {}
    }
}

fn fields_at(fields: &mut Map<String, Value>, rest: &str, change: &mut dyn FnMut(&mut Value)) {
    fields.values_mut().for_each(|value| values_at(value, rest, change));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_of_format_1_gets_the_names_of_format_2_and_stays_so() {
        let mut old = json!({
            "format": 1,
            "recipe": { "model": { "kind": "own", "with": { "depth": 3 } }, "tune": { "least": 1 } },
            "settings": { "model.kind": "\"own\"", "tune.least": "1" },
            "choices": [{ "pace": { "saving": { "hold_seconds": 0.1, "reason": "patience" } }, "tie": true }],
            "weighed": { "choice": { "what": 1, "cost": { "memory_full": 0.5 } }, "front": [{ "what": 1, "cost": {} }], "named": [0] },
            "alternatives": [{ "tie": false, "growth": [] }],
            "rejected": [{ "rejection": { "does_not_divide": { "what": "heads" } } }],
        });
        plan(&mut old);
        let new = json!({
            "format": 2,
            "recipe": { "model": { "kind": "custom", "settings": { "depth": 3 } }, "tune": { "min_steps": 1 } },
            "settings": { "model.kind": "\"custom\"", "tune.min_steps": "1" },
            "choices": [{
                "run_length": { "checkpointing": { "stall_seconds": 0.1, "reason": "lost_work" } },
                "is_tied": true,
            }],
            "tradeoffs": {
                "choice": { "candidate": 1, "cost": { "memory_fraction": 0.5 } },
                "pareto_front": [{ "candidate": 1, "cost": {} }],
                "distinct": [0],
            },
            "alternatives": [{ "is_tied": false, "time_delta": [] }],
            "rejected": [{ "rejection": { "does_not_divide": { "dimension": "heads" } } }],
        });
        assert_eq!(old, new);
        plan(&mut old);
        assert_eq!(old, new);
    }

    #[test]
    fn texts_in_a_bundle_are_renamed_too() {
        let mut trial = json!({
            "documents": { "recipe": "{\"tune\":{\"least\":2}}", "note": "no JSON" },
            "facts": [[5, "{\"checkpoint_durable\":{\"step\":2}}"], [6, "\"resumed\""]],
            "params": [["tune.least", "2", "recipe"], ["model.kind", "\"own\"", "recipe"], ["model.with.depth", "3", "recipe"]],
        });
        bundle_trial(&mut trial);
        assert_eq!(
            trial,
            json!({
                "documents": { "recipe": "{\"tune\":{\"min_steps\":2}}", "note": "no JSON" },
                "records": [[5, "{\"checkpoint_committed\":{\"step\":2}}"], [6, "\"resumed\""]],
                "params": [
                    ["tune.min_steps", "2", "recipe"],
                    ["model.kind", "\"custom\"", "recipe"],
                    ["model.settings.depth", "3", "recipe"],
                ],
            })
        );
    }
}
