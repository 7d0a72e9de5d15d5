//! A history with a trial in it, and batches to store.

use dtrain_protocol::{
    AttemptId, Event, HostFacts, Layout, PhaseTimes, Rank, StampedEvent, StepFigures, StepId, StopReason,
    TrialId,
};
use dtrain_recipes::Recipe;
use dtrain_runner::ledger::{
    ExpectedPerformance, NewTrial, TrialActivity, TrialName, ValueSource, host_digest,
};
use dtrain_runner::provenance::{GitState, Provenance};
use dtrain_runner::{AttemptEnd, Fact, History, TrialUpdate};
use rusqlite::Connection;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) const ATTEMPT: AttemptId = AttemptId(1);

pub(crate) fn recipe(name: &str) -> Recipe {
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

pub(crate) fn host() -> HostFacts {
    HostFacts::example()
}

pub(crate) fn new_trial(name: &str) -> NewTrial {
    NewTrial {
        recipe: recipe(name),
        plan: json!({"version": 1}),
        candidate: json!({"micro_batch": 4, "zero": "0"}),
        layout: Layout::SINGLE.to_string(),
        batch: 32,
        learning_rate: 1e-3,
        predicted: ExpectedPerformance {
            step_seconds: Some(0.02),
            tokens_per_second: Some(1600.0),
            memory_bytes: Some(1 << 20),
        },
        host_digest: host_digest(&host()),
        model_digest: "m".into(),
        study: None,
        parent: None,
        sources: BTreeMap::from([("train.seed".to_owned(), ValueSource::Default)]),
        provenance: Provenance {
            git: Some(GitState {
                revision: "a1b2c3d4".into(),
                patch: Some("+x\n".into()),
                ..GitState::default()
            }),
            program: "0.1.0".into(),
            environment: BTreeMap::from([("os".to_owned(), "linux".to_owned())]),
            command: vec!["dtrain".into(), "run".into()],
        },
    }
}

pub(crate) fn step(sequence: u64, step: u64) -> StampedEvent {
    let figures = StepFigures {
        step: StepId(step),
        loss: 1.0 / step as f64,
        gradient_norm: Some(1.0),
        learning_rate: 1e-3,
        elapsed: None,
        noise: None,
        tokens: 32,
        times: PhaseTimes { step: 0.02, ..PhaseTimes::default() },
        memory_bytes: 1000 + step,
        sent_bytes: 10 * step,
        held: dtrain_protocol::ResidentBytes::default(),
    };
    stamped(sequence, Event::Step(figures))
}

pub(crate) fn stamped(sequence: u64, event: Event) -> StampedEvent {
    StampedEvent { attempt: ATTEMPT, rank: Rank(0), sequence, at_ms: 1_700_000_000_000 + sequence, event }
}

pub(crate) fn events(events: Vec<StampedEvent>) -> TrialUpdate {
    TrialUpdate { events, ..TrialUpdate::default() }
}

pub(crate) fn facts(facts: Vec<Fact>) -> TrialUpdate {
    TrialUpdate { facts, ..TrialUpdate::default() }
}

pub(crate) fn started(attempt: u64) -> Fact {
    Fact::AttemptStarted { attempt: AttemptId(attempt), from: None }
}

pub(crate) fn ended(attempt: u64) -> Fact {
    Fact::AttemptEnded { attempt: AttemptId(attempt), ended: AttemptEnd::Finished(StopReason::Complete) }
}

pub(crate) fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("history.db");
    (folder, path)
}

pub(crate) fn with_trial(path: &Path) -> (History, TrialName) {
    let mut history = History::open(path).expect("opens");
    let created = history.create_trial(&new_trial("r")).expect("created");
    (history, created)
}

pub(crate) fn losses(history: &History, trial: &TrialId) -> Vec<(u64, f64)> {
    let samples = history.series(trial, "loss", Rank(0)).expect("read");
    samples.into_iter().map(|sample| (sample.step, sample.value)).collect()
}

pub(crate) fn nobody(_: &TrialId) -> TrialActivity {
    TrialActivity::None
}

/// Copies the only trial of a history until there are `trials`, inside the database: as many durable commits
/// would measure the disk.
pub(crate) fn copy_the_trial(path: &Path, trials: u32) {
    let raw = Connection::open(path).expect("opens");
    raw.execute_batch(&format!(
        "CREATE TEMP TABLE n AS WITH RECURSIVE c(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM c WHERE i < {trials}) SELECT i FROM c;
         CREATE TEMP TABLE one AS SELECT * FROM trial;
         BEGIN;
         INSERT INTO trial SELECT i, uid || i, recipe || '-' || i, recipe, study, state, verdict, objective, layout, batch,
             learning_rate, config_hash, host_digest, model_digest, predicted_step_seconds,
             predicted_tokens_per_second, predicted_memory_bytes, measured_step_seconds, measured_step_spread,
             measured_tokens_per_second, created_ms + i, started_ms, ended_ms, git_revision, git_dirty, patch_hash,
             environment_hash, program, goal FROM one, n;
         CREATE TEMP TABLE lines AS SELECT * FROM summary;
         INSERT INTO summary SELECT i, key, rank, points, finite, sum, last, last_step, last_attempt, min + i, min_step,
             max, max_step FROM lines, n;
         COMMIT;"
    ))
    .expect("copied");
}

/// Gives the copies of the only trial its sealed points.
#[allow(dead_code, reason = "the bench asks for it")]
pub(crate) fn copy_its_points(path: &Path, trials: u32) {
    let raw = Connection::open(path).expect("opens");
    raw.execute_batch(&format!(
        "CREATE TEMP TABLE n AS WITH RECURSIVE c(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM c WHERE i < {trials}) SELECT i FROM c;
         CREATE TEMP TABLE own AS SELECT * FROM series;
         CREATE TEMP TABLE sealed AS SELECT * FROM chunk;
         BEGIN;
         INSERT INTO series SELECT own.id + i * 100, i, key, rank, attempt, last_step FROM n, own;
         INSERT INTO chunk SELECT series + i * 100, number, data FROM n, sealed;
         COMMIT;"
    ))
    .expect("copied");
}
