//! Lists of trials: one line each, filtered, sorted, page by page.

use super::state::State;
use super::{Fault, History, Status, unstored};
use crate::fact::LedgerError;
use dtrain_protocol::TrialId;
use rusqlite::types::Value as Sql;
use rusqlite::{Row, params_from_iter};
use serde::{Deserialize, Serialize};

/// One line about a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    /// Its id.
    pub id: TrialId,
    /// `<recipe>-<n>`.
    pub label: String,
    /// Name of the recipe.
    pub recipe: String,
    /// The search it belongs to.
    pub search: Option<String>,
    /// How it stands.
    pub status: Status,
    /// How the work is cut, in words.
    pub layout: String,
    /// Samples of one optimizer step.
    pub batch: u64,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The figure that decides, such as `valid.loss`.
    pub objective: String,
    /// Its best value so far.
    pub best: Option<f64>,
    /// The newest training loss.
    pub loss: Option<f64>,
    /// Steps completed.
    pub step: u64,
    /// Tokens per second: the median once an attempt has ended, the mean before.
    pub tokens_per_second: Option<f64>,
    /// Seconds of one step: likewise.
    pub step_seconds: Option<f64>,
    /// Seconds of one step that the planner expected.
    pub predicted_step_seconds: Option<f64>,
    /// Milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Milliseconds since the Unix epoch; `None` before the first launch.
    pub started_ms: Option<u64>,
    /// Milliseconds since the Unix epoch; `None` while it goes on.
    pub ended_ms: Option<u64>,
    /// The commit; `None` outside a repository.
    pub git_revision: Option<String>,
    /// Whether tracked files differed from the commit.
    pub is_dirty: bool,
}

/// Which trials.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Of this recipe.
    pub recipe: Option<String>,
    /// Of this search.
    pub search: Option<String>,
    /// With one of these; empty for any.
    pub status: Vec<Status>,
    /// With this tag.
    pub tag: Option<String>,
    /// All of these hold.
    pub conditions: Vec<Condition>,
}

/// In which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The newest first.
    #[default]
    Newest,
    /// The best by its recipe's objective first.
    Best,
    /// The fastest (tokens per second) first.
    Fastest,
    /// The smallest value of a figure, such as `valid.loss`, first.
    Least(String),
}

/// Which part of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Trials passed over.
    pub skip: u64,
    /// At most this many.
    pub limit: u64,
}

/// A comparison such as `train.batch >= 256` or `valid.loss < 3.1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Path of a parameter, or name of a figure (its smallest value counts).
    pub key: String,
    /// How it is compared.
    pub relation: Relation,
    /// With what.
    pub value: f64,
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `=`
    Equal,
    /// `>=`
    AtLeast,
    /// `>`
    More,
}

/// A text is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no condition; expected one such as `train.batch >= 256`")]
pub struct ConditionError(String);

impl Default for Page {
    fn default() -> Self {
        Self { skip: 0, limit: u64::MAX }
    }
}

impl std::str::FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, ConditionError> {
        let wrong = || ConditionError(text.to_owned());
        let begin = text.find(['<', '>', '=']).ok_or_else(wrong)?;
        let (key, rest) = text.split_at(begin);
        let known = [
            ("<=", Relation::AtMost),
            (">=", Relation::AtLeast),
            ("<", Relation::Less),
            (">", Relation::More),
            ("=", Relation::Equal),
        ];
        let (value, relation) =
            known.into_iter().find_map(|(sign, r)| Some((rest.strip_prefix(sign)?, r))).ok_or_else(wrong)?;
        let value = value.trim().parse().map_err(|_| wrong())?;
        let key = key.trim().to_owned();
        if key.is_empty() { Err(wrong()) } else { Ok(Self { key, relation, value }) }
    }
}

impl Relation {
    fn sign(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Equal => "=",
            Self::AtLeast => ">=",
            Self::More => ">",
        }
    }
}

/// The columns of a [`TrialRow`], in the order that [`row`] reads them.
pub(super) const COLUMNS: &str =
    "trial.uid, trial.label, trial.recipe, trial.search, trial.state, trial.layout,
    trial.batch, trial.learning_rate, trial.objective,
    CASE trial.objective WHEN 'valid.accuracy' THEN accuracy.max ELSE valid.min END AS best,
    loss.last, coalesce(loss.last_step, 0),
    coalesce(trial.measured_tokens_per_second, speed.sum / nullif(speed.finite, 0)) AS tokens_per_second,
    coalesce(trial.measured_step_seconds, step.sum / nullif(step.finite, 0)),
    trial.predicted_step_seconds, trial.created_ms, trial.started_ms, trial.ended_ms,
    trial.git_revision, trial.git_dirty";

/// The tables behind [`COLUMNS`].
pub(super) const TABLES: &str = "trial
    LEFT JOIN summary AS loss ON loss.trial = trial.id AND loss.rank = 0
         AND loss.key = (SELECT id FROM key WHERE name = 'loss')
    LEFT JOIN summary AS valid ON valid.trial = trial.id AND valid.rank = 0
         AND valid.key = (SELECT id FROM key WHERE name = 'valid.loss')
    LEFT JOIN summary AS accuracy ON accuracy.trial = trial.id AND accuracy.rank = 0
         AND accuracy.key = (SELECT id FROM key WHERE name = 'valid.accuracy')
    LEFT JOIN summary AS speed ON speed.trial = trial.id AND speed.rank = 0
         AND speed.key = (SELECT id FROM key WHERE name = 'tokens_per_second')
    LEFT JOIN summary AS step ON step.trial = trial.id AND step.rank = 0
         AND step.key = (SELECT id FROM key WHERE name = 'step_seconds')";

impl History {
    /// One line about each trial that passes the filter.
    ///
    /// `is_alive` says whether anybody is at work on a trial that has not ended; it is asked of those alone.
    pub fn trials(
        &self,
        filter: &Filter,
        sort: &Sort,
        page: Page,
        is_alive: &dyn Fn(&TrialId) -> bool,
    ) -> Result<Vec<TrialRow>, LedgerError> {
        self.read("list", |database| {
            let (text, values) = query(filter, sort);
            let mut select = database.prepare_cached(&text)?;
            let mut rows = select.query(params_from_iter(values))?;
            let (mut skip, mut found) = (page.skip, Vec::new());
            while let Some(stored) = rows.next()? {
                let line = row(stored, is_alive)?;
                if !filter.status.is_empty() && !filter.status.contains(&line.status) {
                    continue;
                }
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                if found.len() as u64 >= page.limit {
                    break;
                }
                found.push(line);
            }
            Ok(found)
        })
    }
}

/// The query for everything but the status, which only life can tell.
fn query(filter: &Filter, sort: &Sort) -> (String, Vec<Sql>) {
    let mut text = format!("SELECT {COLUMNS} FROM {TABLES}\n WHERE 1");
    let mut values: Vec<Sql> = Vec::new();
    for (column, wanted) in [("recipe", &filter.recipe), ("search", &filter.search)] {
        if let Some(wanted) = wanted {
            text += &format!(" AND trial.{column} = ?");
            values.push(wanted.clone().into());
        }
    }
    if let Some(tag) = &filter.tag {
        text += " AND EXISTS (SELECT 1 FROM tag WHERE tag.trial = trial.id AND tag.name = ?)";
        values.push(tag.clone().into());
    }
    for Condition { key, relation, value } in &filter.conditions {
        let sign = relation.sign();
        text += &format!(
            " AND (EXISTS (SELECT 1 FROM param JOIN key ON key.id = param.key
                           WHERE param.trial = trial.id AND key.name = ? AND param.number {sign} ?)
                OR EXISTS (SELECT 1 FROM summary JOIN key ON key.id = summary.key
                           WHERE summary.trial = trial.id AND summary.rank = 0 AND key.name = ? AND summary.min {sign} ?))"
        );
        values.extend([key.clone().into(), (*value).into(), key.clone().into(), (*value).into()]);
    }
    text += match sort {
        Sort::Newest => " ORDER BY trial.created_ms DESC, trial.id DESC",
        Sort::Best => {
            " ORDER BY best IS NULL, CASE trial.objective WHEN 'valid.accuracy' THEN -best ELSE best END, trial.id"
        }
        Sort::Fastest => " ORDER BY tokens_per_second IS NULL, tokens_per_second DESC, trial.id",
        Sort::Least(key) => {
            values.push(key.clone().into());
            " ORDER BY (SELECT min FROM summary JOIN key ON key.id = summary.key
                        WHERE summary.trial = trial.id AND summary.rank = 0 AND key.name = ?) ASC NULLS LAST, trial.id"
        }
    };
    (text, values)
}

/// Reads one line.
pub(super) fn row(row: &Row<'_>, is_alive: &dyn Fn(&TrialId) -> bool) -> Result<TrialRow, Fault> {
    let id = TrialId(row.get(0)?);
    let word: String = row.get(4)?;
    let state = State::parse(&word).ok_or_else(|| format!("trial {id} has the unknown state `{word}`"))?;
    let status = state.status(|| is_alive(&id));
    Ok(TrialRow {
        label: row.get(1)?,
        recipe: row.get(2)?,
        search: row.get(3)?,
        status,
        layout: row.get(5)?,
        batch: unstored(row.get(6)?),
        learning_rate: row.get(7)?,
        objective: row.get(8)?,
        best: row.get(9)?,
        loss: row.get(10)?,
        step: unstored(row.get(11)?),
        tokens_per_second: row.get(12)?,
        step_seconds: row.get(13)?,
        predicted_step_seconds: row.get(14)?,
        created_ms: unstored(row.get(15)?),
        started_ms: row.get::<_, Option<i64>>(16)?.map(unstored),
        ended_ms: row.get::<_, Option<i64>>(17)?.map(unstored),
        git_revision: row.get(18)?,
        is_dirty: row.get(19)?,
        id,
    })
}
