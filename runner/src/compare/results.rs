//! Results of each trial, and whether their differences exceed the noise.

use super::{TrialWithSeries, smoothed};
use crate::ledger::{MedianWithSpread, MetricSample};
use dtrain_recipes::Goal;
use serde::Serialize;
use std::time::Duration;

/// Keys of the series that results are computed from.
pub(super) const SERIES: &[&str] =
    &["loss", "valid.loss", "valid.accuracy", "step_seconds", "tokens_per_second", "communication_seconds"];

/// One result with its value in each trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultPerTrial {
    /// Name of the result, such as `best valid.loss`.
    pub name: String,
    /// Unit of the values.
    pub unit: ValueUnit,
    /// Value of each trial; `None` for a trial without one.
    pub values: Vec<Option<ResultValue>>,
    /// Direction in which a value is better.
    #[serde(skip)]
    pub better: BetterDirection,
    /// Difference of each trial from the first; `None` for the first trial, and if either value is missing.
    pub changes: Vec<Option<BaselineDelta>>,
}

/// Value of a result in one trial, with its spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ResultValue {
    /// Value, in the unit of the result.
    pub value: f64,
    /// Median absolute deviation of the value, if it is a median.
    pub spread: Option<f64>,
}

/// Unit of the values of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueUnit {
    /// Number without a unit.
    Plain,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Tokens or samples per second.
    PerSecond,
    /// Fraction between 0 and 1.
    Share,
    /// Number of optimizer steps.
    Steps,
}

/// Difference between a trial's value and that of the first trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BaselineDelta {
    /// Value of the trial minus that of the first trial, in the unit of the result.
    pub difference: f64,
    /// Difference as a fraction of the first trial's value; `None` if that is 0.
    pub relative: Option<f64>,
    /// Assessment of the difference: better, worse, equal or unknown.
    pub call: ChangeAssessment,
}

/// Assessment of the difference between a trial's value and that of the first trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeAssessment {
    /// The value is better by more than the spread of both.
    Better,
    /// The value is worse by more than the spread of both.
    Worse,
    /// The difference is within the spread of both values, so it counts as none.
    Same,
    /// Unknown: one of the values has no spread, or neither direction is better.
    Open,
}

/// Direction in which the values of a result are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetterDirection {
    /// Smaller values are better.
    Less,
    /// Larger values are better.
    More,
    /// Neither direction is better, or it is unknown.
    Neither,
}

impl ResultPerTrial {
    /// Returns the best value of all trials; `None` if neither direction is better, or fewer than two trials
    /// have different values.
    pub fn best(&self) -> Option<f64> {
        let values = || self.values.iter().flatten().map(|value| value.value);
        let (least, most) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        match self.better {
            BetterDirection::Less if least < most => Some(least),
            BetterDirection::More if least < most => Some(most),
            BetterDirection::Less | BetterDirection::More | BetterDirection::Neither => None,
        }
    }
}

/// Computes all results that at least one trial has; `levels` are objective values to report the time to.
pub(super) fn results(seen: &[TrialWithSeries], levels: &[f64]) -> Vec<ResultPerTrial> {
    let mut rows = vec![
        row(seen, "best valid.loss", ValueUnit::Plain, BetterDirection::Less, |s| {
            best(s, "valid.loss", f64::min)
        }),
        row(seen, "best valid.accuracy", ValueUnit::Share, BetterDirection::More, |s| {
            best(s, "valid.accuracy", f64::max)
        }),
        row(seen, "final loss", ValueUnit::Plain, BetterDirection::Less, final_loss),
        row(seen, speed(seen), ValueUnit::PerSecond, BetterDirection::More, |s| {
            steady(s, "tokens_per_second")
        }),
        row(seen, "step", ValueUnit::Seconds, BetterDirection::Less, |s| steady(s, "step_seconds")),
        row(
            seen,
            "step, measured/predicted",
            ValueUnit::Plain,
            BetterDirection::Neither,
            measured_over_predicted,
        ),
        row(seen, "exposed communication", ValueUnit::Share, BetterDirection::Less, communication),
        row(seen, "peak memory", ValueUnit::Bytes, BetterDirection::Less, memory),
        row(
            seen,
            "memory, measured/predicted",
            ValueUnit::Plain,
            BetterDirection::Neither,
            memory_over_predicted,
        ),
        row(seen, "steps", ValueUnit::Steps, BetterDirection::Neither, |s| {
            without_spread(s.trial.row.step as f64)
        }),
        row(seen, "training time", ValueUnit::Seconds, BetterDirection::Neither, training_time),
    ];
    let named = seen.iter().map(|s| &s.trial.row).find(|row| !SERIES.contains(&row.objective.as_str()));
    if let Some(row_of) = named {
        let (better, pick): (_, fn(f64, f64) -> f64) = match row_of.goal {
            Goal::Min => (BetterDirection::Less, f64::min),
            Goal::Max => (BetterDirection::More, f64::max),
        };
        let name = format!("best {}", row_of.objective);
        let figure = row(seen, &name, ValueUnit::Plain, better, |s| best(s, &row_of.objective, pick));
        rows.insert(0, figure);
    }
    let (key, goal) = objective(seen);
    let common = common_level(seen, key, goal);
    let levels = if levels.is_empty() { common.as_slice() } else { levels };
    for level in levels {
        let name = format!("time to {key} {}", rounded(*level));
        rows.push(row(seen, &name, ValueUnit::Seconds, BetterDirection::Less, |s| {
            time_to(s, key, goal, *level)
        }));
    }
    rows.retain(|figure| figure.values.iter().any(Option::is_some));
    rows
}

/// Returns the unit of throughput: tokens, samples, or `per second` if trials of both kinds are compared.
fn speed(seen: &[TrialWithSeries]) -> &'static str {
    let mut units = seen.iter().map(|s| s.trial.unit_of_speed());
    let first = units.next().unwrap_or("tokens/s");
    if units.all(|unit| unit == first) { first } else { "per second" }
}

fn row(
    seen: &[TrialWithSeries],
    name: &str,
    unit: ValueUnit,
    better: BetterDirection,
    value: impl Fn(&TrialWithSeries) -> Option<ResultValue>,
) -> ResultPerTrial {
    let values: Vec<_> = seen.iter().map(value).collect();
    let first = values.first().copied().flatten();
    let changes = values
        .iter()
        .enumerate()
        .map(|(index, value)| if index == 0 { None } else { Some(baseline_delta(first?, (*value)?, better)) })
        .collect();
    ResultPerTrial { name: name.to_owned(), unit, values, better, changes }
}

fn baseline_delta(first: ResultValue, other: ResultValue, better: BetterDirection) -> BaselineDelta {
    let difference = other.value - first.value;
    let call = match (first.spread, other.spread) {
        _ if difference == 0.0 => ChangeAssessment::Same,
        _ if better == BetterDirection::Neither => ChangeAssessment::Open,
        (Some(a), Some(b)) if difference.abs() <= a + b => ChangeAssessment::Same,
        (Some(_), Some(_)) if (difference < 0.0) == (better == BetterDirection::Less) => {
            ChangeAssessment::Better
        }
        (Some(_), Some(_)) => ChangeAssessment::Worse,
        (None, _) | (_, None) => ChangeAssessment::Open,
    };
    BaselineDelta { difference, relative: (first.value != 0.0).then(|| difference / first.value.abs()), call }
}

fn without_spread(value: f64) -> Option<ResultValue> {
    value.is_finite().then_some(ResultValue { value, spread: None })
}

fn finite<'a>(seen: &'a TrialWithSeries, key: &str) -> impl Iterator<Item = f64> + 'a {
    seen.points(key).iter().map(|sample| sample.value).filter(|value| value.is_finite())
}

fn best(seen: &TrialWithSeries, key: &str, choose: fn(f64, f64) -> f64) -> Option<ResultValue> {
    finite(seen, key).reduce(choose).and_then(without_spread)
}

fn measured(measured: MedianWithSpread) -> ResultValue {
    ResultValue { value: measured.typical, spread: Some(measured.spread) }
}

/// Returns the typical value of the series `key` without its warm-up steps.
fn steady(seen: &TrialWithSeries, key: &str) -> Option<ResultValue> {
    MedianWithSpread::steady(seen.points(key)).map(measured)
}

/// Returns the median loss of the last tenth of the steps.
fn final_loss(seen: &TrialWithSeries) -> Option<ResultValue> {
    let loss = seen.points("loss");
    let part = loss.len().div_ceil(10);
    MedianWithSpread::of(loss[loss.len() - part..].iter().map(|sample| sample.value)).map(measured)
}

fn measured_over_predicted(seen: &TrialWithSeries) -> Option<ResultValue> {
    without_spread(steady(seen, "step_seconds")?.value / seen.trial.predicted.step_seconds?)
}

/// Returns the fraction of the step time that a rank waits for communication; `None` for a single rank.
fn communication(seen: &TrialWithSeries) -> Option<ResultValue> {
    if seen.trial.figures.iter().all(|summary| summary.rank.0 == 0) {
        return None;
    }
    let share = steady(seen, "communication_seconds")?.value / steady(seen, "step_seconds")?.value;
    without_spread(share)
}

/// Returns the peak memory of a trial over all its ranks.
fn memory(seen: &TrialWithSeries) -> Option<ResultValue> {
    let of_memory = seen.trial.figures.iter().filter(|summary| summary.key == "memory_bytes");
    of_memory.filter_map(|summary| summary.max).reduce(f64::max).and_then(without_spread)
}

fn memory_over_predicted(seen: &TrialWithSeries) -> Option<ResultValue> {
    without_spread(memory(seen)?.value / seen.trial.predicted.memory_bytes? as f64)
}

fn training_time(seen: &TrialWithSeries) -> Option<ResultValue> {
    let seconds: f64 = finite(seen, "step_seconds").sum();
    if seconds > 0.0 { without_spread(seconds) } else { None }
}

/// Returns the key and the goal of the series in which times to a level are measured: the common objective if
/// all trials measured it, else the loss.
fn objective(seen: &[TrialWithSeries]) -> (&str, Goal) {
    let first = seen.first().map(|s| (s.trial.row.objective.as_str(), s.trial.row.goal));
    let is_of_all = |(key, _): &(&str, Goal)| {
        seen.iter().all(|s| s.trial.row.objective == *key && finite(s, key).next().is_some())
    };
    first.filter(is_of_all).unwrap_or(("loss", Goal::Min))
}

/// Returns the best level that every trial reached, as the only element; empty if a trial has no points.
fn common_level(seen: &[TrialWithSeries], key: &str, goal: Goal) -> Vec<f64> {
    let (best, worst): (fn(f64, f64) -> f64, fn(f64, f64) -> f64) = match goal {
        Goal::Min => (f64::min, f64::max),
        Goal::Max => (f64::max, f64::min),
    };
    let reached = |s: &TrialWithSeries| progress(s, key).into_iter().map(|sample| sample.value).reduce(best);
    let all: Option<Vec<f64>> = seen.iter().map(reached).collect();
    all.and_then(|all| all.into_iter().reduce(worst)).into_iter().collect()
}

/// Returns the points of the series `key`; the noisy training loss is smoothed over a fiftieth of its points.
fn progress(seen: &TrialWithSeries, key: &str) -> Vec<MetricSample> {
    let samples = seen.points(key);
    smoothed(samples, if key == "loss" { samples.len() / 50 } else { 1 })
}

/// Returns the seconds of training until `level` was first reached, without pauses and repeated steps.
fn time_to(seen: &TrialWithSeries, key: &str, goal: Goal, level: f64) -> Option<ResultValue> {
    let reached = progress(seen, key).into_iter().find(|sample| goal.is_reached(sample.value, level))?;
    let times = seen.points("step_seconds");
    if times.is_empty() {
        // A program that reports no steps: wall-clock time since its start.
        let began = seen.trial.row.started_ms?;
        return without_spread(Duration::from_millis(reached.at_ms.saturating_sub(began)).as_secs_f64());
    }
    let until = times.iter().filter(|sample| sample.step <= reached.step && sample.value.is_finite());
    without_spread(until.map(|sample| sample.value).sum())
}

/// Formats a number with four significant digits.
fn rounded(value: f64) -> String {
    let digits = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    let places = (3.0 - digits).clamp(0.0, 9.0) as usize;
    format!("{value:.places$}")
}
