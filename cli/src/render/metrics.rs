//! Metrics on the text page of a trial: best and last value of each.

use super::history::figure;
use super::number::{count, plain as number};
use dtrain_recipes::Goal;
use dtrain_runner::ledger::{Summary, TrialDetails, is_own_series};

/// Formats best and last value of the objective and of the named metrics, one line each.
pub(super) fn lines(trial: &TrialDetails) -> Vec<Vec<String>> {
    let first = [trial.row.objective.as_str(), "valid.loss", "valid.accuracy", "loss", "gradient_norm"];
    let mut lines: Vec<Vec<String>> = Vec::new();
    let named = trial.figures.iter().map(|summary| summary.key.as_str()).filter(|key| is_named(key));
    for key in first.into_iter().chain(named) {
        if lines.iter().any(|line| line[0] == key) {
            continue;
        }
        let Some(summary) = trial.figure(key) else { continue };
        let (word, best) = match key {
            "valid.accuracy" => ("best", summary.max.zip(summary.max_step)),
            "gradient_norm" => ("largest", summary.max.zip(summary.max_step)),
            _ if key == trial.row.objective && trial.row.goal == Goal::Max => {
                ("best", summary.max.zip(summary.max_step))
            }
            // It is unknown whether higher or lower is better.
            _ if is_named(key) && key != trial.row.objective => {
                lines.push(vec![key.to_owned(), range_of(summary), last_of(summary, key)]);
                continue;
            }
            _ => ("best", summary.min.zip(summary.min_step)),
        };
        let best = best
            .map_or(String::new(), |(value, step)| format!("{word} {} at step {step}", figure(key, value)));
        lines.push(vec![key.to_owned(), best, last_of(summary, key)]);
    }
    if let Some(scale) = trial.noise_scale {
        let [samples, low, high] = [scale.samples, scale.low, scale.high].map(count);
        let range = format!("{samples} samples ({low} to {high})");
        lines.push(vec!["noise scale".to_owned(), range, "half noise at this batch size".to_owned()]);
    }
    lines
}

/// Returns `true` if a program chose the name of the series `key`.
fn is_named(key: &str) -> bool {
    !is_own_series(key)
}

fn last_of(summary: &Summary, key: &str) -> String {
    let last = summary.last.map_or("not a number".to_owned(), |last| figure(key, last));
    format!("last {last}")
}

fn range_of(summary: &Summary) -> String {
    let ends = summary.min.zip(summary.max);
    ends.map_or(String::new(), |(min, max)| format!("from {} to {}", number(min), number(max)))
}
