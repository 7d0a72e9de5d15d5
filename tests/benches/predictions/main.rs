//! How near the plan is to what happens: `cargo build --release`, then `cargo bench --workspace --bench predictions`.
//!
//! Twenty models, each planned as the planner would and once for every way to cut it among one to four ranks. In every round the
//! machine is measured anew, all plans are priced again, and each is trained for some seconds. What counts of the prices and of
//! the steps is the fastest of the rounds: whatever else goes on, here or on other guests of the same processor, only slows.
//! No trial teaches the plans of a round anything, as each round begins with an empty history.
//!
//! What a user gets is one plan and one run: of that, the error of the first round's price against the mean of all steps of its
//! run is printed too, and how far a second run of the same plan is from the first: what the machine alone does.
//!
//! Prints the error of every prediction and what the planner's pick costs over the best that was measured. The table also goes
//! to `target/predictions.csv`. Words that follow `--` are names of models, or `rounds=3` and `seconds=2` for the number of rounds
//! and the length of a trial.

#[path = "../shared/measured.rs"]
mod measured;
mod models;

use dtrain_planner::{Candidate, Plan, RankedCandidate};
use dtrain_protocol::{Arrangement, Layout, Rank};
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::{TestEnv, root};
use measured::{Better, Row};
use models::{Subject, subjects};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Ways to cut a model, as settings; the first leaves all to the planner.
const WAYS: [&[&str]; 7] = [
    &[],
    &["cluster.ranks=1"],
    &["cluster.ranks=2", "layout.data=2"],
    &["cluster.ranks=2", "layout.tensor=2"],
    &["cluster.ranks=2", "layout.pipeline=2"],
    &["cluster.ranks=2", "layout.context=2"],
    &["cluster.ranks=4"],
];

/// Steps of a trial, at least: the first few do not count.
const STEPS_LEAST: f64 = 16.0;

/// A plan of one way, and what came of it.
struct Try {
    candidate: Candidate,
    /// Its 80 % interval over the price, in the first round.
    interval: [f64; 2],
    /// Seconds of a step, of every round.
    predicted: Vec<f64>,
    measured: Vec<f64>,
    /// Mean seconds of all steps of the run, the first ones included, of every round.
    mean: Vec<f64>,
}

impl Try {
    fn predicted(&self) -> f64 {
        fastest(&self.predicted)
    }

    fn measured(&self) -> f64 {
        fastest(&self.measured)
    }

    /// The measured step over the predicted one.
    fn ratio(&self) -> f64 {
        self.measured() / self.predicted()
    }
}

fn fastest(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::INFINITY, f64::min)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let number = |name: &str, usual: f64| {
        let said = words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        said.map_or(usual, |text| text.parse().expect("a number follows the sign"))
    };
    let (rounds, seconds) = (number("rounds", 3.0), number("seconds", 2.0));
    let wanted: Vec<&String> = words.iter().filter(|word| !word.contains('=')).collect();
    let is_wanted = |subject: &Subject| wanted.is_empty() || wanted.iter().any(|name| *name == subject.name);
    let mut table = "model,layout,predicted_seconds,measured_seconds,is_pick\n".to_owned();
    let (mut errors, mut as_planned, mut losses, mut inside) = (Vec::new(), Vec::new(), Vec::new(), 0);
    // Of each plan, the mean step of its second run against that of its first.
    let mut repeated = Vec::new();
    for subject in subjects().iter().filter(|subject| is_wanted(subject)) {
        let tries = tried(subject, rounds, seconds);
        let best = tries.iter().map(Try::measured).fold(f64::INFINITY, f64::min);
        for (number, one) in tries.iter().enumerate() {
            let (candidate, is_pick) = (&one.candidate, number == 0);
            let (predicted, measured) = (one.predicted(), one.measured());
            say(&format!(
                "{:13} {} {:7.1} ms predicted, {:7.1} measured, {:+5.1} %  {candidate}",
                subject.name,
                if is_pick { "*" } else { " " },
                1e3 * predicted,
                1e3 * measured,
                100.0 * (one.ratio() - 1.0),
            ));
            writeln!(table, "{},\"{candidate}\",{predicted:.6},{measured:.6},{is_pick}", subject.name)
                .expect("a string grows");
            errors.push((one.ratio() - 1.0).abs());
            // What a user gets: one plan, then one run with all its steps.
            as_planned.push(100.0 * (one.mean[0] / one.predicted[0] - 1.0).abs());
            repeated.extend(one.mean.get(1).map(|second| 100.0 * (second / one.mean[0] - 1.0).abs()));
            inside += u32::from((one.interval[0]..=one.interval[1]).contains(&one.ratio()));
        }
        losses.push(tries[0].measured() / best - 1.0);
    }
    let near = losses.iter().filter(|loss| **loss <= 0.05).count();
    say(&format!(
        "{} models, {} plans: error {:.1} % in the median, {:.1} % at nine in ten; {inside} inside their 80 % interval",
        losses.len(),
        errors.len(),
        100.0 * median(errors.clone()),
        100.0 * quantile(&mut errors, 0.9),
    ));
    say(&format!(
        "the pick costs {:.1} % over the best measured in the median, {:.1} % at most; within 5 % for {near} of {}",
        100.0 * median(losses.clone()),
        100.0 * quantile(&mut losses, 1.0),
        losses.len(),
    ));
    let tail = quantile(&mut as_planned, 0.9);
    if rounds >= 2.0 {
        say(&format!(
            "a second run of the same plan differs from the first by {:.1} % in the median",
            median(repeated),
        ));
    }
    for (what, ours) in [
        (
            "error of the predicted step: first plan against the mean step of its run, over all plans",
            as_planned,
        ),
        ("the same, 90th percentile over all plans", vec![tail]),
    ] {
        Row {
            section: "Predictions",
            what: what.into(),
            unit: "%",
            better: Better::Lower,
            ours,
            peer: None,
            note: format!("{} plans of {} models", errors.len(), losses.len()),
        }
        .print();
    }
    Row {
        section: "Predictions",
        what: "models whose pick is within 5 % of the best measured layout".into(),
        unit: "%",
        better: Better::Higher,
        ours: vec![100.0 * near as f64 / losses.len() as f64],
        peer: None,
        note: format!("{near} of {} models", losses.len()),
    }
    .print();
    let path = root().join("target/predictions.csv");
    fs::write(&path, table).expect("target can be written");
    say(&format!("written to {}", path.display()));
}

/// Plans a model in every way, then prices and trains every plan once a round.
fn tried(subject: &Subject, rounds: f64, seconds: f64) -> Vec<Try> {
    let mut tries: Vec<Try> = Vec::new();
    let mut round = 0.0;
    while round < rounds {
        let house = TestEnv::with_full_probes();
        let recipe = subject.write(&house);
        if tries.is_empty() {
            for plan in WAYS.iter().filter_map(|way| planned(&house, &recipe, way, None).ok()) {
                let (RankedCandidate { candidate, .. }, estimate) =
                    (plan.best().clone(), plan.best().price());
                let interval = [estimate.step_low, estimate.step_high].map(|end| end.0 / estimate.step.0);
                if tries.iter().all(|known| known.candidate != candidate) {
                    let (predicted, measured, mean) = (Vec::new(), Vec::new(), Vec::new());
                    tries.push(Try { candidate, interval, predicted, measured, mean });
                }
            }
        }
        let files: Vec<PathBuf> = tries.iter_mut().map(|one| priced(&house, &recipe, one, seconds)).collect();
        for (one, file) in tries.iter_mut().zip(files) {
            let (steady, mean) = trained(&house, &file);
            one.measured.push(steady);
            one.mean.push(mean);
        }
        round += 1.0;
    }
    tries
}

/// Prices a candidate with the rates of this house; the file with its plan for about `seconds` of training.
fn priced(house: &TestEnv, recipe: &Path, one: &mut Try, seconds: f64) -> PathBuf {
    let pins = pins(&one.candidate);
    let mut sets: Vec<&str> = pins.iter().map(String::as_str).collect();
    let price = |plan: &Plan| plan.best().price().step.0;
    let plan = planned(house, recipe, &sets, None).expect("it was planned before");
    assert_eq!(plan.best().candidate, one.candidate, "all that can be chosen is pinned");
    one.predicted.push(price(&plan));
    let stop = format!("objective.stop={{ steps = {:.0} }}", (seconds / price(&plan)).max(STEPS_LEAST));
    sets.push(&stop);
    let file = tempfile::Builder::new().suffix(".plan.json").tempfile_in(house.state()).expect("a file");
    let (_, path) = file.keep().expect("it stays");
    planned(house, recipe, &sets, Some(&path)).expect("it was planned before");
    path
}

/// Settings that leave the planner nothing but this.
fn pins(candidate: &Candidate) -> Vec<String> {
    let arrangement = serde_json::to_value(candidate.arrangement).expect("JSON");
    let layout = &arrangement["layout"];
    let axes = ["data", "tensor", "pipeline", "context", "expert"].map(|key| (key, layout[key].clone()));
    let Arrangement { layout: Layout { pipeline, tensor, .. }, .. } = candidate.arrangement;
    let others = [
        ("zero", candidate.arrangement.replicas() > 1),
        ("shard", candidate.arrangement.shard > 1),
        ("recompute", true),
        ("recompute_every", candidate.arrangement.recompute_every > 1),
        ("schedule", pipeline.get() > 1),
        ("chunks", pipeline.get() > 1),
        ("sequence", tensor.get() > 1),
    ];
    // The language refuses what says nothing.
    let others = others.into_iter().filter(|(_, says)| *says).map(|(key, _)| (key, arrangement[key].clone()));
    let micro = [("micro_batch", candidate.split.micro().into())];
    let all = axes.into_iter().chain(others).chain(micro);
    let mut sets: Vec<String> = all.map(|(key, value)| format!("layout.{key}={}", word(&value))).collect();
    sets.push(format!("cluster.ranks={}", candidate.arrangement.layout.world()));
    sets.push(format!("train.precision={}", word(&arrangement["precision"])));
    sets
}

/// A value as the language has it.
fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The plan of a recipe with some settings, saved where `file` says; what was said where no layout divides so.
fn planned(house: &TestEnv, recipe: &Path, sets: &[&str], file: Option<&Path>) -> Result<Plan, String> {
    let mut command = house.dtrain(["plan", "--json"]);
    command.arg(recipe);
    for set in sets {
        command.args(["--set", set]);
    }
    if let Some(file) = file {
        command.arg("--out").arg(file);
    }
    let output = command.output().expect("dtrain starts");
    let mut json: Value = match output.status.code() {
        Some(0) => serde_json::from_slice(&output.stdout).expect("JSON"),
        // No layout divides so, or it is of no use for this kind of model.
        Some(2 | 3) => return Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        _ => panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)),
    };
    Ok(serde_json::from_value(json["plan"].take()).expect("a plan"))
}

/// Trains the plan: seconds of a steady step, and the mean of all steps.
fn trained(house: &TestEnv, plan: &Path) -> (f64, f64) {
    let arguments = ["run", plan.to_str().expect("UTF-8"), "--quiet", "--no-sample"];
    house.expect(0, arguments);
    let history = History::open_read_only(&house.history()).expect("a history");
    let trial = history.find("last").expect("it was trained");
    let steps = history.series(&trial, "step_seconds", Rank(0)).expect("its steps");
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let mean = steps.iter().map(|step| step.value).sum::<f64>() / steps.len() as f64;
    let trial = history.trial(&trial, &|_| TrialActivity::None).expect("it is there");
    (trial.row.step_seconds.expect("steps were timed"), mean)
}

fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

/// The value below which a share of the values lies, between two of them where it falls there.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    #[expect(clippy::cast_precision_loss, reason = "a few hundred at most")]
    let at = share * last as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is an index")]
    let low = at.floor() as usize;
    values[low] + (values[(low + 1).min(last)] - values[low]) * at.fract()
}

#[expect(clippy::print_stdout, reason = "the report of a bench")]
fn say(line: &str) {
    println!("{line}");
}
