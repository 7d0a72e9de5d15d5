//! The published runs that the constants have seen: how many sources measured what an estimate depends on. What
//! few measured is less certain.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Numbers of sources of published runs, by property of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Experience {
    sources: Arc<BTreeMap<String, u32>>,
}

impl Experience {
    /// Counts the sources of each property, of pairs of a source and a property.
    pub(super) fn of<'a>(measured: impl Iterator<Item = (&'a str, String)>) -> Self {
        let mut seen: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (source, name) in measured {
            seen.entry(name).or_default().insert(source);
        }
        let count = |sources: BTreeSet<&str>| u32::try_from(sources.len()).unwrap_or(u32::MAX);
        Self { sources: Arc::new(seen.into_iter().map(|(name, sources)| (name, count(sources))).collect()) }
    }

    /// Returns the number of sources that measured runs with the property `name`.
    pub fn sources(&self, name: &str) -> u32 {
        self.sources.get(name).copied().unwrap_or(0)
    }

    /// Returns the contents of the data file.
    pub fn page(&self) -> String {
        let lines = self.sources.iter().map(|(name, sources)| format!("\"{name}\" = {sources}\n"));
        lines.collect()
    }
}
