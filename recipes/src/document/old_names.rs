//! Old names of recipe keys and words. Recipes of earlier versions stay valid; a note tells the new name.

use super::{Document, Entry, SpannedValue, Table, Value};
use crate::problem::Problem;

/// Renamed keys: the section of each, its old name there, and its full name in [`crate::keys::KEYS`].
pub const OLD_KEYS: &[(&str, &str, &str)] = &[
    ("model", "with", "settings"),
    ("tune", "least", "min_steps"),
    ("cluster", "lost_after", "unreachable_timeout"),
];

/// Renamed words: the section and name of each key, a word that it used to take, and the word that replaces
/// it.
pub const OLD_WORDS: &[(&str, &str, &str, &str)] = &[("model", "kind", "own", "custom")];

/// Renames old keys and words of a document to today's names. If both names of a key are present, the old one
/// stays and is reported as unknown.
pub(crate) fn rename(table: &mut Table) {
    for &(section, old, new) in OLD_KEYS {
        let Some(inner) = inside(table, section) else { continue };
        if !inner.contains_key(new)
            && let Some(entry) = inner.remove(old)
        {
            inner.insert(new.to_owned(), entry);
        }
    }
    for &(section, key, old, new) in OLD_WORDS {
        if let Some(Value::Text(word)) =
            inside(table, section).and_then(|inner| inner.get_mut(key)).map(|entry| &mut entry.node.value)
            && word == old
        {
            *word = new.to_owned();
        }
    }
}

/// Returns a note for each key and word of a document that [`rename`] renamed, since its text still has the
/// old name.
pub(crate) fn notes(document: &Document) -> Vec<Problem> {
    let mut notes = Vec::new();
    for (section, old, new) in OLD_KEYS {
        let Some(entry) = document.entry(&format!("{section}.{new}")) else { continue };
        let written = entry.key.text().unwrap_or_default();
        let written = written.rsplit('.').next().unwrap_or(written);
        if written.trim().trim_matches(['"', '\'']) == *old {
            let message = format!("`{section}.{old}` is now called `{section}.{new}`");
            notes.push(Problem::new(message).at(&entry.key));
        }
    }
    for (section, key, old, new) in OLD_WORDS {
        let Some(node) = document.get(&format!("{section}.{key}")) else { continue };
        let is_old = node.origin.text().is_some_and(|text| text.trim_matches(['"', '\'']) == *old);
        if is_old && matches!(&node.value, Value::Text(word) if word == new) {
            notes.push(
                Problem::new(format!("`{section}.{key} = \"{old}\"` is now `{section}.{key} = \"{new}\"`"))
                    .at(&node.origin),
            );
        }
    }
    notes
}

fn inside<'t>(table: &'t mut Table, section: &str) -> Option<&'t mut Table> {
    match table.get_mut(section)? {
        Entry { node: SpannedValue { value: Value::Section(inner) | Value::Inline(inner), .. }, .. } => {
            Some(inner)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KEYS, find};
    use crate::source::{ConfigLayer, Source};

    #[test]
    fn every_old_name_stands_for_a_key_and_is_no_key_itself() {
        for (section, old, new) in OLD_KEYS {
            let (old, new) = (format!("{section}.{old}"), format!("{section}.{new}"));
            assert!(KEYS.iter().any(|key| key.path == new) && find(&old, None).is_none(), "{old} {new}");
        }
        for (section, key, ..) in OLD_WORDS {
            assert!(find(&format!("{section}.{key}"), None).is_some(), "{section}.{key}");
        }
    }

    #[test]
    fn an_old_key_counts_under_its_new_name_and_the_note_names_its_line() {
        let text = "[model]\nkind = \"own\"\n[model.with]\ndepth = 3\n[tune]\nleast = 7\n";
        let recipe = Document::parse(&Source::new("r.toml", ConfigLayer::Recipe, text)).expect("TOML");
        assert!(recipe.get("tune.least").is_none() && recipe.get("model.settings.depth").is_some());
        let notes = |document: &Document| -> Vec<String> {
            let words = |note: Problem| format!("{}: {}", note.origin.expect("a place"), note.message);
            super::notes(document).into_iter().map(words).collect()
        };
        assert_eq!(
            notes(&recipe),
            [
                "r.toml:3:8: `model.with` is now called `model.settings`",
                "r.toml:6:1: `tune.least` is now called `tune.min_steps`",
                "r.toml:2:8: `model.kind = \"own\"` is now `model.kind = \"custom\"`",
            ]
        );
        let typed =
            Document::from_override(ConfigLayer::Assignment, "--set", "tune.least", "9").expect("a path");
        let both = typed.layer_over(recipe);
        assert!(matches!(both.get("tune.min_steps").map(|node| &node.value), Some(Value::Whole(9))));
        assert!(notes(&both).contains(&"--set: `tune.least` is now called `tune.min_steps`".to_owned()));
        let today = "[model]\nkind = \"custom\"\n[tune]\nmin_steps = 7\n";
        let today = Document::parse(&Source::new("r.toml", ConfigLayer::Recipe, today)).expect("TOML");
        assert!(notes(&today).is_empty());
    }
}
