//! Placeholders in the arguments and the environment of a foreign command: `--lr={params.lr}`.
//!
//! `{section.key}` is replaced by the value of a key, `{section}` by a section as JSON, and `{{section.key}}`
//! by that text in single braces. All other braces are text, so that JSON, `${VARIABLE}` and templates of
//! other languages stay as they are.
//!
//! `{run.dir}` is known only when the program starts: [`fill`] leaves it to [`fill_run_dir`].

use crate::recipe::Recipe;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// A segment of a text: a literal part or a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TextSegment<'t> {
    Text(&'t str),
    Path(&'t str),
}

/// Path of the placeholder for the folder of a run, which survives restarts.
pub const RUN_DIR: &str = "run.dir";

/// Sections that a placeholder may insert whole, as JSON.
const SECTIONS: [&str; 5] = ["params", "train", "layout", "cluster", "objective"];

/// The number of ranks of a command, and the degree of parallelism along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Total number of ranks.
    pub ranks: u32,
    /// Number of data-parallel replicas.
    pub data: u32,
    /// Degree of tensor parallelism.
    pub tensor: u32,
    /// Number of pipeline stages.
    pub pipeline: u32,
    /// Degree of context parallelism.
    pub context: u32,
    /// Degree of expert parallelism.
    pub expert: u32,
}

impl Ranks {
    /// The ranks of a command that runs as a single process.
    pub const SINGLE: Self = Self { ranks: 1, data: 1, tensor: 1, pipeline: 1, context: 1, expert: 1 };
}

fn parts(text: &str) -> Vec<TextSegment<'_>> {
    let mut parts = Vec::new();
    // Start of the text that is in no part yet, and the position from which the next brace is searched.
    let (mut begin, mut at) = (0, 0);
    while let Some(open) = text[at..].find('{').map(|found| at + found) {
        let inner = &text[open + 1..];
        let (is_doubled, inner) = inner.strip_prefix('{').map_or((false, inner), |inner| (true, inner));
        let path = inner.split_once('}').map(|(path, _)| path).filter(|path| is_path(path));
        let end = |path: &str| open + if is_doubled { 4 } else { 2 } + path.len();
        match path {
            Some(path) if is_doubled && text[..end(path)].ends_with("}}") => {
                parts.push(TextSegment::Text(&text[begin..open]));
                parts.push(TextSegment::Text(&text[open + 1..end(path) - 1]));
                (begin, at) = (end(path), end(path));
            }
            Some(path) if !is_doubled && !text[..open].ends_with('$') => {
                parts.push(TextSegment::Text(&text[begin..open]));
                parts.push(TextSegment::Path(path));
                (begin, at) = (end(path), end(path));
            }
            _ => at = open + 1,
        }
    }
    parts.push(TextSegment::Text(&text[begin..]));
    parts
}

/// Returns `true` if `text` can be the path of a placeholder: a section, or names joined by dots.
fn is_path(text: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    };
    SECTIONS.contains(&text) || text.contains('.') && text.split('.').all(is_name)
}

/// Returns the paths of all placeholders in a text.
pub fn paths(text: &str) -> impl Iterator<Item = &str> {
    parts(text).into_iter().filter_map(|part| match part {
        TextSegment::Path(path) => Some(path),
        TextSegment::Text(_) => None,
    })
}

/// Replaces the placeholders in a text with their `values`; `None` if one is a param that does not apply.
///
/// Unknown placeholders stay as they are: the check refuses them, and plans of older versions have no
/// placeholders.
pub fn fill(text: &str, values: &Value) -> Option<String> {
    let mut filled = String::new();
    for part in parts(text) {
        match part {
            TextSegment::Text(text) => filled.push_str(&escaped(text)),
            TextSegment::Path(RUN_DIR) => filled.push_str(RUN_DIR_TEXT),
            TextSegment::Path(path) => match value_at_path(values, path) {
                Some(value) => filled.push_str(&escaped(&plain(value))),
                None if path.starts_with("params.") => return None,
                None => return Some(text.to_owned()),
            },
        }
    }
    Some(filled)
}

/// Replaces each placeholder in a text with the text that `value` returns for its path.
pub(crate) fn replaced(text: &str, value: impl Fn(&str) -> String) -> String {
    let part = |part| match part {
        TextSegment::Text(text) => text.to_owned(),
        TextSegment::Path(path) => value(path),
    };
    parts(text).into_iter().map(part).collect()
}

/// Replaces the placeholders in an argument like [`fill`]; also `None` if it consists of placeholders that
/// are all empty.
pub fn argument(text: &str, values: &Value) -> Option<String> {
    fill(text, values).filter(|filled| text.is_empty() || !filled.is_empty())
}

/// The placeholder for [`RUN_DIR`] as it is written in a text.
const RUN_DIR_TEXT: &str = "{run.dir}";
const RUN_DIR_ESCAPED: &str = "{{run.dir}}";

/// Escapes a text so that [`fill_run_dir`] restores it.
pub fn escaped(text: &str) -> String {
    text.replace(RUN_DIR_TEXT, RUN_DIR_ESCAPED)
}

/// Replaces `{run.dir}` in a filled text with the path of the run's folder.
pub fn fill_run_dir(text: &str, folder: &str) -> String {
    let parts = text.split(RUN_DIR_ESCAPED).map(|part| part.replace(RUN_DIR_TEXT, folder));
    parts.collect::<Vec<_>>().join(RUN_DIR_TEXT)
}

/// Returns the JSON value at a dotted path; `None` if there is none.
pub fn value_at_path<'v>(values: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(values, |value, name| value.get(name))
}

/// Formats a value as a command-line argument: a text without quotes, a section or a list as JSON.
pub(crate) fn plain(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// Returns all values that the placeholders of a command can name, by section: `params`, `train`, `layout`,
/// `cluster.ranks`, and `objective.stop.steps` if it is set. A key without a fixed value, such as "auto", is
/// absent.
pub fn values(recipe: &Recipe, ranks: Ranks) -> Value {
    let mut layout = section(&recipe.layout);
    for (axis, degree) in [
        ("data", ranks.data),
        ("tensor", ranks.tensor),
        ("pipeline", ranks.pipeline),
        ("context", ranks.context),
        ("expert", ranks.expert),
    ] {
        layout.insert(axis.to_owned(), degree.into());
    }
    // Serialized as a word.
    if let Some(zero) = layout.get("zero").and_then(Value::as_str).and_then(|word| word.parse::<u32>().ok()) {
        layout.insert("zero".to_owned(), zero.into());
    }
    let mut values = json!({
        "params": recipe.params,
        "train": section(&recipe.train),
        "layout": layout,
        "cluster": { "ranks": ranks.ranks },
    });
    if let Some(steps) = recipe.objective.stop.steps {
        values["objective"] = json!({ "stop": { "steps": steps } });
    }
    values
}

/// Returns a section of a recipe as JSON, with only the values that are fixed.
fn section(of: &impl serde::Serialize) -> Map<String, Value> {
    let decided = |value: Value| match value {
        Value::Object(fields) if fields.len() == 1 => match fields.into_iter().next() {
            // A pinned value, and a length with its unit, become the plain value.
            Some((name, value)) if name == "pinned" => steps(value),
            Some((name, _)) if name == "among" || name == "log" => Value::Null,
            Some((name, value)) => json!({ name: value }),
            None => Value::Null,
        },
        Value::String(word) if word == "auto" => Value::Null,
        value => value,
    };
    let Ok(Value::Object(fields)) = serde_json::to_value(of) else { return Map::new() };
    fields
        .into_iter()
        .map(|(name, value)| (name, decided(value)))
        .filter(|(_, value)| !value.is_null())
        .collect()
}

/// Returns the JSON of a warm-up as a plain number of steps or tokens.
fn steps(value: Value) -> Value {
    let number = |name: &str| value.get(name).cloned();
    number("steps").or_else(|| number("tokens")).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_where_a_text_names_them() {
        let values = json!({
            "params": { "lr": 3e-5, "depth": 4, "name": "a b", "augment": true },
            "layout": { "data": 2, "tensor": 1 },
        });
        let check =
            |text: &str, expected: &str| assert_eq!(fill(text, &values).as_deref(), Some(expected), "{text}");
        check("--lr={params.lr}", "--lr=0.00003");
        check("{params.depth}x{params.name}", "4xa b");
        check("{params.augment}", "true");
        check("{layout}", "{\"data\":2,\"tensor\":1}");
        check("plain", "plain");
        check("{run.dir}/{params.depth}.pt", "{run.dir}/4.pt");
        let started = |text: &str| fill_run_dir(&fill(text, &values).expect("all is known"), "/a b");
        assert_eq!(started("--to={run.dir}/{params.depth}.pt"), "--to=/a b/4.pt");
        assert_eq!(started("{{run.dir}} is {run.dir}, not ${run.dir}"), "{run.dir} is /a b, not ${run.dir}");
        assert_eq!(fill("--x={params.x}", &values), None, "it does not apply");
        // Text stored by an older version.
        check("{foreign.key}", "{foreign.key}");
    }

    #[test]
    fn an_argument_of_nothing_but_empty_values_is_left_out() {
        let values = json!({ "params": { "amp": "", "name": "x" } });
        let argument = |text: &str| argument(text, &values);
        assert_eq!(argument("{params.amp}"), None);
        assert_eq!(argument("{params.amp}{params.amp}"), None);
        assert_eq!(argument("--amp={params.amp}").as_deref(), Some("--amp="));
        assert_eq!(argument("{params.amp}{params.name}").as_deref(), Some("x"));
        assert_eq!(argument("").as_deref(), Some(""), "the recipe says so");
    }

    #[test]
    fn other_braces_are_text() {
        let values = json!({ "params": { "depth": 4 } });
        for (text, expected) in [
            ("{{params.depth}}", "{params.depth}"),
            ("{{{params.depth}}}", "{{params.depth}}"),
            ("a{{params.depth}}{params.depth}", "a{params.depth}4"),
            ("echo ${RANK} ${params.depth}", "echo ${RANK} ${params.depth}"),
            ("{\"depth\": {params.depth}}", "{\"depth\": 4}"),
            ("{\"a\": {\"b\": 1}}", "{\"a\": {\"b\": 1}}"),
            (
                "{{ params.depth }} {} { } } {a {1.5} {.x} ü{ü",
                "{{ params.depth }} {} { } } {a {1.5} {.x} ü{ü",
            ),
        ] {
            assert_eq!(fill(text, &values).as_deref(), Some(expected), "{text}");
        }
        let named: Vec<_> = paths("{params.lr} {{params.x}} {layout} {rank} {a.b}").collect();
        assert_eq!(named, ["params.lr", "layout", "a.b"]);
    }
}
