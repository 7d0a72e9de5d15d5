//! Configuration layers of a recipe, merged with figment; later layers take precedence.
//!
//! defaults of the language < user settings < extended recipes < recipe < cluster file < `DTRAIN_*` <
//! `--set`. Figment merges trees of indices into a list of values. Each value keeps its source, so that
//! `show --resolved` and every message can name it. `dtrain_recipes::check` interprets the values.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_recipes::document::{Document, Leaf, SpannedValue, Value};
use dtrain_recipes::source::{ConfigLayer, Origin};
use figment::value::{Dict, Map, Value as Tree};
use figment::{Figment, Metadata, Profile, Provider};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// A stack of configuration layers.
#[derive(Default)]
pub(crate) struct LayeredConfig {
    figment: Figment,
    /// Values of all layers; the trees hold indices into this list.
    leaves: Vec<Leaf>,
}

/// One layer as a figment provider: a tree whose leaves are indices of values.
struct LayerIndices {
    layer: ConfigLayer,
    tree: Dict,
}

impl Provider for LayerIndices {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.layer.to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.tree.clone())]))
    }
}

impl LayeredConfig {
    /// Adds a layer that takes precedence over those added before.
    pub(crate) fn over(mut self, layer: ConfigLayer, document: Document) -> Result<Self, CommandError> {
        let below = self.merged()?;
        let known = self.document(&below);
        let is_typed = matches!(layer, ConfigLayer::Environment | ConfigLayer::Assignment);
        let mut tree = Dict::new();
        for leaf in document.leaves() {
            let leaf = if is_typed { known.typed_over(leaf) } else { leaf };
            self.open_inline(&below, &mut tree, &leaf);
            self.put(&mut tree, leaf);
        }
        self.figment = std::mem::take(&mut self.figment).merge(LayerIndices { layer, tree });
        Ok(self)
    }

    /// Merges all layers of the stack into one document.
    pub(crate) fn resolve(self) -> Result<Document, CommandError> {
        Ok(self.document(&self.merged()?))
    }

    fn document(&self, merged: &Dict) -> Document {
        let mut chosen = Vec::new();
        indices(merged, &mut chosen);
        Document::from_leaves(chosen.into_iter().filter_map(|index| self.leaves.get(index).cloned()))
    }

    fn merged(&self) -> Result<Dict, CommandError> {
        self.figment.extract::<Dict>().map_err(|error| {
            CommandError::new(ExitReason::Infrastructure, "cannot merge the layers of settings")
                .cause(error.to_string())
        })
    }

    /// Merges a value into an inline table of a lower layer (`--set objective.stop.steps=5` into
    /// `stop = { tokens = "1M" }`): copies the table's other values first.
    fn open_inline(&mut self, below: &Dict, tree: &mut Dict, leaf: &Leaf) {
        let mut level = below;
        for (depth, (key, _)) in leaf.path.iter().enumerate() {
            match level.get(key) {
                Some(Tree::Dict(_, inner)) => level = inner,
                Some(Tree::Num(_, number)) if depth + 1 < leaf.path.len() => {
                    let index = number.to_u128().and_then(|n| usize::try_from(n).ok());
                    let Some(held) = index.and_then(|index| self.leaves.get(index).cloned()) else { return };
                    self.put_inline(tree, &held.path, &held.node);
                    return;
                }
                _ => return,
            }
        }
    }

    fn put_inline(&mut self, tree: &mut Dict, path: &[(String, Origin)], node: &SpannedValue) {
        let Value::Inline(table) = &node.value else { return };
        for (key, entry) in table {
            let mut path = path.to_vec();
            path.push((key.clone(), entry.key.clone()));
            self.put(tree, Leaf { path, node: entry.node.clone() });
        }
    }

    fn put(&mut self, tree: &mut Dict, leaf: Leaf) {
        let path: Vec<String> = leaf.path.iter().map(|(key, _)| key.clone()).collect();
        insert(tree, &path, self.leaves.len() as u64);
        self.leaves.push(leaf);
    }
}

fn insert(tree: &mut Dict, path: &[String], index: u64) {
    let Some((key, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        tree.insert(key.clone(), Tree::from(index));
        return;
    }
    let below = tree.entry(key.clone()).or_insert_with(|| Tree::from(Dict::new()));
    if !matches!(below, Tree::Dict(..)) {
        *below = Tree::from(Dict::new());
    }
    if let Tree::Dict(_, inner) = below {
        insert(inner, rest, index);
    }
}

fn indices(tree: &Dict, chosen: &mut Vec<usize>) {
    for value in tree.values() {
        match value {
            Tree::Dict(_, inner) => indices(inner, chosen),
            Tree::Num(_, number) => chosen.extend(number.to_u128().and_then(|n| usize::try_from(n).ok())),
            Tree::String(..) | Tree::Char(..) | Tree::Bool(..) | Tree::Empty(..) | Tree::Array(..) => {}
        }
    }
}

/// Names of `DTRAIN_*` variables that configure the program, or that dtrain sets for a command: none is a
/// recipe key.
const NOT_KEYS: &[&str] = &[
    "DTRAIN_STATE",
    "DTRAIN_PARAMS",
    dtrain_worker::device::SOFTWARE_GPUS,
    dtrain_worker::device::KERNEL_CACHE,
    dtrain_worker::device::TUNING_SECONDS,
    dtrain_worker::comm::NCCL_SWITCH,
];

/// Parses environment variables into keys and values, sorted by name: `DTRAIN_TRAIN__SEED=7` sets
/// `train.seed = 7`.
pub(crate) fn environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<String, (String, String)> {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    variables
        .filter_map(text)
        .filter(|(name, _)| !NOT_KEYS.contains(&name.as_str()))
        .filter_map(|(name, value)| {
            let key = name.strip_prefix("DTRAIN_")?.to_ascii_lowercase().replace("__", ".");
            Some((name, (key, value)))
        })
        .collect()
}

/// Parses one `KEY=VALUE` of `--set` into a document.
pub(crate) fn assignment(text: &str, base: &Path) -> Result<Document, CommandError> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(CommandError::new(ExitReason::Usage, format!("--set wants key=value, found {text:?}"))
            .hint("write, for example, --set train.seed=7"));
    };
    Ok(Document::from_override_in(base, ConfigLayer::Assignment, "--set", key.trim(), value.trim())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_recipes::source::Source;

    fn document(layer: ConfigLayer, text: &str) -> Document {
        Document::parse(&Source::new("r.toml", layer, text)).expect("valid TOML")
    }

    fn resolved(layers: &[(ConfigLayer, &str)]) -> Document {
        let add = |below: LayeredConfig, (layer, text): &(ConfigLayer, &str)| {
            below.over(*layer, document(*layer, text)).expect("they merge")
        };
        layers.iter().fold(LayeredConfig::default(), add).resolve().expect("they merge")
    }

    fn said(document: &Document, key: &str) -> (String, ConfigLayer) {
        let node = document.get(key).unwrap_or_else(|| panic!("{key} is missing"));
        (format!("{:?}", node.value), node.origin.layer())
    }

    #[test]
    fn a_later_layer_wins_and_every_value_keeps_its_place() {
        let document = resolved(&[
            (ConfigLayer::Settings, "[train]\nseed = 1\nclip = 1.0"),
            (ConfigLayer::Recipe, "[train]\nseed = 2"),
            (ConfigLayer::Assignment, "train.seed = 3"),
        ]);
        assert_eq!(said(&document, "train.seed"), ("Whole(3)".into(), ConfigLayer::Assignment));
        assert_eq!(said(&document, "train.clip"), ("Real(1.0)".into(), ConfigLayer::Settings));
    }

    #[test]
    fn an_inline_table_replaces_what_lies_below_it() {
        let document = resolved(&[
            (ConfigLayer::Extended, "[train]\nlearning_rate = { choices = [1, 2] }"),
            (ConfigLayer::Recipe, "[train]\nlearning_rate = { log = [1, 2] }"),
        ]);
        let keys = document.get("train.learning_rate").and_then(SpannedValue::table).map(|table| table.len());
        assert_eq!(keys, Some(1));
    }

    #[test]
    fn a_dotted_key_adds_to_an_inline_table_below_it() {
        let document = resolved(&[
            (ConfigLayer::Recipe, "[objective]\nstop = { tokens = 5, time = 6 }"),
            (ConfigLayer::Assignment, "objective.stop.tokens = 7"),
        ]);
        assert_eq!(said(&document, "objective.stop.tokens"), ("Whole(7)".into(), ConfigLayer::Assignment));
        assert_eq!(said(&document, "objective.stop.time"), ("Whole(6)".into(), ConfigLayer::Recipe));
    }

    #[test]
    fn variables_name_keys_by_double_underscores() {
        let variables = [("DTRAIN_TRAIN__LEARNING_RATE", "1e-3"), ("DTRAIN_STATE", "/x"), ("HOME", "/root")];
        let found = environment(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        let found: Vec<_> = found.into_iter().collect();
        let expected =
            ("DTRAIN_TRAIN__LEARNING_RATE".to_owned(), ("train.learning_rate".to_owned(), "1e-3".to_owned()));
        assert_eq!(found, [expected]);
    }

    #[test]
    fn an_assignment_without_a_value_is_refused_with_an_example() {
        let failure = assignment("train.seed", Path::new("")).expect_err("no equals sign");
        assert!(failure.render(crate::color::ColorMode::plain()).contains("--set train.seed=7"));
    }
}
