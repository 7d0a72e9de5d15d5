//! Fits the constants of the cost model to published runs, and cross-validates by source.
//!
//! `cargo bench --workspace --bench fit` prints the fitted constants beside their priors, the errors of each
//! source before and after, and the errors of each source under a fit without it; `-- --rows` adds the errors
//! of its rows. `-- --write` changes the files of constants in place.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

#[path = "fit/files.rs"]
mod files;
#[path = "../../tests/benches/shared/measured.rs"]
mod measured;

use dtrain_planner::analytic::Constants;
use dtrain_planner::analytic::constants::covariance::CovarianceFile;
use dtrain_planner::benchmarks::{AccuracyScores, RowEstimate, TableRow, estimate_rows, read_table, scores};
use dtrain_planner::fit::{
    CalibrationLoss, CalibrationResult, ConstantPriors, covariance_file, fit, measured_runs,
};
use measured::{Better, Row};
use std::collections::BTreeSet;
use std::time::Instant;

const ROWS: &str = include_str!("data/measured_layouts.csv");
const PRIORS: &str = include_str!("data/priors.toml");

/// Rounds of resolving open settings and fitting.
const ROUNDS: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rows = read_table(ROWS.as_bytes()).expect("the table is whole");
    let priors = ConstantPriors::read(PRIORS).expect("the priors are whole");
    let shipped = Constants::shipped();
    let begun = Instant::now();
    let (constants, fitted, page) = fitted(&rows, &priors, shipped);
    let seconds = begun.elapsed().as_secs_f64();
    constants_table(&priors, shipped, &constants);
    println!("\n{} steps to {:.2}, {seconds:.1} s\n", fitted.iterations, fitted.cost);
    let after = scores(&estimate_rows(&rows, &[], &constants));
    errors_table(&scores(&estimate_rows(&rows, &[], shipped)), &after);
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let left_out = left_out(&rows, &priors, shipped, has("--rows"));
    left_out_table(&left_out);
    report(&after, &left_out);
    if has("--write") {
        files::write(&priors, &constants, &page);
    }
}

/// Fits the constants to `rows`; returns them with their covariance.
fn fitted(
    rows: &[TableRow],
    priors: &ConstantPriors,
    shipped: &Constants,
) -> (Constants, CalibrationResult, CovarianceFile) {
    let mut constants = shipped.clone();
    let mut start = vec![0.0; priors.0.len()];
    let mut rounds = 0;
    loop {
        let settled = constants.clone();
        let observed = measured_runs(rows, &settled);
        let objective = CalibrationLoss { observed: &observed, priors, constants: shipped };
        // The loss has kinks, such as where kernel launches become the limit, so the shipped constants are a
        // second start.
        let starts = [start, priors.z_scores(shipped)];
        let found = starts.iter().map(|start| fit(&objective, start).expect("there is a minimum"));
        let found = found.min_by(|a, b| a.cost.total_cmp(&b.cost)).expect("there are two starts");
        (constants, start) = (found.constants.clone(), found.z_scores.clone());
        rounds += 1;
        if rounds == ROUNDS {
            let page =
                covariance_file(&objective, &found.z_scores).expect("it is the covariance of the minimum");
            return (constants, found, page);
        }
    }
}

/// Returns the scores of each source and its subsets under constants fitted without it.
fn left_out(
    rows: &[TableRow],
    priors: &ConstantPriors,
    shipped: &Constants,
    has_rows: bool,
) -> Vec<AccuracyScores> {
    let sources: BTreeSet<&str> = rows.iter().map(|row| row.text("source")).collect();
    let mut all = Vec::new();
    for source in sources {
        let (own, others): (Vec<TableRow>, Vec<TableRow>) =
            rows.iter().cloned().partition(|row| row.text("source") == source);
        let (constants, _, _) = fitted(&others, priors, shipped);
        let priced = estimate_rows(&own, &[], &constants);
        if has_rows {
            rows_table(&priced);
        }
        all.extend(scores(&priced));
    }
    all
}

/// Prints the error of each row beside half the width of its interval.
fn rows_table(priced: &[RowEstimate]) {
    for row in priced {
        let half = row.step_seconds_high.zip(row.step_seconds).map(|(high, step)| high / step - 1.0);
        println!(
            "{:24} {} ± {}  {} {:?}",
            row.id,
            percent(row.error),
            percent(half),
            row.group.model,
            row.assumptions
        );
    }
}

fn constants_table(priors: &ConstantPriors, before: &Constants, after: &Constants) {
    println!(
        "{:32} {:>10} {:>7} {:>10} {:>10} {:>7}",
        "constant", "prior", "spread", "shipped", "fitted", "away"
    );
    for prior in &priors.0 {
        let (old, new) = (prior.constant.of(before), prior.constant.of(after));
        println!(
            "{:32} {:>10.3e} {:>7.2} {old:>10.3e} {new:>10.3e} {:>+7.2}",
            prior.constant.name,
            prior.mean,
            prior.spread,
            prior.z_score(new)
        );
    }
}

fn errors_table(before: &[AccuracyScores], after: &[AccuracyScores]) {
    println!(
        "{:42} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "source", "rows", "shipped", "fitted", "bias", "inside", "ordered", "memory"
    );
    for (old, new) in before.iter().zip(after) {
        println!(
            "{:42} {:>5} {} {} {} {} {} {}",
            new.name,
            new.measured,
            percent(old.mean),
            percent(new.mean),
            percent(new.bias),
            percent(new.covered),
            percent(new.ordered),
            percent(new.memory_median)
        );
    }
}

fn left_out_table(scores: &[AccuracyScores]) {
    println!("\nfitted without the source");
    println!(
        "{:42} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "source", "rows", "mean", "median", "p95", "bias", "inside", "ordered"
    );
    for scores in scores {
        println!(
            "{:42} {:>5} {} {} {} {} {} {}",
            scores.name,
            scores.measured,
            percent(scores.mean),
            percent(scores.median),
            percent(scores.p95),
            percent(scores.bias),
            percent(scores.covered),
            percent(scores.ordered)
        );
    }
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| format!("{:>8}", "–"), |value| format!("{:>7.1}%", 100.0 * value))
}

/// Prints rows of `docs/measured.md`.
fn report(after: &[AccuracyScores], left_out: &[AccuracyScores]) {
    for (scores, how) in
        [(after, "constants fitted to all sources"), (left_out, "constants fitted without the source")]
    {
        for scores in scores.iter().filter(|scores| scores.measured >= 10) {
            Row {
                section: "Cost model",
                what: format!("mean error of the step time, {}, {how}", scores.name),
                unit: "%",
                better: Better::Lower,
                ours: scores.mean.map(|mean| 100.0 * mean).into_iter().collect(),
                peer: None,
                note: format!(
                    "{} rows; {} of measured times in the 80 % interval",
                    scores.measured,
                    percent(scores.covered).trim()
                ),
            }
            .print();
        }
    }
}
