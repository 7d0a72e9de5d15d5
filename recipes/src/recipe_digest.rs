//! Canonical JSON of a recipe and its digest: equal recipes have equal digests.

use crate::recipe::Recipe;
use serde_json::Value;
use std::collections::BTreeMap;

/// Compact JSON with sorted keys. Equal recipes give equal bytes on every machine.
pub fn json(recipe: &Recipe) -> String {
    sorted(value(recipe)).to_string()
}

/// blake3 of the canonical JSON, in 64 hexadecimal digits.
pub fn digest(recipe: &Recipe) -> String {
    blake3::hash(json(recipe).as_bytes()).to_hex().to_string()
}

pub(crate) fn value(recipe: &Recipe) -> Value {
    serde_json::to_value(recipe).expect("a recipe has text keys and finite numbers only")
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<String, Value> =
                map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            Value::Object(ordered.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        plain => plain,
    }
}
