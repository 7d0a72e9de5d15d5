//! Scores the accuracy of estimates by source; sources are never pooled, as a large one would dominate.

use super::estimate::RowEstimate;
use crate::analytic::site_calibration::median;
use serde::Serialize;
use std::collections::BTreeMap;

/// Accuracy of the estimates for one set of rows; a score is `None` where it is undefined.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AccuracyScores {
    /// Name of the source of the rows, and of the subset.
    pub name: String,
    /// Number of rows in the set.
    pub rows: usize,
    /// Number of rows that could not be priced.
    pub refused: usize,
    /// Number of rows with a measured step time.
    pub measured: usize,
    /// Mean absolute relative error of the step time.
    pub mean: Option<f64>,
    /// Median absolute relative error of the step time.
    pub median: Option<f64>,
    /// 95th percentile of the absolute relative error of the step time.
    pub p95: Option<f64>,
    /// Median signed relative error of the step time.
    pub bias: Option<f64>,
    /// Share of the rows whose measured step time lies within the 80 % prediction interval.
    pub covered: Option<f64>,
    /// Number of pairs of rows with the same model, hardware and size whose measured times differ by more
    /// than 5 %.
    pub pairs: usize,
    /// Share of the pairs of rows that the estimates order correctly.
    pub ordered: Option<f64>,
    /// Number of sets of rows that differ only in layout.
    pub choices: usize,
    /// Mean regret over the sets of rows that differ only in layout: measured time of the chosen layout over
    /// the best measured time, minus one.
    pub regret: Option<f64>,
    /// Number of rows with a measured peak memory.
    pub memory_rows: usize,
    /// Median absolute relative error of the peak memory.
    pub memory_median: Option<f64>,
    /// 95th percentile of the absolute relative error of the peak memory.
    pub memory_p95: Option<f64>,
}

/// Relative difference from the best estimate up to which estimates are tied.
const TIE: f64 = 0.04;

/// Ratio of the measured times of two rows from which on the pair is scored.
const APART: f64 = 1.05;

/// Returns the scores of every source, followed by those of its subsets by hardware and kind of model. Rows
/// used for site calibration are left out.
pub fn scores(priced: &[RowEstimate]) -> Vec<AccuracyScores> {
    let mut sources: BTreeMap<&str, BTreeMap<String, Vec<&RowEstimate>>> = BTreeMap::new();
    for row in priced.iter().filter(|row| !row.is_known) {
        sources.entry(&row.source).or_default().entry(part(row)).or_default().push(row);
    }
    let of_source = |(name, parts): (&str, BTreeMap<String, Vec<&RowEstimate>>)| {
        let all: Vec<&RowEstimate> = parts.values().flatten().copied().collect();
        let mut scores = vec![score_rows(name.to_owned(), &all)];
        if parts.len() > 1 {
            scores.extend(parts.iter().map(|(part, rows)| score_rows(format!("{name}: {part}"), rows)));
        }
        scores
    };
    sources.into_iter().flat_map(of_source).collect()
}

/// Returns the hardware of a row, with a mark if its model has experts.
fn part(row: &RowEstimate) -> String {
    let experts = if row.group.has_experts { ", experts" } else { "" };
    format!("{}{experts}", row.group.hardware)
}

fn score_rows(name: String, rows: &[&RowEstimate]) -> AccuracyScores {
    let errors: Vec<f64> = rows.iter().filter_map(|row| row.error).collect();
    let sizes = sizes(&errors);
    let memory: Vec<f64> = rows.iter().filter_map(|row| row.peak_bytes_error).collect();
    let memory_sizes = self::sizes(&memory);
    let (pairs, ordered) = order(rows);
    let (choices, regret) = regret(rows);
    let is_any = !errors.is_empty();
    AccuracyScores {
        name,
        rows: rows.len(),
        refused: rows.iter().filter(|row| !row.supported).count(),
        measured: errors.len(),
        mean: mean(&sizes),
        median: is_any.then(|| median(&sizes)),
        p95: percentile(&sizes, 0.95),
        bias: is_any.then(|| median(&errors)),
        covered: mean(&rows.iter().filter_map(|row| covered(row)).collect::<Vec<_>>()),
        pairs,
        ordered,
        choices,
        regret,
        memory_rows: memory.len(),
        memory_median: (!memory.is_empty()).then(|| median(&memory_sizes)),
        memory_p95: percentile(&memory_sizes, 0.95),
    }
}

fn sizes(errors: &[f64]) -> Vec<f64> {
    errors.iter().map(|error| error.abs()).collect()
}

/// Returns 1 if the measured time of a row lies within its prediction interval, otherwise 0.
fn covered(row: &RowEstimate) -> Option<f64> {
    let (low, high) = (row.step_seconds_low?, row.step_seconds_high?);
    let seconds = row.measured_step_seconds?;
    Some(if (low..=high).contains(&seconds) { 1.0 } else { 0.0 })
}

#[expect(clippy::cast_precision_loss, reason = "counts of rows")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the quantile of `values` at `share`, linearly interpolated.
fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    #[expect(clippy::cast_precision_loss, reason = "counts of rows")]
    let at = share * last as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the last")]
    let below = (at.floor() as usize).min(last);
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * at.fract())
}

/// Returns the estimated and the measured seconds of a row; `None` unless it has both.
fn estimated_and_measured(row: &RowEstimate) -> Option<(f64, f64)> {
    Some((row.step_seconds?, row.measured_step_seconds?))
}

/// Groups rows by the value of `key`.
fn groups<'a, K: Ord>(
    rows: &[&'a RowEstimate],
    key: impl Fn(&'a RowEstimate) -> K,
) -> Vec<Vec<&'a RowEstimate>> {
    let mut groups: BTreeMap<K, Vec<&RowEstimate>> = BTreeMap::new();
    for row in rows.iter().filter(|row| estimated_and_measured(row).is_some()) {
        groups.entry(key(row)).or_default().push(row);
    }
    groups.into_values().collect()
}

/// Returns the number of pairs of rows with clearly different times, and the share of them that is ordered
/// correctly.
fn order(rows: &[&RowEstimate]) -> (usize, Option<f64>) {
    let (mut pairs, mut right) = (0, 0);
    for group in groups(rows, |row| (&row.group.model, &row.group.hardware, &row.group.devices)) {
        let times: Vec<(f64, f64)> = group.into_iter().filter_map(estimated_and_measured).collect();
        for (at, one) in times.iter().enumerate() {
            for other in times[at + 1..].iter().filter(|other| is_apart(one.1, other.1)) {
                pairs += 1;
                right += usize::from((one.0 < other.0) == (one.1 < other.1));
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of pairs")]
    let share = (pairs > 0).then(|| right as f64 / pairs as f64);
    (pairs, share)
}

fn is_apart(a: f64, b: f64) -> bool {
    a > APART * b || b > APART * a
}

/// Returns the number of sets of rows that differ only in layout, and the mean regret of choosing by
/// estimate.
fn regret(rows: &[&RowEstimate]) -> (usize, Option<f64>) {
    let lost = |group: Vec<&RowEstimate>| {
        let chosen = predicted_best(&group)?.measured_step_seconds?;
        let best = group.iter().filter_map(|row| row.measured_step_seconds).min_by(f64::total_cmp)?;
        Some(chosen / best - 1.0)
    };
    let sets = groups(rows, |row| &row.group).into_iter().filter(|group| group.len() > 1);
    let lost: Vec<f64> = sets.filter_map(lost).collect();
    (lost.len(), mean(&lost))
}

/// Returns the row that would be chosen: of those tied with the best estimate, the one with the fewest tensor
/// ranks.
fn predicted_best<'a>(group: &[&'a RowEstimate]) -> Option<&'a RowEstimate> {
    let seconds = |row: &RowEstimate| row.step_seconds.unwrap_or(f64::INFINITY);
    let best = group.iter().map(|row| seconds(row)).min_by(f64::total_cmp)?;
    let ties = group.iter().filter(|row| seconds(row) <= best * (1.0 + TIE));
    let order = |a: &&&RowEstimate, b: &&&RowEstimate| {
        a.tensor.total_cmp(&b.tensor).then(seconds(a).total_cmp(&seconds(b)))
    };
    ties.min_by(order).copied()
}
