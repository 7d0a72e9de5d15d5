//! The digest of a recipe, a fingerprint by which equal recipes are recognized, and the canonical JSON that
//! it hashes.

use crate::recipe::Recipe;
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the canonical JSON of a recipe: compact, with sorted keys. Equal recipes give equal bytes on every
/// machine.
pub fn json(recipe: &Recipe) -> String {
    sorted(value(recipe)).to_string()
}

/// Returns the digest of a recipe: the blake3 hash of its canonical JSON, in 64 hexadecimal digits.
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
