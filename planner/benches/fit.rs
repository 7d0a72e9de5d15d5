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

use dtrain_planner::analytic::constants::covariance::CovarianceFile;
use dtrain_planner::analytic::uncertainty::step_time_uncertainty;
use dtrain_planner::analytic::{Constants, Experience, PeakMemory, StepTimes};
use dtrain_planner::benchmarks::{AccuracyScores, RowEstimate, TableRow, estimate_rows, read_table, scores};
use dtrain_planner::fit::{
    CalibrationLoss, CalibrationResult, ConstantPriors, MeasuredRun, covariance_file, fit, measured_runs,
};
use measured::{Better, Row};
use std::collections::BTreeSet;
use std::time::Instant;

/// Measured layouts of large clusters and of one host, and trainings on one to sixteen GPUs.
const TABLES: [&str; 2] =
    [include_str!("data/measured_layouts.csv"), include_str!("data/small_trainings.csv")];
const PRIORS: &str = include_str!("data/priors.toml");

/// Rounds of resolving open settings and fitting.
const ROUNDS: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tables = TABLES.map(|table| read_table(table.as_bytes()).expect("the table is whole"));
    let small: BTreeSet<String> = tables[1].iter().map(|row| row.text("source").to_owned()).collect();
    let rows = tables.concat();
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
    if has("--causes") {
        causes_table(&rows, &constants);
    }
    if has("--fitted-only") {
        return;
    }
    let priced = left_out(&rows, &priors, shipped, has("--uncertainty"));
    if has("--rows") {
        rows_table(&priced);
    }
    let left_out = scores(&priced);
    left_out_table(&left_out);
    let of_few: Vec<RowEstimate> = priced.into_iter().filter(|row| small.contains(&row.source)).collect();
    small_table(&of_few);
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
            constants.experience = experience(&observed);
            return (constants, found, page);
        }
    }
}

/// Counts the sources of the runs that constants were fitted to.
fn experience(observed: &[MeasuredRun<'_>]) -> Experience {
    Experience::of_runs(
        observed.iter().map(|run| (run.source.as_str(), run.training.case(), run.training.gpu)),
    )
}

/// Returns the estimate of each row under constants fitted without its source.
fn left_out(
    rows: &[TableRow],
    priors: &ConstantPriors,
    shipped: &Constants,
    is_detailed: bool,
) -> Vec<RowEstimate> {
    let sources: BTreeSet<&str> = rows.iter().map(|row| row.text("source")).collect();
    let of_source = |source: &str| {
        let (own, others): (Vec<TableRow>, Vec<TableRow>) =
            rows.iter().cloned().partition(|row| row.text("source") == source);
        let (constants, _, _) = fitted(&others, priors, shipped);
        if is_detailed {
            uncertainty_table(&own, &constants);
        }
        estimate_rows(&own, &[], &constants)
    };
    sources.into_iter().flat_map(of_source).collect()
}

/// Prints ln(predicted / measured) of each row beside its standard deviations by cause.
fn uncertainty_table(rows: &[TableRow], constants: &Constants) {
    for run in measured_runs(rows, constants) {
        let case = run.training.case();
        let doubt = step_time_uncertainty(&case, run.training.gpu, run.training.unknown).by_cause();
        let away = StepTimes::of(&case).total().ln() - run.measured;
        let doubt: Vec<String> = doubt.iter().map(|part| format!("{part:.4}")).collect();
        println!("uncertainty\t{}\t{}\t{away:.4}\t{}", run.source, run.id, doubt.join(" "));
        let seen = constants.experience.of_case(&case, run.training.gpu);
        println!("seen\t{}\t{:?}", run.id, seen.iter().flatten().collect::<Vec<_>>());
    }
}

/// Prints the scores of all trainings on one to sixteen GPUs together.
fn small_table(priced: &[RowEstimate]) {
    let all: Vec<RowEstimate> = priced
        .iter()
        .map(|row| RowEstimate { source: "one to sixteen GPUs".to_owned(), ..row.clone() })
        .collect();
    left_out_table(&scores(&all)[..1]);
    let lacking = priced.iter().filter(|row| row.fits == Some(false)).map(|row| row.id.as_str());
    println!("\nran, but do not fit: {:?}", lacking.collect::<Vec<_>>());
}

/// Prints the error of each row beside half the width of its interval.
fn rows_table(priced: &[RowEstimate]) {
    for row in priced {
        let half = row.step_seconds_high.zip(row.step_seconds).map(|(high, step)| high / step - 1.0);
        println!(
            "{:44} {} ± {} memory {}  {} {:?}",
            row.id,
            percent(row.error),
            percent(half),
            percent(row.peak_bytes_error),
            row.style.unwrap_or_default(),
            row.assumptions
        );
    }
}

/// Prints the seconds and the bytes of each row by cause.
fn causes_table(rows: &[TableRow], constants: &Constants) {
    for run in measured_runs(rows, constants) {
        let case = run.training.case();
        let step = StepTimes::of(&case);
        let seconds: Vec<String> = step
            .causes(&case)
            .iter()
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|(name, seconds)| format!("{name} {seconds:.3}"))
            .collect();
        let bytes: Vec<String> = PeakMemory::of(&case)
            .categories()
            .iter()
            .map(|(name, bytes)| format!("{name} {:.1}", bytes / 1024f64.powi(3)))
            .collect();
        let layer = step.layer;
        println!(
            "{:44} measured {:.3} s: {}; a layer: products {:.2} + {:.2}, attention {:.2}, passes {:.2}, host {:.2} ms; GiB: {}",
            run.id,
            run.measured.exp(),
            seconds.join(", "),
            1e3 * layer.projections.sum(),
            1e3 * layer.feed_forward.sum(),
            1e3 * layer.core.sum(),
            1e3 * layer.elementwise.sum(),
            1e3 * layer.host.sum(),
            bytes.join(", ")
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
        "{:42} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "source", "rows", "mean", "median", "p95", "bias", "inside", "ordered", "memory"
    );
    for scores in scores {
        println!(
            "{:42} {:>5} {} {} {} {} {} {} {}",
            scores.name,
            scores.measured,
            percent(scores.mean),
            percent(scores.median),
            percent(scores.p95),
            percent(scores.bias),
            percent(scores.covered),
            percent(scores.ordered),
            percent(scores.memory_median)
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
