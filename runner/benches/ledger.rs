//! What the history costs, beside MLflow: `cargo bench --workspace --bench ledger [-- trials=10000 points=200000]`.
//!
//! Points are kept in batches of about a thousand, each durable before the next. Bytes written are those that the process passed to
//! `write`, to the write-ahead log and to the file; MLflow's are counted the same way. Live, a commit has what four ranks tell in a quarter
//! of a second of steps of 50 ms; of a single step of one rank it is the least that a commit can have. The cold listing is a process
//! of its own, `dtrain history`, over as many trials of a thousand points each. MLflow runs as a library on SQLite, which is its
//! fastest way; it is taken from target/foreign, where `tests/measure` installs it.

#![expect(clippy::print_stdout, reason = "a benchmark talks to whoever started it")]

#[path = "../../tests/benches/shared/measured.rs"]
mod measured;
#[expect(dead_code, reason = "the tests ask for more")]
#[path = "../tests/ledger/support.rs"]
mod support;

use dtrain_protocol::{AttemptId, Rank, StampedEvent, StopReason};
use dtrain_runner::ledger::{Filter, Pagination, Sort};
use dtrain_runner::{Fact, History, Ledger, MetricPoint, TrialUpdate, Verdict};
use measured::{Better, Row};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use support::{ended, events, nobody, place, started, step, with_trial};

/// Steps of a batch: about a thousand points.
const BATCH: u64 = 100;

/// How often everything is measured.
const ROUNDS: usize = 3;

/// What one round measured.
#[derive(Default)]
struct Figures {
    points_a_second: Vec<f64>,
    bytes_a_point: Vec<f64>,
    written_a_point: Vec<f64>,
    listing_ms: Vec<f64>,
    live_bytes_a_point: Vec<f64>,
    bytes_a_step: Vec<f64>,
    page_ms: Vec<f64>,
    compare_ms: Vec<f64>,
    cold_ms: Vec<f64>,
}

fn main() {
    let number = |name: &str, usual: u64| {
        let said =
            std::env::args().find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
        said.map_or(usual, |text| text.parse().expect("a whole number follows the sign"))
    };
    let (trials, points) = (number("trials", 10_000), number("points", 200_000));
    let (mut ours, mut theirs, mut missing) = (Figures::default(), Figures::default(), String::new());
    for round in 1..=ROUNDS {
        keep(&mut ours, points);
        live(&mut ours);
        let many = u32::try_from(trials).expect("some thousands");
        list(&mut ours, many);
        browse(&mut ours, many);
        println!(
            "round {round}, dtrain: {:.0} points/s, {:.1} bytes a point, {:.1} written, {trials} trials in {:.1} ms",
            ours.points_a_second[round - 1],
            ours.bytes_a_point[round - 1],
            ours.written_a_point[round - 1],
            ours.listing_ms[round - 1],
        );
        match mlflow(points.min(50_000), trials.min(1000)) {
            Ok(value) => {
                println!("round {round}, MLflow: {value}");
                let of = |key: &str| value[key].as_f64().expect("the script prints numbers");
                theirs.points_a_second.push(of("points_a_second"));
                theirs.bytes_a_point.push(of("bytes_a_point"));
                theirs.written_a_point.push(of("written_a_point"));
                theirs.listing_ms.push(of("listing_ms"));
            }
            Err(reason) => missing = reason,
        }
    }
    let row = |what: String, unit, better, ours: &[f64], theirs: &[f64], note: &str| {
        let note = if theirs.is_empty() && !missing.is_empty() { missing.clone() } else { note.to_owned() };
        // What MLflow was not asked for has no peer.
        let peer = (!theirs.is_empty() || !missing.is_empty()).then(|| ("MLflow", theirs.to_vec()));
        let ours = ours.to_vec();
        Row { section: "Ledger", what, unit, better, ours, peer, note }.print();
    };
    let few = "MLflow was given 50,000 points";
    let many = "each batch is durable; MLflow is called from Python, keeps its points in SQLite, and was given 50,000";
    row(
        "points a second, durable".into(),
        "points/s",
        Better::Higher,
        &ours.points_a_second,
        &theirs.points_a_second,
        many,
    );
    row(
        "a point in the file".into(),
        "bytes",
        Better::Lower,
        &ours.bytes_a_point,
        &theirs.bytes_a_point,
        few,
    );
    row(
        "written for a point, log and file".into(),
        "bytes",
        Better::Lower,
        &ours.written_a_point,
        &theirs.written_a_point,
        few,
    );
    row(
        "log written for a point while four ranks train".into(),
        "bytes",
        Better::Lower,
        &ours.live_bytes_a_point,
        &[],
        "265 points a commit",
    );
    row(
        "log written for a step of one rank".into(),
        "bytes",
        Better::Lower,
        &ours.bytes_a_step,
        &[],
        "16 points",
    );
    row(format!("list {trials} trials"), "ms", Better::Lower, &ours.listing_ms, &[], "");
    row(format!("newest 20 of {trials} trials"), "ms", Better::Lower, &ours.page_ms, &[], "");
    row("losses of 5 trials of 1000 steps".into(), "ms", Better::Lower, &ours.compare_ms, &[], "");
    let points = trials * 1000;
    let cold = if ours.cold_ms.is_empty() {
        "`cargo build --release` builds dtrain first".to_owned()
    } else {
        format!("{points} points; process start to end")
    };
    row(format!("cold `dtrain history`, {trials} trials"), "ms", Better::Lower, &ours.cold_ms, &[], &cold);
    if theirs.listing_ms.is_empty() {
        return;
    }
    let mut smaller = Figures::default();
    (0..ROUNDS).for_each(|_| list(&mut smaller, 1000));
    row("list 1000 trials".into(), "ms", Better::Lower, &smaller.listing_ms, &theirs.listing_ms, "");
}

/// Keeps about so many points of one trial.
fn keep(figures: &mut Figures, points: u64) {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.record(&trial.id, &support::facts(vec![started(1)])).expect("kept");
    // The last connection moves what the log has into the file.
    drop(history);
    let mut history = History::open(&path).expect("opens");
    let kept = |history: &History| -> u64 {
        history.summaries(&trial.id).expect("read").iter().map(|summary| summary.points).sum()
    };
    let (size, wrote, begun) = (bytes(&path), written(), Instant::now());
    let mut steps = 0;
    let mut each = 1;
    while steps * each < points {
        let batch = (steps..steps + BATCH).map(|n| step(n, n + 1)).collect();
        history.record(&trial.id, &events(batch)).expect("kept");
        steps += BATCH;
        if steps == BATCH {
            each = kept(&history) / BATCH;
        }
    }
    history.record(&trial.id, &support::facts(vec![ended(1)])).expect("kept");
    let seconds = begun.elapsed().as_secs_f64();
    let wrote = written() - wrote;
    let points = kept(&history) as f64;
    drop(history);
    figures.points_a_second.push(points / seconds);
    figures.written_a_point.push(wrote as f64 / points);
    figures.bytes_a_point.push((bytes(&path) - size) as f64 / points);
}

/// Keeps points as a controller does while a trial trains.
fn live(figures: &mut Figures) {
    let log_of = |steps: u64, ranks: u32, commits: u64| {
        let (_folder, path) = place();
        let (mut history, trial) = with_trial(&path);
        history.record(&trial.id, &support::facts(vec![started(1)])).expect("kept");
        let mut next = 0;
        let wrote = written();
        for _ in 0..commits {
            let of = |n| (0..ranks).map(move |rank| StampedEvent { rank: Rank(rank), ..step(n, n + 1) });
            let offset = Some((support::ATTEMPT, next * 3000));
            let events = (next..next + steps).flat_map(of).collect();
            history
                .record(&trial.id, &TrialUpdate { events, offset, ..TrialUpdate::default() })
                .expect("kept");
            next += steps;
        }
        let wrote = written() - wrote;
        let points = history.summaries(&trial.id).expect("read").iter().map(|one| one.points).sum::<u64>();
        (wrote as f64, points as f64)
    };
    let (wrote, points) = log_of(5, 4, 400);
    figures.live_bytes_a_point.push(wrote / points);
    let (wrote, _) = log_of(1, 1, 400);
    figures.bytes_a_step.push(wrote / 400.0);
}

/// Looks into a history of so many trials of a thousand points each.
fn browse(figures: &mut Figures, trials: u32) {
    let (folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.record(&trial.id, &support::facts(vec![started(1)])).expect("kept");
    let loss = |n: u64| MetricPoint {
        attempt: support::ATTEMPT,
        rank: Rank(0),
        key: "loss".into(),
        step: n,
        at_ms: 1_700_000_000_000 + 50 * n,
        value: (n as f64).sqrt(),
    };
    let points = (0..1000).map(loss).collect();
    history.record(&trial.id, &TrialUpdate { points, ..TrialUpdate::default() }).expect("kept");
    let over = Fact::TrialEnded { verdict: Verdict::Completed(StopReason::Complete) };
    history.record(&trial.id, &support::facts(vec![ended(1), over])).expect("kept");
    support::copy_the_trial(&path, trials);
    support::copy_its_points(&path, trials);
    drop(history);
    let history = History::open_read_only(&path).expect("opens");
    let page = Pagination { skip: 0, limit: 20 };
    let begun = Instant::now();
    let newest = history.trials(&Filter::default(), &Sort::Newest, page, &nobody).expect("listed");
    figures.page_ms.push(1e3 * begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    for row in &newest[..5] {
        assert_eq!(history.series(&row.id, "loss", Rank(0)).expect("read").len(), 1000);
    }
    figures.compare_ms.push(1e3 * begun.elapsed().as_secs_f64());
    drop(history);
    let own = std::env::current_exe().expect("it runs");
    let Some(program) =
        own.ancestors().nth(2).map(|target| target.join("dtrain")).filter(|file| file.exists())
    else {
        return;
    };
    let begun = Instant::now();
    let listed = Command::new(program).args(["history", "--quiet", "--state"]).arg(folder.path()).output();
    figures.cold_ms.push(1e3 * begun.elapsed().as_secs_f64());
    let listed = listed.expect("it starts");
    let errors = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success() && !listed.stdout.is_empty(), "it lists them: {errors}");
}

/// Lists so many trials, one of which trains.
fn list(figures: &mut Figures, trials: u32) {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.record(&trial.id, &events((0..30).map(|n| step(n, n + 1)).collect())).expect("kept");
    history.record(&trial.id, &support::facts(vec![started(1), ended(1), started(2)])).expect("kept");
    support::copy_the_trial(&path, trials);
    let more = (0..30).map(|n| StampedEvent { attempt: AttemptId(2), ..step(n, n + 31) });
    history.record(&trial.id, &events(more.collect())).expect("kept");
    let begun = Instant::now();
    let found =
        history.trials(&Filter::default(), &Sort::Newest, Pagination::default(), &nobody).expect("listed");
    figures.listing_ms.push(1e3 * begun.elapsed().as_secs_f64());
    assert_eq!(found.len(), trials as usize, "all are listed");
    assert!(found.iter().all(|row| row.loss.is_some()), "with their figures");
}

/// Size of a history, with what stands in its log.
fn bytes(path: &Path) -> u64 {
    let size = |path: PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    size(path.to_owned()) + size(path.with_extension("db-wal"))
}

/// Bytes that this process has passed to `write`.
fn written() -> u64 {
    let text = fs::read_to_string("/proc/self/io").expect("Linux counts them");
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("it is there");
    line.parse().expect("a number")
}

/// The same with MLflow; `Err` says why not.
fn mlflow(points: u64, runs: u64) -> Result<Value, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let python = root.join("target/foreign/bin/python");
    let script = root.join("runner/benches/ledger_mlflow.py");
    let mut command = Command::new(&python);
    let output = command.arg(script).args([points, runs].map(|number| number.to_string())).output();
    let output =
        output.map_err(|error| format!("{}: {error}; `tests/measure` makes it", python.display()))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("MLflow: {}", error.lines().last().unwrap_or("it failed")));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("MLflow: {error}"))
}
