//! Differences between the settings of two recipes.

use std::collections::{BTreeMap, BTreeSet};

/// Lists the settings in which two recipes differ, as `KEY = VALUE (was VALUE)`.
pub(crate) fn changed_keys(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Vec<String> {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differs = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let value = |settings: &BTreeMap<String, String>, key| {
        settings.get(key).map_or_else(|| "its default".to_owned(), String::clone)
    };
    differs.map(|key| format!("{key} = {} (was {})", value(after, key), value(before, key))).collect()
}

/// Lists the values in which two sections of recipes differ; `path` is the key of the section.
pub(crate) fn differences<T: serde::Serialize>(path: &str, then: &T, now: &T) -> Vec<String> {
    let flat = |part: &T| -> BTreeMap<String, String> {
        let json = serde_json::to_value(part).unwrap_or_default();
        let params = dtrain_runner::ledger::flatten(path, &json, dtrain_runner::ledger::ValueSource::Recipe);
        params.into_iter().map(|param| (param.path, param.value.to_string())).collect()
    };
    changed_keys(&flat(then), &flat(now))
}
