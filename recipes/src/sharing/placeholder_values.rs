//! Expands the arguments and variables of a command with all values that its placeholders can have.

use crate::params::{ParamDomain, ParamValue};
use crate::placeholder::{RUN_DIR, Ranks, paths, plain, replaced, value_at_path, values};
use crate::recipe::Recipe;
use serde_json::Value;
use std::collections::BTreeMap;

/// Character that stands for a value that is not known before a run.
pub(super) const UNKNOWN: char = '\u{0}';

/// Character that stands for the folder of a run.
pub(super) const IN_RUN_DIR: char = '\u{1}';

/// Maximum number of texts that one text may expand to.
const MOST_TEXTS: usize = 1000;

/// The values that the placeholders of a recipe can have.
pub(super) struct PlaceholderValues {
    /// All values that each param can have, by name; `None` if its range is not a list of choices.
    params: BTreeMap<String, Option<Vec<ParamValue>>>,
    /// Values of the recipe's other sections, as JSON.
    recipe: Value,
}

impl PlaceholderValues {
    pub(super) fn of(recipe: &Recipe) -> Self {
        let mut params: BTreeMap<_, _> =
            recipe.params.iter().map(|(name, value)| (name.clone(), Some(vec![value.clone()]))).collect();
        for (name, range) in &recipe.ranges {
            let mut all = domain_values(&range.within);
            if let Some(all) = &mut all {
                all.extend(params.remove(name).flatten().unwrap_or_default());
                all.extend(range.default.clone());
            }
            params.insert(name.clone(), all);
        }
        Self { params, recipe: values(recipe, Ranks::SINGLE) }
    }

    /// Returns all texts that params can have as values.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.params.values().flatten().flatten().filter_map(|value| match value {
            ParamValue::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Returns `text` filled with each combination of placeholder values; `None` if there are too many
    /// combinations.
    pub(super) fn filled(&self, text: &str) -> Option<Vec<String>> {
        let mut combinations = vec![BTreeMap::<&str, String>::new()];
        for path in paths(text) {
            if combinations[0].contains_key(path) {
                continue;
            }
            let values = self.values(path);
            if combinations.len().saturating_mul(values.len()) > MOST_TEXTS {
                return None;
            }
            let mut more = Vec::new();
            for (known, value) in combinations.iter().flat_map(|known| values.iter().map(move |v| (known, v)))
            {
                let mut known = known.clone();
                known.insert(path, value.clone());
                more.push(known);
            }
            combinations = more;
        }
        let fill = |known: &BTreeMap<&str, String>| {
            replaced(text, |path| known.get(path).cloned().unwrap_or_else(|| UNKNOWN.into()))
        };
        Some(combinations.iter().map(fill).collect())
    }

    /// Returns the values that the placeholder `path` can have, as texts; at least one.
    fn values(&self, path: &str) -> Vec<String> {
        let unknown = || vec![UNKNOWN.to_string()];
        if path == RUN_DIR {
            return vec![IN_RUN_DIR.to_string()];
        }
        if let Some(name) = path.strip_prefix("params.") {
            let values = self.params.get(name).and_then(Option::as_ref);
            return values.map_or_else(unknown, |all| all.iter().map(ParamValue::plain).collect());
        }
        let is_decided = ["train.", "objective."].iter().any(|section| path.starts_with(section));
        let value = value_at_path(&self.recipe, path).filter(|_| is_decided);
        value.map_or_else(unknown, |value| vec![plain(value).into_owned()])
    }
}

/// Returns all values in a param's domain; `None` if it is not a list of choices, or has too many.
fn domain_values(within: &ParamDomain) -> Option<Vec<ParamValue>> {
    match within {
        ParamDomain::Choices(choices) => Some(choices.clone()),
        ParamDomain::Log(ParamValue::Whole(low), ParamValue::Whole(high))
        | ParamDomain::Uniform(ParamValue::Whole(low), ParamValue::Whole(high)) => {
            let is_short = high.checked_sub(*low).is_some_and(|more| (0..MOST_TEXTS as i64).contains(&more));
            is_short.then(|| (*low..=*high).map(ParamValue::Whole).collect())
        }
        ParamDomain::Log(..) | ParamDomain::Uniform(..) => None,
    }
}
