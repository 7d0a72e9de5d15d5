//! Lists of trials: one row each, filtered, sorted, page by page.

use super::filter::{self, Filter, Pagination, Sort};
use super::state::{State, TrialActivity};
use super::{BoxError, History, TrialStatus, open_points, unstored};
use crate::fact::LedgerError;
use dtrain_protocol::TrialId;
use dtrain_recipes::Goal;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use serde::{Deserialize, Serialize};

/// One row of a list of trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    /// Globally unique id of the trial.
    pub id: TrialId,
    /// Label of the trial, `<recipe>-<n>`.
    pub label: String,
    /// Name of the recipe.
    pub recipe: String,
    /// Name of the study that the trial belongs to; `None` outside of studies.
    pub study: Option<String>,
    /// Current status of the trial.
    pub status: TrialStatus,
    /// Layout of the parallel training, as text.
    pub layout: String,
    /// Batch size: samples per optimizer step.
    pub batch: u64,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Objective: the metric to optimize, such as `valid.loss`.
    pub objective: String,
    /// Direction in which the objective is better.
    pub goal: Goal,
    /// Best value of the objective so far; `None` before the first.
    pub best: Option<f64>,
    /// Newest training loss; `None` before the first.
    pub loss: Option<f64>,
    /// Training steps completed.
    pub step: u64,
    /// Throughput in tokens per second: of a typical step once an attempt has ended, before that the mean.
    pub tokens_per_second: Option<f64>,
    /// Step time in seconds: of a typical step once an attempt has ended, before that the mean.
    pub step_seconds: Option<f64>,
    /// Step time in seconds that the planner predicted.
    pub predicted_step_seconds: Option<f64>,
    /// Creation time of the trial, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Time of the first launch, in milliseconds since the Unix epoch; `None` before that.
    pub started_ms: Option<u64>,
    /// Time when the trial ended, in milliseconds since the Unix epoch; `None` before that.
    pub ended_ms: Option<u64>,
    /// Hash of the git commit that was checked out; `None` outside a repository.
    pub git_revision: Option<String>,
    /// True if tracked files differed from the git commit.
    pub is_dirty: bool,
    /// Name of the host whose history the trial was imported from; `None` for a trial of this history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_from: Option<String>,
}

impl History {
    /// Lists the trials that pass the filter.
    ///
    /// `activity` tells what works on a trial; it is only called for trials that
    /// have not ended.
    pub fn trials(
        &self,
        filter: &Filter,
        sort: &Sort,
        page: Pagination,
        activity: &dyn Fn(&TrialId) -> TrialActivity,
    ) -> Result<Vec<TrialRow>, LedgerError> {
        self.read("list", |database| {
            let most = page.skip.saturating_add(page.limit);
            let merged: bool =
                database.query_row("SELECT EXISTS(SELECT 1 FROM imported_trial)", [], |row| row.get(0))?;
            let lines = |part: &str, most| {
                lines(database, filter::query(filter, sort, part, merged), filter, most, activity)
            };
            let live = open_points::trials(database)?;
            let mut found = if live.is_empty() {
                lines("", most)?
            } else {
                let mut all = lines(" AND trial.id NOT IN (SELECT trial FROM open_points)", most)?;
                all.extend(open_points::with_summaries(database, &live, || {
                    lines(" AND trial.id IN (SELECT trial FROM open_points)", most)
                })?);
                all.sort_by(|one, other| {
                    sort.order((one.1, one.0.created_ms, one.2), (other.1, other.0.created_ms, other.2))
                });
                all
            };
            found.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            let skip = usize::try_from(page.skip).unwrap_or(usize::MAX);
            Ok(found.into_iter().skip(skip).map(|(line, ..)| line).collect())
        })
    }
}

impl History {
    /// Returns the label of the trial of this machine that was recorded last, and the latest time in its row:
    /// creation, launch or end, by the clock of that moment, in milliseconds since the Unix epoch. `None`
    /// without trials.
    pub fn latest_ms(&self) -> Result<Option<(String, u64)>, LedgerError> {
        self.read("read times from", |database| {
            let query = "SELECT label, max(created_ms, coalesce(started_ms, 0), coalesce(ended_ms, 0)) FROM trial
                 WHERE NOT EXISTS (SELECT 1 FROM imported_trial WHERE imported_trial.trial = trial.id) ORDER BY id DESC LIMIT 1";
            let read = |row: &Row<'_>| Ok((row.get(0)?, unstored(row.get(1)?)));
            Ok(database.query_row(query, [], read).optional()?)
        })
    }
}

/// Returns the first `most` rows of a query with their sort values, which are in the columns after those of
/// [`row`].
fn lines(
    database: &Connection,
    (text, values): (String, Vec<Sql>),
    filter: &Filter,
    most: u64,
    activity: &dyn Fn(&TrialId) -> TrialActivity,
) -> Result<Vec<(TrialRow, Option<f64>, i64)>, BoxError> {
    let mut select = database.prepare_cached(&text)?;
    let mut rows = select.query(params_from_iter(values))?;
    let mut found = Vec::new();
    while (found.len() as u64) < most
        && let Some(stored) = rows.next()?
    {
        let line = row(stored, activity)?;
        if filter.status.is_empty() || filter.status.contains(&line.status) {
            found.push((line, stored.get(22)?, stored.get(23)?));
        }
    }
    Ok(found)
}

/// Converts a row of the query to a row of the list of trials.
pub(super) fn row(row: &Row<'_>, activity: &dyn Fn(&TrialId) -> TrialActivity) -> Result<TrialRow, BoxError> {
    let id = TrialId(row.get(0)?);
    let word: String = row.get(4)?;
    let state = State::parse(&word).ok_or_else(|| format!("trial {id} has the unknown state `{word}`"))?;
    let status = state.status(|| activity(&id));
    Ok(TrialRow {
        label: row.get(1)?,
        recipe: row.get(2)?,
        study: row.get(3)?,
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
        goal: if row.get_ref(20)?.as_str()? == "max" { Goal::Max } else { Goal::Min },
        imported_from: row.get(21)?,
        id,
    })
}
