//! The ledger's promises: kept once, kept for good, kept while others write, and found again.

use dtrain_protocol::{
    AttemptId, Event, Failure, HostFacts, Layout, PhaseTimes, Rank, RankRates, Rates, Stamped, StepFigures,
    StepId, StopReason, TrialId,
};
use dtrain_recipes::Recipe;
use dtrain_runner::ledger::{
    Created, Filter, Format, LookupError, NewTrial, Page, Predicted, Sort, Source, Status, host_digest,
};
use dtrain_runner::provenance::{Git, Provenance};
use dtrain_runner::{Ended, Fact, History, Ledger, News, Point, Verdict};
use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ATTEMPT: AttemptId = AttemptId(1);

fn recipe(name: &str) -> Recipe {
    serde_json::from_value(json!({
        "name": name,
        "model": {"kind": "mlp", "inputs": 4, "hidden": [8], "classes": 2, "activation": "relu"},
        "data": {"format": {"format": "csv", "target": "y"}, "train": ["a.csv"], "valid": {"fraction": 0.1}, "fraction": 1.0},
        "objective": {"metric": "valid.loss", "stop": {"steps": 100}},
        "train": {
            "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1},
            "batch": "auto", "learning_rate": {"pinned": 0.001}, "warmup": "auto", "schedule": "cosine",
            "final_fraction": 0.1, "clip": 1.0, "precision": {"pinned": "f32"}, "seed": 7
        },
        "layout": {},
        "checkpoint": {"every": "auto", "keep": 2},
        "cluster": {"launcher": "local", "ranks": null, "devices": "cpu", "hosts": []}
    }))
    .expect("a recipe")
}

fn host() -> HostFacts {
    HostFacts {
        name: "here".into(),
        processor: "a processor".into(),
        cores: 2,
        memory_bytes: 8 << 30,
        gpus: Vec::new(),
    }
}

fn new_trial(name: &str) -> NewTrial {
    NewTrial {
        recipe: recipe(name),
        plan: json!({"version": 1}),
        candidate: json!({"micro_batch": 4, "zero": "0"}),
        layout: Layout::SINGLE,
        batch: 32,
        learning_rate: 1e-3,
        predicted: Predicted {
            step_seconds: Some(0.02),
            tokens_per_second: Some(1600.0),
            memory_bytes: Some(1 << 20),
        },
        host_digest: host_digest(&host()),
        model_digest: "m".into(),
        search: None,
        sources: BTreeMap::from([("train.seed".to_owned(), Source::Default)]),
        provenance: Provenance {
            git: Some(Git { revision: "a1b2c3d4".into(), patch: Some("+x\n".into()), ..Git::default() }),
            program: "0.1.0".into(),
            environment: BTreeMap::from([("os".to_owned(), "linux".to_owned())]),
            command: vec!["dtrain".into(), "run".into()],
        },
    }
}

fn step(sequence: u64, step: u64) -> Stamped {
    let figures = StepFigures {
        step: StepId(step),
        loss: 1.0 / step as f64,
        gradient_norm: 1.0,
        learning_rate: 1e-3,
        tokens: 32,
        times: PhaseTimes { step: 0.02, ..PhaseTimes::default() },
        memory_bytes: 1000 + step,
    };
    stamped(sequence, Event::Step(figures))
}

fn stamped(sequence: u64, event: Event) -> Stamped {
    Stamped { attempt: ATTEMPT, rank: Rank(0), sequence, at_ms: 1_700_000_000_000 + sequence, event }
}

fn events(events: Vec<Stamped>) -> News {
    News { events, ..News::default() }
}

fn facts(facts: Vec<Fact>) -> News {
    News { facts, ..News::default() }
}

fn started(attempt: u64) -> Fact {
    Fact::AttemptStarted { attempt: AttemptId(attempt), from: None }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("history.db");
    (folder, path)
}

fn with_trial(path: &Path) -> (History, Created) {
    let mut history = History::open(path).expect("opens");
    let created = history.create_trial(&new_trial("r")).expect("created");
    (history, created)
}

fn losses(history: &History, trial: &TrialId) -> Vec<(u64, f64)> {
    let samples = history.series(trial, "loss", Rank(0)).expect("read");
    samples.into_iter().map(|sample| (sample.step, sample.value)).collect()
}

fn nobody(_: &TrialId) -> bool {
    false
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Deliveries repeat and overlap as after lost acknowledgements; connections are dropped between them.
    #[test]
    fn every_event_counts_once_however_often_it_is_delivered(
        cuts in prop::collection::vec((0u64..700, 1u64..700, any::<bool>()), 1..12),
    ) {
        let (_folder, path) = place();
        let (mut history, trial) = with_trial(&path);
        let mut reached = 0;
        for (back, forward, reopen) in cuts {
            let from = reached - u64::min(reached, back);
            let to = u64::min(from + forward, 1500).max(reached);
            let batch: Vec<_> = (from..to).map(|n| step(n, n + 1)).collect();
            let news = News { events: batch, offset: Some((ATTEMPT, to * 100)), ..News::default() };
            history.keep(&trial.id, &news).expect("kept");
            reached = to;
            if reopen {
                drop(history);
                history = History::open(&path).expect("opens again");
            }
        }
        let expected: Vec<_> = (1..=reached).map(|s| (s, 1.0 / s as f64)).collect();
        prop_assert_eq!(losses(&history, &trial.id), expected);
        prop_assert_eq!(history.offset(&trial.id, ATTEMPT).expect("read"), reached * 100);
        let summaries = history.summaries(&trial.id).expect("read");
        if let Some(loss) = summaries.iter().find(|summary| summary.key == "loss") {
            prop_assert_eq!(loss.points, reached);
            prop_assert_eq!(loss.last_step, reached);
        }
    }

    /// Points of the host come in any order, twice, and not as numbers; sealing does not show. SQLite's rows do
    /// not tell -0 from 0.
    #[test]
    fn points_survive_sealing(
        raw in prop::collection::vec((0u64..3000, prop::num::f64::ANY), 1..1500), sizes in prop::collection::vec(1usize..900, 1..6),
    ) {
        let (_folder, path) = place();
        let (mut history, trial) = with_trial(&path);
        let mut model = BTreeMap::new();
        let mut rest = raw.as_slice();
        let mut newest = None;
        for size in sizes.iter().cycle() {
            if rest.is_empty() { break }
            let (batch, after) = rest.split_at((*size).min(rest.len()));
            rest = after;
            // Within a batch everything beyond what was kept before it counts; the later of two wins.
            for (step, value) in batch {
                if newest.is_none_or(|newest| *step > newest) {
                    model.insert(*step, *value);
                }
            }
            newest = model.keys().next_back().copied();
            let points = batch.iter().map(|(step, value)| Point {
                attempt: ATTEMPT, rank: Rank(0), key: "cpu".into(), step: *step, at_ms: *step, value: *value,
            }).collect();
            history.keep(&trial.id, &News { points, ..News::default() }).expect("kept");
        }
        let kept = history.series(&trial.id, "cpu", Rank(0)).expect("read");
        let bits = |v: f64| if v.is_nan() { f64::NAN.to_bits() } else { (v + 0.0).to_bits() };
        let kept: Vec<_> = kept.iter().map(|s| (s.step, bits(s.value))).collect();
        let expected: Vec<_> = model.into_iter().map(|(s, v)| (s, bits(v))).collect();
        prop_assert_eq!(kept, expected);
    }
}

#[test]
fn a_batch_is_kept_whole_or_not_at_all() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.keep(&trial.id, &facts(vec![started(1)])).expect("kept");
    // Whatever a transaction meets at its end, such as a full disk, undoes its beginning.
    let saboteur = Connection::open(&path).expect("opens");
    saboteur
        .execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON spool BEGIN SELECT RAISE(ABORT, 'disk full'); END",
        )
        .expect("made");
    let durable = Fact::CheckpointDurable { attempt: ATTEMPT, step: StepId(2), folder: "c".into() };
    let news = News {
        facts: vec![durable.clone()],
        events: vec![step(0, 1), step(1, 2)],
        offset: Some((ATTEMPT, 50)),
        ..News::default()
    };
    let error = history.keep(&trial.id, &news).expect_err("refused");
    assert!(error.source.to_string().contains("disk full"), "{error:?}");
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1)]);
    assert!(losses(&history, &trial.id).is_empty());

    saboteur.execute_batch("DROP TRIGGER full").expect("dropped");
    history.keep(&trial.id, &news).expect("kept now");
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1), durable]);
    assert_eq!(losses(&history, &trial.id).len(), 2);
}

#[test]
fn facts_are_kept_once_and_a_late_finish_corrects_a_presumed_loss() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let ended = |ended| Fact::AttemptEnded { attempt: ATTEMPT, ended };
    let lost = ended(Ended::Lost(Failure::Exited { code: None, signal: Some(9) }));
    let finished = ended(Ended::Finished(StopReason::Complete));
    let over = Fact::TrialEnded { verdict: Verdict::Completed(StopReason::Complete) };
    for _ in 0..2 {
        for fact in [started(1), lost.clone()] {
            history.keep(&trial.id, &facts(vec![fact])).expect("kept");
        }
    }
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1), lost.clone()]);
    for _ in 0..2 {
        for fact in [finished.clone(), over.clone()] {
            history.keep(&trial.id, &facts(vec![fact])).expect("kept");
        }
    }
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1), lost, finished.clone(), over.clone()]);
    history.keep(&trial.id, &facts(vec![Fact::Resumed, started(2), over.clone()])).expect("kept");
    assert_eq!(history.facts(&trial.id).expect("read").len(), 7, "a resumed trial may end again");
}

#[test]
fn a_status_is_never_taken_on_trust() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let status =
        |history: &History, alive: bool| history.trial(&trial.id, &|_| alive).expect("read").row.status;
    assert_eq!(status(&history, true), Status::Created);
    history.keep(&trial.id, &facts(vec![started(1)])).expect("kept");
    assert_eq!(status(&history, true), Status::Running);
    assert_eq!(status(&history, false), Status::Lost);

    assert!(history.reconcile(&|_| true).expect("looked").is_empty());
    assert_eq!(history.reconcile(&nobody).expect("looked"), [trial.id.clone()]);
    assert!(history.reconcile(&nobody).expect("looked").is_empty(), "told once");
    assert_eq!(history.trial(&trial.id, &nobody).expect("read").attempts.len(), 1);
    assert_eq!(status(&history, false), Status::Lost);

    let verdicts = [
        (Verdict::OutOfMemory, Status::OutOfMemory),
        (Verdict::Stopped, Status::Stopped),
        (Verdict::Completed(StopReason::Target), Status::Completed),
    ];
    for (verdict, expected) in verdicts {
        history.keep(&trial.id, &facts(vec![Fact::TrialEnded { verdict }])).expect("kept");
        assert_eq!(status(&history, true), expected);
        history.keep(&trial.id, &facts(vec![Fact::Resumed])).expect("kept");
        assert_eq!(status(&history, true), Status::Running);
    }
}

#[test]
fn the_last_attempt_wins_where_attempts_overlap_and_both_can_be_seen() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.keep(&trial.id, &events((0..20).map(|n| step(n, n + 1)).collect())).expect("kept");
    let again: Vec<_> = (0..15)
        .map(|n| {
            let mut event = Stamped { attempt: AttemptId(2), ..step(n, n + 11) };
            if let Event::Step(figures) = &mut event.event {
                figures.loss = -1.0;
            }
            event
        })
        .collect();
    history.keep(&trial.id, &events(again)).expect("kept");
    let joined = losses(&history, &trial.id);
    assert_eq!(joined.len(), 25);
    assert!(joined.iter().all(|(step, loss)| (*loss == -1.0) == (*step > 10)), "{joined:?}");
    let by_attempt = history.series_by_attempt(&trial.id, "loss", Rank(0)).expect("read");
    assert_eq!(by_attempt.iter().map(|(_, s)| s.len()).collect::<Vec<_>>(), [20, 15]);
}

#[test]
fn a_trial_is_found_by_label_id_or_the_beginning_of_either() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    let created: Vec<_> = ["gpt", "gpt", "mnist-cnn"]
        .iter()
        .map(|name| history.create_trial(&new_trial(name)).expect("created"))
        .collect();
    assert_eq!(
        created.iter().map(|c| c.label.as_str()).collect::<Vec<_>>(),
        ["gpt-1", "gpt-2", "mnist-cnn-1"]
    );
    let find = |name: &str| history.find(name);
    assert_eq!(find("gpt-2").expect("by label"), created[1].id);
    assert_eq!(find(&created[0].id.0.to_lowercase()).expect("by id"), created[0].id);
    assert_eq!(find("mni").expect("by prefix"), created[2].id);
    assert_eq!(find("last").expect("the newest"), created[2].id);
    match find("gpt-") {
        Err(LookupError::Ambiguous { matches, .. }) => assert_eq!(matches, ["gpt-2", "gpt-1"]),
        other => panic!("{other:?}"),
    }
    let message = find("mnst-cnn-1").expect_err("mistyped").to_string();
    assert!(message.contains("did you mean mnist-cnn-1"), "{message}");

    history.delete(&created[1].id, &nobody).expect("deleted");
    assert_eq!(
        history.create_trial(&new_trial("gpt")).expect("created").label,
        "gpt-3",
        "labels are not reused"
    );
}

#[test]
fn everything_told_about_a_trial_is_shown_and_deleting_leaves_nothing() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let folder = PathBuf::from("/c/step-000000030.a1");
    let news = News {
        facts: vec![
            started(1),
            Fact::CheckpointDurable { attempt: ATTEMPT, step: StepId(30), folder: folder.clone() },
            Fact::CheckpointRefused { step: StepId(30), folder, reason: "torn".into() },
        ],
        events: (0..30)
            .map(|n| step(n, n + 1))
            .chain([stamped(30, Event::Validated { step: StepId(30), loss: 0.4, accuracy: 0.9 })])
            .collect(),
        ..News::default()
    };
    history.keep(&trial.id, &news).expect("kept");
    history.add_note(&trial.id, "looks fine").expect("noted");
    history.set_tag(&trial.id, "keep", "yes").expect("tagged");
    let ended = Fact::AttemptEnded { attempt: ATTEMPT, ended: Ended::Finished(StopReason::Complete) };
    history.keep(&trial.id, &facts(vec![ended])).expect("kept");

    let shown = history.trial(&trial.id, &nobody).expect("read");
    assert_eq!(shown.row.best, Some(0.4));
    assert_eq!(shown.row.step, 30);
    assert_eq!(shown.row.step_seconds, Some(0.02));
    assert_eq!(shown.row.tokens_per_second, Some(1600.0));
    assert_eq!(shown.checkpoints[0].refused.as_deref(), Some("torn"));
    assert_eq!(shown.provenance, new_trial("r").provenance, "patch and environment come back");
    let source = |path: &str| shown.params.iter().find(|p| p.path == path).map(|p| p.source);
    assert_eq!(source("train.seed"), Some(Source::Default));
    assert_eq!(source("train.learning_rate.pinned"), Some(Source::Recipe));
    assert_eq!(source("plan.micro_batch"), Some(Source::Planner));
    assert_eq!(shown.notes[0].text, "looks fine");
    assert_eq!(shown.tags["keep"], "yes");

    let tagged = Filter { tag: Some("keep".into()), ..Filter::default() };
    assert_eq!(history.trials(&tagged, &Sort::Newest, Page::default(), &nobody).expect("listed").len(), 1);
    let where_ =
        |text: &str| Filter { conditions: vec![text.parse().expect("a condition")], ..Filter::default() };
    for (condition, expected) in [
        ("train.seed = 7", 1),
        ("train.seed>7", 0),
        ("valid.loss <= 0.4", 1),
        ("valid.loss<0.4", 0),
        ("plan.micro_batch>=4", 1),
    ] {
        let found =
            history.trials(&where_(condition), &Sort::Best, Page::default(), &nobody).expect("listed");
        assert_eq!(found.len(), expected, "{condition}");
    }

    let mut csv = Vec::new();
    history.export(&trial.id, Format::Csv, &mut csv).expect("exported");
    let csv = String::from_utf8(csv).expect("text");
    assert_eq!(csv.lines().count(), 1 + 30 * 11 + 2);
    assert!(csv.contains(&format!("{},valid.loss,0,1,30,", trial.id)), "{csv}");
    let mut lines = Vec::new();
    history.export(&trial.id, Format::JsonLines, &mut lines).expect("exported");
    let parsed: Vec<serde_json::Value> = String::from_utf8(lines)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(parsed.len(), 30 * 11 + 2);

    let observed = history.observations(&host(), "m").expect("read");
    assert_eq!((observed[0].predicted_step_seconds, observed[0].measured_step_seconds), (0.02, 0.02));
    assert_eq!(observed[0].candidate, json!({"micro_batch": 4, "zero": "0"}));

    history.delete(&trial.id, &nobody).expect("deleted");
    let raw = Connection::open(&path).expect("opens");
    for table in [
        "trial",
        "document",
        "fact",
        "attempt",
        "checkpoint",
        "param",
        "series",
        "tail",
        "chunk",
        "summary",
        "patch",
        "environment",
        "note",
        "tag",
        "heard",
    ] {
        let left: i64 =
            raw.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("counted");
        assert_eq!(left, 0, "{table}");
    }
}

#[test]
fn a_running_trial_is_not_deleted() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.keep(&trial.id, &facts(vec![started(1)])).expect("kept");
    let error = history.delete(&trial.id, &|_| true).expect_err("refused");
    assert!(error.source.to_string().contains("r-1 is running"), "{}", error.source);
}

#[test]
fn rates_are_kept_by_host_and_model() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    let rank = RankRates {
        ranks: 1,
        device: dtrain_protocol::DeviceKind::Cpu,
        threads: 2,
        profile: Vec::new(),
        optimizer_seconds_per_parameter: 1e-9,
        all_reduce: vec![(1024, 1e-5)],
        spread: 0.02,
        baseline_bytes: 1 << 20,
    };
    let rates = |at: u64| Rates {
        host: host(),
        measured_at_ms: at,
        model_digest: "m".into(),
        by_ranks: vec![rank.clone()],
    };
    history.save_rates(&rates(1)).expect("kept");
    history.save_rates(&rates(2)).expect("kept");
    assert_eq!(history.rates(&host(), "m").expect("read"), Some(rates(2)));
    assert_eq!(history.rates(&host(), "other").expect("read"), None);
    assert_eq!(history.rates(&HostFacts { cores: 4, ..host() }, "m").expect("read"), None);
    assert_eq!(history.all_rates().expect("read").len(), 1);
}

#[test]
fn a_reader_cannot_write_and_sees_what_is_written_meanwhile() {
    let (_folder, path) = place();
    History::open_read_only(&path).expect_err("nothing there yet");
    let (mut history, trial) = with_trial(&path);
    let mut reader = History::open_read_only(&path).expect("opens");
    assert!(reader.is_read_only());
    reader.keep(&trial.id, &facts(vec![started(1)])).expect_err("refused");
    history.keep(&trial.id, &facts(vec![started(1)])).expect("kept");
    assert_eq!(reader.facts(&trial.id).expect("read"), [started(1)]);
}

/// Not a test of its own: what the two below start many times over.
#[test]
#[ignore = "started by the tests that kill it"]
fn child_writes_until_killed() {
    let Some(path) = std::env::var_os("LEDGER_CHILD_PATH").map(PathBuf::from) else { return };
    let limit: u64 = std::env::var("LEDGER_CHILD_STEPS").expect("set").parse().expect("a number");
    let name = std::env::var("LEDGER_CHILD_NAME").expect("set");
    let mut history = History::open(&path).expect("opens");
    let trial = match history.find(&format!("{name}-1")) {
        Ok(trial) => trial,
        Err(_) => history.create_trial(&new_trial(&name)).expect("created").id,
    };
    let acknowledged = path.with_file_name(format!("{name}.acknowledged"));
    let mut next = history.offset(&trial, ATTEMPT).expect("read");
    while next < limit {
        let batch = (next..next + 20).map(|n| step(n, n + 1)).collect();
        next += 20;
        let news = News { events: batch, offset: Some((ATTEMPT, next)), ..News::default() };
        history.keep(&trial, &news).expect("kept");
        std::fs::write(&acknowledged, next.to_string()).expect("told");
    }
}

fn child(path: &Path, name: &str, steps: u64) -> Child {
    Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "child_writes_until_killed", "--ignored", "--quiet"])
        .env("LEDGER_CHILD_PATH", path)
        .env("LEDGER_CHILD_NAME", name)
        .env("LEDGER_CHILD_STEPS", steps.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("started")
}

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed() {
    let (_folder, path) = place();
    drop(History::open(&path).expect("made"));
    let acknowledged = path.with_file_name("killed.acknowledged");
    for round in 0..5u64 {
        let before = std::fs::read_to_string(&acknowledged).unwrap_or_default();
        let mut writer = child(&path, "killed", u64::MAX);
        let begun = Instant::now();
        while std::fs::read_to_string(&acknowledged).unwrap_or_default() == before {
            assert!(begun.elapsed() < Duration::from_secs(20), "the writer writes");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(20 + round * 13));
        writer.kill().expect("killed");
        writer.wait().expect("gone");
        let told: u64 = std::fs::read_to_string(&acknowledged).expect("there").parse().unwrap_or(0);
        let history = History::open(&path).expect("opens after the kill");
        let trial = history.find("killed-1").expect("there");
        let kept = history.offset(&trial, ATTEMPT).expect("read");
        assert!(kept >= told, "{kept} kept of {told} acknowledged");
        let expected: Vec<_> = (1..=kept).map(|s| (s, 1.0 / s as f64)).collect();
        assert_eq!(losses(&history, &trial), expected, "whole batches, once each");
        let check: String = Connection::open(&path)
            .expect("opens")
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .expect("checked");
        assert_eq!(check, "ok");
    }
}

#[test]
fn eight_processes_write_at_once_into_a_new_file() {
    let (_folder, path) = place();
    let names: Vec<_> = (0..8).map(|n| format!("writer{n}")).collect();
    let writers: Vec<_> = names.iter().map(|name| child(&path, name, 200)).collect();
    for mut writer in writers {
        assert!(writer.wait().expect("ended").success(), "no writer fails");
    }
    let history = History::open(&path).expect("opens");
    for name in names {
        let trial = history.find(&format!("{name}-1")).expect("there");
        assert_eq!(losses(&history, &trial).len(), 200, "{name}");
    }
}

#[test]
fn ten_thousand_trials_are_listed_and_the_time_is_told() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let validated = stamped(30, Event::Validated { step: StepId(30), loss: 0.4, accuracy: 0.9 });
    let all = (0..30).map(|n| step(n, n + 1)).chain([validated]).collect();
    history.keep(&trial.id, &events(all)).expect("kept");
    // Copied inside the database: ten thousand durable commits would measure the disk.
    let raw = Connection::open(&path).expect("opens");
    raw.execute_batch(
        "CREATE TEMP TABLE n AS WITH RECURSIVE c(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM c WHERE i < 10000) SELECT i FROM c;
         CREATE TEMP TABLE one AS SELECT * FROM trial;
         BEGIN;
         INSERT INTO trial SELECT i, uid || i, recipe || '-' || i, recipe, search, state, verdict, objective, layout, batch,
             learning_rate, config_hash, host_digest, model_digest, predicted_step_seconds,
             predicted_tokens_per_second, predicted_memory_bytes, measured_step_seconds, measured_step_spread,
             measured_tokens_per_second, created_ms + i, started_ms, ended_ms, git_revision, git_dirty, patch_hash,
             environment_hash, program FROM one, n;
         CREATE TEMP TABLE lines AS SELECT * FROM summary;
         INSERT INTO summary SELECT i, key, rank, points, finite, sum, last, last_step, last_attempt, min + i, min_step,
             max, max_step FROM lines, n;
         COMMIT;",
    )
    .expect("copied");
    let timed = |what: &str, filter: &Filter, sort: &Sort, page: Page| {
        let begun = Instant::now();
        let found = history.trials(filter, sort, page, &nobody).expect("listed");
        println!("{what}: {} trials in {:.2} ms", found.len(), begun.elapsed().as_secs_f64() * 1e3);
        found
    };
    let any = Filter::default();
    let all = timed("all", &any, &Sort::Newest, Page::default());
    assert_eq!(all.len(), 10_000);
    assert!(all.is_sorted_by(|a, b| a.created_ms >= b.created_ms));
    let page = timed("newest 50", &any, &Sort::Newest, Page { skip: 100, limit: 50 });
    assert_eq!(page, all[100..150]);
    let best = timed("best 20", &any, &Sort::Best, Page { skip: 0, limit: 20 });
    assert_eq!(best[0].id, trial.id);
    let least = timed("least loss 20", &any, &Sort::Least("valid.loss".into()), Page { skip: 0, limit: 20 });
    assert_eq!(least, best);
}
