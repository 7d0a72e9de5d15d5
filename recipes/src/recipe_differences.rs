//! The differences between two recipes, value by value.

use crate::recipe::Recipe;
use crate::recipe_digest::value;
use serde_json::Value;
use std::collections::BTreeMap;

/// A difference between two recipes: one value that is not the same in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Dotted path of the value in the canonical JSON.
    pub path: String,
    /// The value in the first recipe; `—` if that recipe does not have it.
    pub before: String,
    /// The value in the second recipe; `—` if that recipe does not have it.
    pub after: String,
}

/// Returns the values in which two recipes differ, ordered by path.
pub fn differences(a: &Recipe, b: &Recipe) -> Vec<Difference> {
    let (a, b) = (flat(a), flat(b));
    let mut paths: Vec<&String> = a.keys().chain(b.keys()).collect();
    paths.sort();
    paths.dedup();
    let of =
        |map: &BTreeMap<String, String>, path: &String| map.get(path).map_or("—".to_owned(), Clone::clone);
    let differ = paths.into_iter().filter(|path| a.get(*path) != b.get(*path));
    differ.map(|path| Difference { path: path.clone(), before: of(&a, path), after: of(&b, path) }).collect()
}

/// Returns every value of a recipe by its dotted path in the canonical JSON; a list of scalars is one value.
pub fn flat(recipe: &Recipe) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    flatten("", &value(recipe), &mut map);
    map
}

fn flatten(path: &str, value: &Value, map: &mut BTreeMap<String, String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Null => {}
        Value::Object(inner) => inner.iter().for_each(|(key, value)| flatten(&below(key), value, map)),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| flatten(&format!("{path}[{index}]"), item, map));
        }
        Value::String(text) => {
            map.insert(path.to_owned(), text.clone());
        }
        plain => {
            map.insert(path.to_owned(), plain.to_string());
        }
    }
}
