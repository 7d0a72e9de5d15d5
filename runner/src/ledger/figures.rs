//! Figures of events, which are stored as points, and the summary of a series.

use super::{
    BoxError, History, MetricSample, TrialDetails, lookup, noise_scale, open_points, points, unstored,
};
use crate::fact::{LedgerError, MetricPoint, training_ms_between};
use dtrain_protocol::{Event, Rank, StampedEvent, TrialId};
use dtrain_recipes::TrainingEngine;
use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// Summary of one series of a trial, over all attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Key of the series.
    pub key: String,
    /// Rank that reports the series.
    pub rank: Rank,
    /// Number of points over all attempts.
    pub points: u64,
    /// Newest value; `None` if it is NaN.
    pub last: Option<f64>,
    /// Step of the newest value.
    pub last_step: u64,
    /// Smallest finite value; `None` if there is no finite value.
    pub min: Option<f64>,
    /// Step of the smallest value.
    pub min_step: Option<u64>,
    /// Largest finite value; `None` if there is no finite value.
    pub max: Option<f64>,
    /// Step of the largest value.
    pub max_step: Option<u64>,
    /// Mean of the finite values; `None` if there is no finite value.
    pub mean: Option<f64>,
}

/// Number of ranks whose times are stored in every step. Twelve series for each of thousands of ranks would
/// slow the controller down too much.
const IN_FULL: u32 = 64;

/// Interval between the steps whose times are stored for all further ranks, staggered between them.
const ONE_OF: u64 = 16;

/// Keys of the series of step figures that dtrain measures itself.
const OWN: [&str; 15] = [
    "step_seconds",
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_seconds",
    "bubble_seconds",
    "optimizer_seconds",
    "memory_bytes",
    "sent_bytes",
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "tokens_per_second",
    "save.stall_seconds",
    "validation_seconds",
];

/// Keys of the series of results that dtrain has names for.
const RESULTS: [&str; 8] = [
    "loss",
    "valid.loss",
    "valid.accuracy",
    "learning_rate",
    "gradient_norm",
    "elapsed",
    noise_scale::SIGNAL,
    noise_scale::NOISE,
];

/// Returns `true` if the series `key` is one of dtrain's own, not one that a program named.
pub fn is_own_series(key: &str) -> bool {
    OWN.contains(&key) || RESULTS.contains(&key)
}

/// Returns the series key of a metric that a program reports: its name, prefixed with `script/` if dtrain has
/// a series of that name.
pub(crate) fn key_of(name: &str) -> Cow<'_, str> {
    if OWN.contains(&name) { format!("script/{name}").into() } else { name.into() }
}

/// Returns the points that an event of a trial carries; empty for most events.
///
/// Loss, norm, learning rate and speed are equal on all ranks of dtrain's worker and stored for rank 0; times
/// and memory are stored for every rank, in every step for the first 64. Any rank of a foreign program may
/// report results; `LowestRanks` drops some of theirs.
pub fn points_of(stamped: &StampedEvent, is_foreign: bool) -> Vec<MetricPoint> {
    let point = |key: &str, step: u64, value: f64| MetricPoint {
        attempt: stamped.attempt,
        rank: stamped.rank,
        key: key.to_owned(),
        step,
        at_ms: stamped.at_ms,
        value,
    };
    let has_results = stamped.rank == Rank(0) || is_foreign;
    match &stamped.event {
        Event::Step(figures) if !is_foreign && !keeps_times(stamped.rank, figures.step.0) => Vec::new(),
        Event::Step(figures) => {
            let (step, times) = (figures.step.0, &figures.times);
            let mut points = Vec::new();
            // A script whose times are unknown reports 0.
            if times.step > 0.0 || !is_foreign {
                points.push(point("step_seconds", step, times.step));
            }
            if !figures.is_of_script() {
                points.extend([
                    point("data_seconds", step, times.data),
                    point("forward_seconds", step, times.forward),
                    point("backward_seconds", step, times.backward),
                    point("communication_seconds", step, times.communication),
                    point("bubble_seconds", step, times.bubble),
                    point("optimizer_seconds", step, times.optimizer),
                    point("memory_bytes", step, figures.memory_bytes as f64),
                    point("sent_bytes", step, figures.sent_bytes as f64),
                    point("weights_bytes", step, figures.held.weights as f64),
                    point("gradients_bytes", step, figures.held.gradients as f64),
                    point("optimizer_bytes", step, figures.held.optimizer as f64),
                ]);
            }
            if has_results {
                points.push(point("loss", step, figures.loss));
                if !figures.learning_rate.is_nan() {
                    points.push(point("learning_rate", step, figures.learning_rate));
                }
                points.extend(figures.elapsed.map(|share| point("elapsed", step, share)));
                points.extend(figures.gradient_norm.map(|norm| point("gradient_norm", step, norm)));
                if let Some(found) = figures.noise {
                    // It is reported one step later.
                    let before = step.saturating_sub(1);
                    points.extend([
                        point(noise_scale::SIGNAL, before, found.signal),
                        point(noise_scale::NOISE, before, found.noise),
                    ]);
                }
                if times.step > 0.0 && figures.tokens > 0 {
                    points.push(point("tokens_per_second", step, figures.tokens as f64 / times.step));
                }
            }
            points
        }
        Event::Validated { step, loss, accuracy, seconds } if has_results => {
            let seconds = seconds.map(|seconds| point("validation_seconds", step.0, seconds));
            let loss = point("valid.loss", step.0, *loss);
            let accuracy = accuracy.map(|accuracy| point("valid.accuracy", step.0, accuracy));
            std::iter::once(loss).chain(accuracy).chain(seconds).collect()
        }
        Event::Metrics { step, figures } => {
            figures.iter().map(|figure| point(&key_of(&figure.name), step.0, figure.value)).collect()
        }
        Event::Saved { step, stall_seconds, .. } => vec![point("save.stall_seconds", step.0, *stall_seconds)],
        Event::Listening(_)
        | Event::Ready { .. }
        | Event::Validated { .. }
        | Event::Validating { .. }
        | Event::Notice(_)
        | Event::SaveFailed { .. }
        | Event::Finished { .. }
        | Event::Failed(_) => Vec::new(),
    }
}

/// Returns `true` if the times of `rank` are stored for the step `step`.
fn keeps_times(rank: Rank, step: u64) -> bool {
    rank.0 < IN_FULL || step % ONE_OF == u64::from(rank.0) % ONE_OF
}

/// Filter for the points of a script: keeps all of the first 64 ranks, and of the others the figures that no
/// lower rank reports, and some of their step times.
pub(super) struct LowestRanks {
    trial: i64,
    known: BTreeMap<String, Rank>,
}

impl LowestRanks {
    /// Returns the filter for the trial in the row `trial`.
    pub(super) fn of(trial: i64) -> Self {
        Self { trial, known: BTreeMap::new() }
    }

    /// Returns `true` if a point is to be stored; remembers the rank that reports it.
    pub(super) fn should_record(
        &mut self,
        database: &Connection,
        point: &MetricPoint,
    ) -> Result<bool, BoxError> {
        let is_first = point.rank.0 < IN_FULL;
        let known = match self.known.get(&point.key) {
            Some(known) => Some(*known),
            None if is_first => None,
            None => points::lowest_rank(database, self.trial, &point.key)?,
        };
        let lowest = known.map_or(point.rank, |known| known.min(point.rank));
        self.known.insert(point.key.clone(), lowest);
        let is_time = point.key == "step_seconds" && keeps_times(point.rank, point.step);
        Ok(is_first || lowest == point.rank || is_time)
    }
}

impl TrialDetails {
    /// Returns `true` if a foreign program trains, the user's own or another training engine. Any of its ranks
    /// may report results.
    pub fn runs_foreign_program(&self) -> bool {
        let engine = self.recipe.get("engine").and_then(Value::as_str);
        self.is_script() || engine.is_some_and(|engine| engine != TrainingEngine::Dtrain.name())
    }

    /// Returns `true` if a training engine trains the trial, in place of dtrain's own worker.
    pub fn is_of_engine(&self) -> bool {
        self.runs_foreign_program() && !self.is_script()
    }
}

/// Returns `true` if a foreign program trains, the user's own or another training engine.
pub(super) fn runs_foreign_program(database: &Connection, trial: i64) -> Result<bool, BoxError> {
    let found: Option<i64> = database
        .prepare_cached(
            "SELECT 1 FROM param JOIN key ON key.id = param.key WHERE trial = ?1 AND
             (key.name = 'model.kind' AND value = '\"command\"' OR key.name = 'engine' AND value <> '\"dtrain\"')",
        )?
        .query_row([trial], |row| row.get(0))
        .optional()?;
    Ok(found.is_some())
}

/// Returns the summary of the series `key`, from the lowest rank that reports it.
pub fn summary_of<'s>(summaries: &'s [Summary], key: &str) -> Option<&'s Summary> {
    summaries.iter().filter(|summary| summary.key == key).min_by_key(|summary| summary.rank)
}

/// Returns the milliseconds from the start of the first step of an attempt to the end of the last one, given
/// the step times in seconds.
pub(super) fn trained_ms(steps: &[MetricSample]) -> u64 {
    let Some(first) = steps.first() else { return 0 };
    let first_ms = Duration::try_from_secs_f64(first.value).unwrap_or_default().as_millis();
    let between = steps.windows(2).map(|pair| training_ms_between(pair[0].at_ms, pair[1].at_ms));
    between.sum::<u64>() + u64::try_from(first_ms).unwrap_or(0)
}

impl History {
    /// Returns the summary of each series of a trial, sorted by key and rank.
    pub fn summaries(&self, trial: &TrialId) -> Result<Vec<Summary>, LedgerError> {
        self.read("read figures from", |database| summaries(database, lookup::row_of(database, trial)?))
    }
}

pub(super) fn summaries(database: &Connection, trial: i64) -> Result<Vec<Summary>, BoxError> {
    open_points::with_summaries(database, &[trial], || lines(database, trial))
}

fn lines(database: &Connection, trial: i64) -> Result<Vec<Summary>, BoxError> {
    let mut select = database.prepare_cached(
        "SELECT key.name, rank, points, last, last_step, min, min_step, max, max_step,
                CASE WHEN finite > 0 THEN sum / finite END
         FROM summary JOIN key ON key.id = summary.key WHERE trial = ?1 ORDER BY key.name, rank",
    )?;
    let rows = select.query_map([trial], |row| {
        Ok(Summary {
            key: row.get(0)?,
            rank: Rank(row.get(1)?),
            points: unstored(row.get(2)?),
            last: row.get(3)?,
            last_step: unstored(row.get(4)?),
            min: row.get(5)?,
            min_step: row.get::<_, Option<i64>>(6)?.map(unstored),
            max: row.get(7)?,
            max_step: row.get::<_, Option<i64>>(8)?.map(unstored),
            mean: row.get(9)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{AttemptId, PhaseTimes, ResidentBytes, StepFigures, StepId};

    #[test]
    fn a_script_has_a_time_only_where_it_is_known() {
        let keys = |seconds, is_script| {
            let figures = StepFigures {
                step: StepId(1),
                loss: 0.5,
                gradient_norm: None,
                learning_rate: f64::NAN,
                elapsed: None,
                noise: None,
                tokens: 8,
                times: PhaseTimes { step: seconds, ..PhaseTimes::default() },
                memory_bytes: 0,
                sent_bytes: 0,
                held: ResidentBytes::default(),
            };
            let event = Event::Step(figures);
            let said = StampedEvent { attempt: AttemptId(1), rank: Rank(0), sequence: 0, at_ms: 0, event };
            points_of(&said, is_script).into_iter().map(|point| point.key).collect::<Vec<_>>()
        };
        assert_eq!(keys(0.0, true), ["loss"]);
        assert_eq!(keys(0.5, true), ["step_seconds", "loss", "tokens_per_second"]);
        assert_eq!(keys(0.0, false)[0], "step_seconds");
    }
}
