//! Merges documents in layers: a recipe over those that it extends, and overrides over the recipe.

use super::{Document, Entry, SpannedValue, Table, Value};
use crate::source::{ConfigLayer, Source};
use std::sync::Arc;

impl Document {
    /// Lays this document over another: sections are merged key by key, any other value replaces the lower
    /// one.
    #[must_use]
    pub fn layer_over(self, below: Self) -> Self {
        let mut table = below.table;
        merge(&mut table, self.table);
        let source = strongest(self.source, below.source);
        Self { source, table }
    }
}

/// Returns the source to show for two merged documents: the higher one, except that a recipe's file outranks
/// `--set`, which has no text to show.
fn strongest(above: Option<Arc<Source>>, below: Option<Arc<Source>>) -> Option<Arc<Source>> {
    let rank = |source: &Arc<Source>| match source.layer {
        ConfigLayer::Recipe => 3,
        ConfigLayer::Extended => 2,
        ConfigLayer::Settings | ConfigLayer::Cluster => 1,
        ConfigLayer::Default | ConfigLayer::Environment | ConfigLayer::Assignment => 0,
    };
    match (above, below) {
        (Some(above), Some(below)) if rank(&below) > rank(&above) => Some(below),
        (above, below) => above.or(below),
    }
}

/// Merges `above` into `below`; in a conflict the value of `above` stays.
fn merge(below: &mut Table, above: Table) {
    for (key, entry) in above {
        match (below.get_mut(&key), entry) {
            (
                Some(Entry {
                    node: SpannedValue { value: Value::Section(old) | Value::Inline(old), .. },
                    ..
                }),
                Entry { node: SpannedValue { value: Value::Section(new), .. }, .. },
            ) => merge(old, new),
            (_, entry) => {
                below.insert(key, entry);
            }
        }
    }
}
