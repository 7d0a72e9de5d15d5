//! Readers of emitted files, each strict: text that it does not understand fails the test.

pub(super) mod python;
pub(super) mod shell;
pub(super) mod yaml;

use serde_json::Value;
use std::collections::BTreeMap;

/// Keys with their values as text. A key within objects has its path, with points between.
pub(super) type Lines = BTreeMap<String, String>;

/// Returns the lines of `text`, each a key, a space and a value.
#[track_caller]
pub(super) fn lines(text: &str) -> Lines {
    let mut found = Lines::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        add(&mut found, key.into(), plain(value.trim()));
    }
    found
}

/// Adds a line.
#[track_caller]
pub(super) fn add(to: &mut Lines, key: String, value: String) {
    let former = to.insert(key.clone(), value);
    assert!(former.is_none(), "`{key}` is there twice: {former:?}");
}

/// Returns every value of `value` below `path`.
pub(super) fn flat(path: &str, value: &Value) -> Lines {
    let mut found = Lines::new();
    flatten(path, value, &mut found);
    found
}

fn flatten(path: &str, value: &Value, to: &mut Lines) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match (key.as_str(), value) {
                    (python::CALLED, Value::String(name)) => add(to, path.into(), format!("{name}()")),
                    _ => flatten(&below(key), value, to),
                }
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (place, item) in items.iter().enumerate() {
                flatten(&below(&place.to_string()), item, to);
            }
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(scalar).collect();
            add(to, path.into(), format!("[{}]", items.join(", ")));
        }
        _ => add(to, path.into(), scalar(value)),
    }
}

/// Formats a scalar; text that could be taken for another kind of value is in quotes.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if serde_json::from_str::<Value>(text).is_ok() => format!("{text:?}"),
        Value::String(text) => text.clone(),
        _ => plain(&value.to_string()),
    }
}

/// Writes fractions in one way, as `1e-8` and `1.0e-8` are equal; integers stay apart from them.
fn plain(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(number) if text.contains(['.', 'e']) => format!("{number:?}"),
        _ => text.to_owned(),
    }
}
