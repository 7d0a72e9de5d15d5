//! Overrides of single keys by the command line and the environment: `--set train.seed=7`,
//! `DTRAIN_TRAIN__SEED=7`.
//!
//! A value is parsed as TOML, and is a text if that fails. For a key that takes a text, it stays the text
//! that was typed: `1.10` and `12e45` are not numbers in `params.version` if the recipe has a text there.

use crate::document::{Document, Leaf, SpannedValue, Value, node_of, too_large};
use crate::keys::{ValueType, keys};
use crate::problem::Problem;
use crate::source::{ConfigLayer, LARGEST, Origin, Source};
use std::path::Path;
use std::sync::Arc;
use toml::de::DeValue;

/// Maximum number of segments in the path of a key. The deepest key of a recipe, `params.NAME.when.NAME`, has
/// four.
const DEEPEST: usize = 16;

impl Document {
    /// Returns a document with one value: `key` is its dotted path, and `value` is parsed as TOML, or taken
    /// as a text if that fails.
    ///
    /// Messages call the document `name`: `--set`, `environment variable DTRAIN_TRAIN__SEED`. `Err` for an
    /// impossible path.
    pub fn from_override(
        layer: ConfigLayer,
        name: &str,
        key: &str,
        value: &str,
    ) -> Result<Self, Vec<Problem>> {
        Self::from_override_in(Path::new(""), layer, name, key, value)
    }

    /// Returns a document with one value, like [`Self::from_override`], but relative data paths in it start
    /// from `folder` instead of the recipe's folder.
    pub fn from_override_in(
        folder: &Path,
        layer: ConfigLayer,
        name: &str,
        key: &str,
        value: &str,
    ) -> Result<Self, Vec<Problem>> {
        if key.len() + value.len() >= LARGEST {
            return Err(vec![too_large(name, key.len() + value.len() + 1)]);
        }
        let segments: Vec<&str> = key.split('.').collect();
        if segments.len() > DEEPEST {
            let start: String = key.chars().take(40).collect();
            let message =
                format!("{name}: the key {start}… has {} names, at most {DEEPEST} are read", segments.len());
            return Err(vec![Problem::new(message).hint("write a path such as `train.seed`")]);
        }
        let source = Source::new(name, layer, format!("{key}={value}"));
        let source = Arc::new(Source { base: folder.to_owned(), ..source });
        let start = key.len() + 1;
        let whole = Origin::of(&source, 0..key.len());
        if segments.iter().any(|segment| segment.trim().is_empty()) {
            let problem = Problem::new(format!("{key:?} is not the path of a key"))
                .at(&whole)
                .hint("write a path such as `train.seed`");
            return Err(vec![problem]);
        }
        let value = match DeValue::parse(value) {
            Ok(parsed) => node_of(&source, &parsed, start),
            Err(_) => SpannedValue {
                origin: Origin::of(&source, start..start + value.len()),
                value: Value::Text(value.to_owned()),
            },
        };
        let path = segments.iter().map(|segment| (segment.trim().to_owned(), whole.clone())).collect();
        let mut document = Self::from_leaves([Leaf { path, node: value }]);
        crate::document::rename(&mut document.table);
        document.source = Some(source);
        Ok(document)
    }

    /// Returns an overriding value to lay over this document: the text as the user typed it if the key takes
    /// a text.
    ///
    /// The table of keys decides that; for user-chosen names, the type of the value in this document.
    #[must_use]
    pub fn typed_over(&self, leaf: Leaf) -> Leaf {
        let names: Vec<&str> = leaf.path.iter().map(|(name, _)| name.as_str()).collect();
        let path = names.join(".");
        let is_scalar =
            matches!(leaf.node.value, Value::Whole(_) | Value::Real(_) | Value::Flag(_) | Value::Date(_));
        let is_list = matches!(leaf.node.value, Value::List(_));
        let is_text = match names.as_slice() {
            ["model", "env", _] | ["cluster", "notice", "headers", _] => {
                !matches!(leaf.node.value, Value::Text(_))
            }
            ["params", name] | ["params", name, "default"] => {
                (is_scalar || is_list) && self.get(&format!("params.{name}")).is_some_and(is_text_here)
                    || matches!(leaf.node.value, Value::Date(_))
            }
            ["model", "settings", _] => (is_scalar || is_list) && self.get(&path).is_some_and(is_text_here),
            // Other paths are in the table of keys.
            _ => wants_text(&path, is_scalar, is_list),
        };
        match leaf.node.origin.text() {
            Some(typed) if is_text => Leaf {
                node: SpannedValue { value: Value::Text(typed.to_owned()), origin: leaf.node.origin.clone() },
                ..leaf
            },
            _ => leaf,
        }
    }
}

/// Returns `true` if a value is a text, or a search space with texts as choices.
fn is_text_here(node: &SpannedValue) -> bool {
    match &node.value {
        Value::Text(_) => true,
        Value::Inline(range) | Value::Section(range) => match range
            .get("choices")
            .map(|entry| &entry.node.value)
        {
            Some(Value::List(choices)) => choices.iter().all(|choice| matches!(choice.value, Value::Text(_))),
            _ => false,
        },
        _ => false,
    }
}

/// Returns `true` if the key at `path` takes a text, although the override was parsed as another scalar, or
/// as a list.
fn wants_text(path: &str, is_scalar: bool, is_list: bool) -> bool {
    let is_wanted = |shape: ValueType| {
        is_scalar && may_be_text(shape) || is_list && may_be_text(shape) && !is_files(shape)
    };
    keys().iter().any(|key| key.path == path && is_wanted(key.shape))
}

fn may_be_text(shape: ValueType) -> bool {
    match shape {
        ValueType::Text
        | ValueType::Name
        | ValueType::Host
        | ValueType::Network
        | ValueType::HttpUrl
        | ValueType::Metric
        | ValueType::Files
        | ValueType::Tokenizer => true,
        ValueType::OrNone(inner) | ValueType::OrAuto(inner) | ValueType::Choice(inner) => may_be_text(*inner),
        _ => false,
    }
}

fn is_files(shape: ValueType) -> bool {
    matches!(shape, ValueType::Files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = "[model]\nkind = \"command\"\nargv = [\"a\"]\n\
        [params]\ncommit = \"12e4567\"\nlr = 0.1\nversion = { choices = [\"1.9\", \"1.10\"] }\n";

    /// Returns the value that `key=value` gives over the test recipe.
    fn typed(key: &str, value: &str) -> Value {
        let recipe = Document::parse(&Source::new("r.toml", ConfigLayer::Recipe, RECIPE)).expect("TOML");
        let document = Document::from_override(ConfigLayer::Assignment, "--set", key, value).expect("a key");
        let leaf = document.leaves().remove(0);
        recipe.typed_over(leaf).node.value
    }

    #[test]
    fn a_value_is_the_text_that_was_typed_where_a_text_is_wanted() {
        for value in ["12e45", "1.10", "true", "2024-01-01", "[1, 2]", "0x10", "1_000", "nan", "007"] {
            for key in [
                "params.commit",
                "description",
                "data.target",
                "model.env.NAME",
                "cluster.notice.headers.Name",
            ] {
                let found = typed(key, value);
                assert!(matches!(&found, Value::Text(text) if text == value), "{key}={value}: {found:?}");
            }
        }
        for key in ["params.version", "params.version.default"] {
            assert!(matches!(typed(key, "1.10"), Value::Text(text) if text == "1.10"), "{key}");
        }
        assert!(matches!(typed("params.commit", "\"1.10\""), Value::Text(text) if text == "1.10"), "quoted");
        assert!(matches!(typed("data.train", "2024"), Value::Text(text) if text == "2024"), "a file");
    }

    #[test]
    fn other_values_keep_their_type() {
        assert!(matches!(typed("params.lr", "1e-3"), Value::Real(_)));
        assert!(matches!(typed("params.new", "3"), Value::Whole(3)), "its type is unknown");
        assert!(matches!(typed("train.seed", "7"), Value::Whole(7)));
        assert!(matches!(typed("data.train", "[\"a\", \"b\"]"), Value::List(_)));
        assert!(matches!(typed("params.commit", "{ choices = [\"a\"] }"), Value::Inline(_)), "a range");
    }

    #[test]
    fn a_path_of_thousands_of_names_is_refused() {
        for names in [DEEPEST + 1, 2_000, 100_000] {
            let key = vec!["a"; names].join(".");
            let problems = Document::from_override(ConfigLayer::Assignment, "--set", &key, "1")
                .expect_err("it is refused");
            let words = problems[0].render(false);
            assert!(words.contains("at most 16"), "{words}");
        }
    }

    #[test]
    fn files_that_nest_deeply_are_refused_or_read() {
        let many = 20_000;
        let dotted = format!("{}b = 1", "a.".repeat(many));
        let header = format!("[{}b]\nc = 1", "a.".repeat(many));
        let lists = format!("a = {}{}", "[".repeat(many), "]".repeat(many));
        let tables = format!("a = {}1{}", "{ b = ".repeat(many), " }".repeat(many));
        for text in [dotted, header, lists, tables] {
            assert!(Document::parse(&Source::new("r.toml", ConfigLayer::Recipe, text.as_str())).is_err());
        }
        let value = format!("{}{}", "[".repeat(many), "]".repeat(many));
        drop(Document::from_override(ConfigLayer::Assignment, "--set", "params.a", &value));
    }
}
