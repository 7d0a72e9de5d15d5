//! Names that conditions and sort orders may use, and suggestions for unknown ones.

use super::columns::{COLUMNS, WORDS, column};
use super::condition_error::ConditionError;
use super::{BoxError, History};
use crate::fact::LedgerError;
use dtrain_recipes::keys::{ValueType, keys};
use rusqlite::Connection;
use std::collections::BTreeSet;

/// Metrics that every trial may have.
const METRICS: [&str; 2] = ["valid.loss", "valid.accuracy"];

/// Column titles of tables that are not the name of their column, each with that name.
const TITLES: [(&str, &str); 2] = [("rate", "learning_rate"), ("tok/s", "tokens_per_second")];

/// Names that occur in a history, for conditions and sort orders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownNames {
    /// Keys of recipes, plans and recorded series.
    keys: BTreeSet<String>,
    /// True if the history has any trial.
    has_trials: bool,
}

impl History {
    /// Returns the names that conditions may use.
    pub fn names(&self) -> Result<KnownNames, LedgerError> {
        self.read("read names from", names)
    }
}

fn names(database: &Connection) -> Result<KnownNames, BoxError> {
    let mut select = database.prepare("SELECT name FROM key")?;
    let keys = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let has_trials = database.query_row("SELECT EXISTS(SELECT 1 FROM trial)", [], |row| row.get(0))?;
    Ok(KnownNames { keys, has_trials })
}

impl KnownNames {
    /// Resolves a name that a condition compares with a number: a column, a key or a series. `Err` suggests a
    /// similar name.
    pub(super) fn number(&self, name: &str) -> Result<String, ConditionError> {
        let plain = name.to_lowercase();
        let title = TITLES.iter().find(|(title, _)| *title == plain).map(|(_, column)| *column);
        if column(name).is_some() || self.is_key(name) {
            return Ok(name.to_owned());
        }
        if let Some(column) = title.or_else(|| column(&plain).map(|_| plain.as_str())) {
            return Ok(column.to_owned());
        }
        if WORDS.contains(&plain.as_str()) {
            return Err(ConditionError::Word(plain));
        }
        Err(ConditionError::Unknown { name: name.to_owned(), near: self.near(name) })
    }

    /// Returns `true` if a name is a setting that may have a word as its value: a recorded parameter, or a
    /// key of the recipe.
    pub(super) fn has_words(&self, name: &str) -> bool {
        let is_worded = |shape: ValueType| match shape {
            ValueType::Text | ValueType::Name | ValueType::Flag | ValueType::OneOf(_) => true,
            ValueType::OrNone(inner) | ValueType::OrAuto(inner) | ValueType::Choice(inner) => {
                matches!(inner, ValueType::Flag | ValueType::OneOf(_))
            }
            _ => false,
        };
        let is_param = name.starts_with("params.") && self.keys.contains(name);
        is_param || keys().iter().any(|key| key.path == name && is_worded(key.shape))
    }

    fn is_key(&self, name: &str) -> bool {
        let is_of_a_plan = || !self.has_trials && name.starts_with("plan.");
        let is_of_the_language = || keys().iter().any(|key| key.path == name);
        self.keys.contains(name) || METRICS.contains(&name) || is_of_the_language() || is_of_a_plan()
    }

    /// Returns the known name most similar to `name`, if any is similar; the last part of a key counts as the
    /// key.
    fn near(&self, name: &str) -> Option<String> {
        let short = WORDS.into_iter().chain(COLUMNS).chain(METRICS);
        let long = self.keys.iter().map(String::as_str).chain(keys().iter().map(|key| key.path));
        let like = |known: &str| {
            let last = known.rsplit('.').next().unwrap_or(known);
            let part = if known == last { 0.0 } else { 0.99 * strsim::jaro_winkler(name, last) };
            strsim::jaro_winkler(name, known).max(part)
        };
        let best = short.chain(long).map(|known| (like(known), known)).max_by(|a, b| a.0.total_cmp(&b.0))?;
        (best.0 >= 0.8).then(|| best.1.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Filter, Sort};
    use super::*;

    fn known() -> KnownNames {
        let keys =
            ["train.seed", "plan.micro_batch", "loss", "valid.loss", "save.stall_seconds", "params.depth"];
        KnownNames { keys: keys.map(str::to_owned).into(), has_trials: true }
    }

    #[test]
    fn names_of_columns_keys_and_figures_are_known_and_those_of_the_table_too() {
        let names = known();
        for (typed, meant) in [
            ("batch", "batch"),
            ("BATCH", "batch"),
            ("RATE", "learning_rate"),
            ("tok/s", "tokens_per_second"),
            ("TOK/S", "tokens_per_second"),
            ("params.depth", "params.depth"),
            ("model.layers", "model.layers"),
            ("valid.accuracy", "valid.accuracy"),
        ] {
            assert_eq!(names.number(typed), Ok(meant.to_owned()), "{typed}");
        }
        let own = KnownNames { keys: ["rate".to_owned()].into(), has_trials: true };
        assert_eq!(own.number("rate"), Ok("rate".into()), "a figure of that name is meant before the title");
    }

    #[test]
    fn an_unknown_name_is_refused_with_what_was_probably_meant() {
        let refused = |text: &str| Filter::parse(text, &known()).expect_err(text).to_string();
        for (typed, meant) in [
            ("statuss=completed", "`status`"),
            ("bacth>=32", "`batch`"),
            ("seed=7", "`train.seed`"),
            ("depht>3", "`params.depth`"),
            ("params.depht=deep", "`params.depth`"),
            ("valid.los<3", "`valid.loss`"),
        ] {
            let message = refused(typed);
            let name = typed.split(['=', '<', '>']).next().expect("a name");
            assert!(message.contains(&format!("`{name}`")) && message.contains(meant), "{message}");
        }
        assert!(refused("foo=1").contains("a key of the recipe or the plan"), "{}", refused("foo=1"));
        assert!(refused("plan.nothing=1").contains("`plan.nothing`"));
        assert!(refused("status>1").contains("`status` is compared with `=`"), "{}", refused("status>1"));
        let order = Sort::parse("foo", &known()).expect_err("no order").to_string();
        assert!(order.contains("`foo`") && order.contains("newest"), "{order}");
        assert!(Sort::parse("status", &known()).is_err());
    }

    #[test]
    fn before_the_first_trial_every_key_of_the_language_is_known() {
        let names = KnownNames::default();
        for known in ["train.seed", "model.layers", "plan.micro_batch", "valid.loss"] {
            assert!(names.number(known).is_ok(), "{known}");
        }
        assert!(names.number("foo").is_err());
    }
}
