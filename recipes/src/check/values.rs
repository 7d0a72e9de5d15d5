//! The checked values of a recipe by path, before the typed recipe is built.

use super::parsed::ParsedValue;
use super::{FilePattern, ResolvedValue};
use crate::keys::{KEYS, Key, Kind, Requirement};
use crate::keyword_enum::KeywordEnum;
use crate::source::{ConfigLayer, Origin};
use std::collections::BTreeMap;

/// The values of a recipe that match the types of their keys, each with its position in the recipe.
#[derive(Default)]
pub(super) struct ParsedValues {
    pub(super) kind: Option<Kind>,
    map: BTreeMap<&'static str, (ParsedValue, Origin)>,
    /// Dotted paths of invalid values, which have already been reported.
    pub(super) wrong: Vec<String>,
}

impl ParsedValues {
    pub(super) fn of_kind(kind: Option<Kind>) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Returns `true` if the samples of the model are token sequences.
    pub(super) fn reads_tokens(&self) -> bool {
        match self.kind {
            Some(Kind::Decoder) => true,
            Some(Kind::Custom) => self.get("model.context").is_some(),
            Some(Kind::Mlp | Kind::Cnn | Kind::Command) | None => false,
        }
    }

    pub(super) fn insert(&mut self, path: &'static str, value: ParsedValue, origin: Origin) {
        self.map.insert(path, (value, origin));
    }

    /// Sets the key at `path` to the default `value` if it is absent.
    pub(super) fn or(&mut self, path: &'static str, value: ParsedValue) {
        self.map.entry(path).or_insert_with(|| (value, Origin::builtin()));
    }

    pub(super) fn get(&self, path: &str) -> Option<&ParsedValue> {
        self.map.get(path).map(|(value, _)| value)
    }

    /// Returns the position in the recipe of the value at `path`; `None` for a default or an absent key.
    pub(super) fn said(&self, path: &str) -> Option<&Origin> {
        self.map.get(path).map(|(_, origin)| origin).filter(|origin| origin.layer() != ConfigLayer::Default)
    }

    /// Returns `true` if the value at `path` or below it is invalid, so that further rules would mislead.
    pub(super) fn is_wrong(&self, path: &str) -> bool {
        self.wrong.iter().any(|wrong| wrong.starts_with(path))
    }

    pub(super) fn whole(&self, path: &str) -> Option<u64> {
        self.get(path)?.whole()
    }

    pub(super) fn count(&self, path: &str) -> Option<u32> {
        self.whole(path).and_then(|n| u32::try_from(n).ok())
    }

    pub(super) fn real(&self, path: &str) -> Option<f64> {
        self.get(path)?.real()
    }

    /// Returns the variant of the keyword enum `T` at `path`; `None` if the value is absent or "auto".
    pub(super) fn one_of<T: KeywordEnum>(&self, path: &str) -> Option<T> {
        self.get(path)?.one_of()
    }

    pub(super) fn flag(&self, path: &str) -> Option<bool> {
        self.get(path)?.flag()
    }

    pub(super) fn text(&self, path: &str) -> Option<String> {
        self.get(path)?.text().map(ToOwned::to_owned)
    }

    /// Returns the files, patterns and URLs at the key `path`; empty if it names none.
    pub(super) fn patterns(&self, path: &str) -> Vec<String> {
        self.get(path).and_then(ParsedValue::files).unwrap_or_default()
    }

    /// Returns every key that applies to the kind of model, with its value, in the order of the table of
    /// keys.
    pub(super) fn resolved(&self) -> Vec<ResolvedValue> {
        let is_said_of_ours = |key: &Key| self.kind == Some(Kind::Command) && self.said(key.path).is_some();
        let applies =
            |key: &Key| self.kind.is_none_or(|kind| key.kinds.contains(&kind)) || is_said_of_ours(key);
        let keys = KEYS
            .iter()
            .filter(|key| applies(key) && !key.path.starts_with("cluster.hosts.") && key.path != "extends");
        keys.flat_map(|key| match (self.map.get(key.path), key.need) {
            (Some((ParsedValue::Params(params), _)), _) => params
                .iter()
                .map(|(name, (param, origin))| (format!("params.{name}"), param.to_string(), origin.clone()))
                .collect(),
            (Some((value, origin)), _) => vec![(key.path.to_owned(), value.to_string(), origin.clone())],
            (None, Requirement::Optional(_)) => {
                vec![(key.path.to_owned(), ParsedValue::Unset.to_string(), Origin::builtin())]
            }
            (None, Requirement::Required | Requirement::Default(_)) => Vec::new(),
        })
        .map(|(path, value, origin)| ResolvedValue { path, value, origin })
        .collect()
    }

    pub(super) fn files(&self) -> Vec<FilePattern> {
        let mut files = Vec::new();
        for (key, (value, _)) in &self.map {
            if let ParsedValue::Files(patterns) = value {
                files.extend(patterns.iter().map(|(pattern, origin)| FilePattern {
                    key,
                    pattern: pattern.clone(),
                    origin: origin.clone(),
                }));
            }
        }
        files
    }
}
