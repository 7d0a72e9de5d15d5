//! Differences between trials as plain data: parameters, results, code, environment.
//!
//! Every trial is compared with the first. Nothing is drawn here.

mod code;
mod curve;
mod diff;
mod results;

pub use code::{CodeVersions, Revision};
pub use curve::{buckets, smoothed};
pub use diff::{ComparedValue, ValuePerTrial};
pub use results::{BaselineDelta, BetterDirection, ChangeAssessment, ResultPerTrial, ResultValue, ValueUnit};

use crate::fact::LedgerError;
use crate::ledger::{History, MetricSample, TrialActivity, TrialDetails, TrialStatus};
use diff::diff;
use dtrain_protocol::TrialId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Version of the JSON format of [`TrialComparison`].
pub const VERSION: u32 = 1;

/// Number of points of the loss curve of one trial.
const CURVE: usize = 60;

/// Trials side by side. Every list of values has one entry per trial, in the order of `trials`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialComparison {
    /// Version of the JSON format; always [`VERSION`].
    pub version: u32,
    /// Compared trials; the first is the baseline.
    pub trials: Vec<ComparedTrial>,
    /// All parameters of recipes and plans, sorted by path.
    pub params: Vec<ValuePerTrial>,
    /// All results that at least one trial has.
    pub results: Vec<ResultPerTrial>,
    /// Versions of the trained code.
    pub code: CodeVersions,
    /// Machines, environment variables and versions of dtrain.
    pub environment: Vec<ValuePerTrial>,
    /// Training loss over a common range of steps, in equally many buckets per trial.
    pub curves: Vec<Vec<Option<f64>>>,
    /// First and last step of the range that the curves cover.
    pub curve_steps: (u64, u64),
}

/// One of the compared trials.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedTrial {
    /// Globally unique id of the trial.
    pub id: TrialId,
    /// Label of the trial, `<recipe>-<n>`.
    pub label: String,
    /// Current status of the trial.
    pub status: TrialStatus,
    /// Creation time of the trial, in milliseconds since the Unix epoch.
    pub created_ms: u64,
}

/// Trial with the series that its results are computed from.
pub(crate) struct TrialWithSeries {
    /// Everything about the trial except its points.
    pub(crate) trial: TrialDetails,
    /// Points by series: those named in [`results::SERIES`], and the trial's objective.
    series: BTreeMap<String, Vec<MetricSample>>,
}

impl TrialWithSeries {
    /// Returns the points of the series `key`; empty if it was not measured.
    fn points(&self, key: &str) -> &[MetricSample] {
        self.series.get(key).map_or(&[], Vec::as_slice)
    }
}

/// Compares trials with the first of them. `levels` are objective values for which the time to reach them is
/// reported; by default the best value that every trial reached.
pub fn compare(
    history: &History,
    trials: &[TrialId],
    levels: &[f64],
    activity: &dyn Fn(&TrialId) -> TrialActivity,
) -> Result<TrialComparison, LedgerError> {
    let seen: Vec<_> = trials
        .iter()
        .map(|trial| load_trial(history, trial, activity))
        .collect::<Result<_, LedgerError>>()?;
    Ok(compare_loaded(&seen, levels))
}

fn load_trial(
    history: &History,
    trial: &TrialId,
    activity: &dyn Fn(&TrialId) -> TrialActivity,
) -> Result<TrialWithSeries, LedgerError> {
    let id = trial;
    let trial = history.trial(id, activity)?;
    let keys: BTreeSet<&str> =
        results::SERIES.iter().copied().chain([trial.row.objective.as_str()]).collect();
    let series = keys
        .into_iter()
        .map(|key| Ok((key.to_owned(), history.curve(id, key)?)))
        .collect::<Result<_, LedgerError>>()?;
    Ok(TrialWithSeries { trial, series })
}

fn compare_loaded(seen: &[TrialWithSeries], levels: &[f64]) -> TrialComparison {
    let losses: Vec<_> = seen.iter().map(|seen| seen.points("loss")).collect();
    let steps = || losses.iter().flat_map(|samples| samples.iter()).map(|sample| sample.step);
    let curve_steps = (steps().min().unwrap_or(0), steps().max().unwrap_or(0));
    TrialComparison {
        version: VERSION,
        trials: seen.iter().map(|seen| compared_trial(&seen.trial)).collect(),
        params: diff(seen.iter().map(|seen| parameters(&seen.trial)).collect()),
        results: results::results(seen, levels),
        code: code::code(seen.iter().map(|seen| &seen.trial.provenance)),
        environment: diff(seen.iter().map(|seen| environment(&seen.trial)).collect()),
        curves: losses.iter().map(|samples| buckets(samples, curve_steps, CURVE)).collect(),
        curve_steps,
    }
}

fn compared_trial(trial: &TrialDetails) -> ComparedTrial {
    let row = &trial.row;
    ComparedTrial {
        id: row.id.clone(),
        label: row.label.clone(),
        status: row.status,
        created_ms: row.created_ms,
    }
}

fn parameters(trial: &TrialDetails) -> BTreeMap<String, ComparedValue> {
    let cell = |value: &serde_json::Value, source| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        ComparedValue { text, number: value.as_f64(), source: Some(source) }
    };
    trial.params.iter().map(|param| (param.path.clone(), cell(&param.value, param.source))).collect()
}

fn environment(trial: &TrialDetails) -> BTreeMap<String, ComparedValue> {
    let made = &trial.provenance;
    let mut all = made.environment.clone();
    all.insert("program".to_owned(), made.program.clone());
    all.into_iter()
        .map(|(name, text)| (name, ComparedValue { number: text.parse().ok(), text, source: None }))
        .collect()
}
