//! Trials are found, listed, shown and deleted.

use crate::support::*;
use dtrain_protocol::{
    AttemptId, Event, HostFacts, HostNetwork, PhaseTimes, RankRates, Rates, StampedEvent, StepFigures,
    StepId, StopReason,
};
use dtrain_runner::export::{self, OutputFormat, TrialSelection};
use dtrain_runner::ledger::{
    Filter, LookupError, NewTrial, Pagination, Parent, Sort, TrialActivity, ValueSource, host_digest,
};
use dtrain_runner::{AttemptEnd, Fact, History, Ledger, TrialUpdate};
use rusqlite::Connection;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

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
    let news = TrialUpdate {
        facts: vec![
            started(1),
            Fact::CheckpointCommitted { attempt: ATTEMPT, step: StepId(30), folder: folder.clone() },
            Fact::CheckpointRefused { step: StepId(30), folder, reason: "torn".into() },
        ],
        events: (0..30)
            .map(|n| step(n, n + 1))
            .chain([stamped(
                30,
                Event::Validated { step: StepId(30), loss: 0.4, accuracy: Some(0.9), seconds: None },
            )])
            .collect(),
        ..TrialUpdate::default()
    };
    history.record(&trial.id, &news).expect("kept");
    history.add_note(&trial.id, "looks fine").expect("noted");
    history.set_tag(&trial.id, "keep", "yes").expect("tagged");
    let ended = Fact::AttemptEnded { attempt: ATTEMPT, ended: AttemptEnd::Finished(StopReason::Complete) };
    history.record(&trial.id, &facts(vec![ended])).expect("kept");

    let shown = history.trial(&trial.id, &nobody).expect("read");
    assert_eq!(shown.row.best, Some(0.4));
    assert_eq!(shown.row.step, 30);
    assert_eq!(shown.row.step_seconds, Some(0.02));
    assert_eq!(shown.row.tokens_per_second, Some(1600.0));
    assert_eq!(shown.checkpoints[0].refused.as_deref(), Some("torn"));
    assert_eq!(shown.provenance, new_trial("r").provenance, "patch and environment come back");
    let source = |path: &str| shown.params.iter().find(|p| p.path == path).map(|p| p.source);
    assert_eq!(source("train.seed"), Some(ValueSource::Default));
    assert_eq!(source("train.learning_rate"), Some(ValueSource::Recipe));
    assert_eq!(source("plan.micro_batch"), Some(ValueSource::Planner));
    assert_eq!(source("cluster.hosts"), Some(ValueSource::Default), "a recipe says nothing that is empty");
    assert_eq!(shown.notes[0].text, "looks fine");
    assert_eq!(shown.tags["keep"], "yes");

    let tagged = Filter { tag: Some("keep".into()), ..Filter::default() };
    assert_eq!(
        history.trials(&tagged, &Sort::Newest, Pagination::default(), &nobody).expect("listed").len(),
        1
    );
    let where_ =
        |text: &str| Filter { conditions: vec![text.parse().expect("a condition")], ..Filter::default() };
    for (condition, expected) in [
        ("train.seed = 7", 1),
        ("train.seed>7", 0),
        ("valid.loss <= 0.4", 1),
        ("valid.loss<0.4", 0),
        ("plan.micro_batch>=4", 1),
        ("batch = 32", 1),
        ("best > 0.4", 0),
        ("tokens_per_second > 1599", 1),
        ("step >= 30", 1),
    ] {
        let found =
            history.trials(&where_(condition), &Sort::Best, Pagination::default(), &nobody).expect("listed");
        assert_eq!(found.len(), expected, "{condition}");
    }

    let parent = Parent {
        trial: trial.id.clone(),
        label: trial.label.clone(),
        step: StepId(20),
        folder: "c/20".into(),
        weights_only: true,
        changes: Vec::new(),
        inputs: None,
    };
    let child = history.create_trial(&NewTrial { parent: Some(parent), ..new_trial("c") }).expect("created");
    let is_independent = |history: &History| {
        let children = history.children(&trial.id).expect("read");
        assert_eq!((children.len(), &children[0].trial, &children[0].label), (1, &child.id, &child.label));
        children[0].is_independent
    };
    assert!(!is_independent(&history), "it would begin with a checkpoint of its parent");
    let adopted = Fact::CheckpointCommitted { attempt: AttemptId(0), step: StepId(0), folder: "own".into() };
    history.record(&child.id, &facts(vec![adopted])).expect("kept");
    assert!(is_independent(&history) && history.children(&child.id).expect("read").is_empty());
    history.delete(&child.id, &nobody).expect("deleted");

    let names = history.names().expect("read");
    assert!(
        Filter::parse("plan.micro_batch>3 and save.stall_seconds<1", &names).is_err(),
        "nothing was saved"
    );
    assert!(Filter::parse("plan.micro_batch>3 and TOK/S>1 and status=done", &names).is_ok());
    let second = history.create_trial(&new_trial("r")).expect("created");
    for (order, first) in [("valid.loss", &trial.id), ("train.seed", &trial.id), ("newest", &second.id)] {
        let sort = Sort::parse(order, &names).expect("an order");
        let found =
            history.trials(&Filter::default(), &sort, Pagination::default(), &nobody).expect("listed");
        assert_eq!((found.len(), &found[0].id), (2, first), "{order}");
    }
    history.delete(&second.id, &nobody).expect("deleted");

    let shown = history.trial(&trial.id, &nobody).expect("read");
    let printed = |format: OutputFormat| {
        let (trials, mut bytes) = (vec![shown.row.clone()], Vec::new());
        let attempts = format.attempts();
        let request = TrialSelection { history: &history, trials, keys: None, attempts, force: false };
        export::print(&request, format, &mut bytes, &mut |_| {}).expect("exported");
        String::from_utf8(bytes).expect("text")
    };
    let csv = printed(OutputFormat::Csv);
    assert_eq!(csv.lines().count(), 1 + 30 * 16 + 2);
    assert!(csv.contains(&format!("{},valid.loss,0,1,30,", trial.id)), "{csv}");
    let lines = printed(OutputFormat::JsonLines);
    let parsed: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((parsed.len(), &parsed[0]["label"]), (1 + 30 * 16 + 2, &json!(trial.label)));

    let observed = history.observations(&host_digest(&host()), "m").expect("read");
    assert_eq!((observed[0].predicted_step_seconds, observed[0].measured_step_seconds), (0.02, 0.02));
    assert_eq!(observed[0].candidate, json!({"micro_batch": 4, "zero": "0"}));

    history.delete(&trial.id, &nobody).expect("deleted");
    let raw = Connection::open(&path).expect("opens");
    for table in [
        "trial",
        "document",
        "record",
        "attempt",
        "checkpoint",
        "param",
        "series",
        "chunk",
        "summary",
        "patch",
        "environment",
        "note",
        "tag",
        "last_event",
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
    history.record(&trial.id, &facts(vec![started(1)])).expect("kept");
    let error = history.delete(&trial.id, &|_| TrialActivity::Running).expect_err("refused");
    assert!(error.source.to_string().contains("r-1 is running"), "{}", error.source);
}

#[test]
fn rates_are_kept_by_host_and_model() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    let rank = RankRates { threads: 2, all_reduce: vec![(1024, 1e-5)], ..RankRates::example() };
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
    let over = |network: &str| {
        let links = HostNetwork {
            hosts: vec!["a".into(), "b".into()],
            network: Some(network.parse().expect("a network")),
        };
        HostFacts { hosts: std::num::NonZeroU32::MIN.saturating_add(1), links: Some(links), ..host() }
    };
    let [fast, slow] = ["10.0.0.0/16", "192.168.0.0/16"].map(over);
    history.save_rates(&Rates { host: fast.clone(), ..rates(3) }).expect("kept");
    assert!(history.rates(&fast, "m").expect("read").is_some());
    assert_eq!(history.rates(&slow, "m").expect("read"), None, "another network has its own");
    assert_eq!(history.rates(&host(), "m").expect("read"), Some(rates(2)));
    assert_eq!(history.all_rates().expect("read").len(), 2);
}

#[test]
fn a_typical_step_is_the_sum_of_its_phases_whatever_some_steps_take() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    // One step in four is slow, because backward waits.
    let of = |number: u64| {
        let seconds = 0.001 * (10 + number % 3) as f64;
        let (backward, data) = (if number.is_multiple_of(4) { 5.0 } else { 2.0 * seconds }, 0.0005);
        let times = PhaseTimes {
            step: seconds + backward + data,
            data,
            forward: seconds,
            backward,
            ..PhaseTimes::default()
        };
        let stamped = step(number, number);
        let Event::Step(figures) = stamped.event else { panic!("a step") };
        StampedEvent { event: Event::Step(StepFigures { times, ..figures }), ..stamped }
    };
    history.record(&trial.id, &facts(vec![started(1)])).expect("kept");
    history.record(&trial.id, &events((1..=100).map(of).collect())).expect("kept");
    let told = |history: &History| {
        let typical = history.typical_steps(&trial.id).expect("read");
        assert_eq!(typical.len(), 1);
        let times = typical[0].times;
        assert!((times.parts() - times.step).abs() < 1e-9, "{times:?}");
        assert!(times.step < 0.04 && times.backward < 0.03, "{times:?}");
        times.step
    };
    let running = told(&history);
    history.record(&trial.id, &facts(vec![ended(1)])).expect("kept");
    assert!((told(&history) - running).abs() < 1e-12);
    let listed = history.trial(&trial.id, &nobody).expect("read").row.step_seconds.expect("measured");
    assert!((listed - running).abs() < 1e-12, "one figure everywhere: {listed} and {running}");
}

#[test]
fn a_reader_cannot_write_and_sees_what_is_written_meanwhile() {
    let (_folder, path) = place();
    History::open_read_only(&path).expect_err("nothing there yet");
    let (mut history, trial) = with_trial(&path);
    let mut reader = History::open_read_only(&path).expect("opens");
    assert!(reader.is_read_only());
    reader.record(&trial.id, &facts(vec![started(1)])).expect_err("refused");
    history.record(&trial.id, &facts(vec![started(1)])).expect("kept");
    assert_eq!(reader.facts(&trial.id).expect("read"), [started(1)]);
}

#[test]
fn ten_thousand_trials_are_listed_and_the_time_is_told() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let validated =
        stamped(30, Event::Validated { step: StepId(30), loss: 0.4, accuracy: Some(0.9), seconds: None });
    let all = (0..30).map(|n| step(n, n + 1)).chain([validated]).collect();
    history.record(&trial.id, &events(all)).expect("kept");
    history.record(&trial.id, &facts(vec![started(1), ended(1)])).expect("kept");
    copy_the_trial(&path, 10_000);
    let timed = |what: &str, filter: &Filter, sort: &Sort, page: Pagination| {
        let begun = Instant::now();
        let found = history.trials(filter, sort, page, &nobody).expect("listed");
        println!("{what}: {} trials in {:.2} ms", found.len(), begun.elapsed().as_secs_f64() * 1e3);
        found
    };
    let any = Filter::default();
    let all = timed("all", &any, &Sort::Newest, Pagination::default());
    assert_eq!(all.len(), 10_000);
    assert!(all.is_sorted_by(|a, b| a.created_ms >= b.created_ms));
    assert!(all.iter().all(|row| row.loss.is_some()), "each has its figures");
    let page = timed("newest 50", &any, &Sort::Newest, Pagination { skip: 100, limit: 50 });
    assert_eq!(page, all[100..150]);
    let best = timed("best 20", &any, &Sort::Best, Pagination { skip: 0, limit: 20 });
    assert_eq!(best[0].id, trial.id);
    let least =
        timed("least loss 20", &any, &Sort::Least("valid.loss".into()), Pagination { skip: 0, limit: 20 });
    assert_eq!(least, best);
}

#[test]
fn a_trial_whose_plan_is_not_json_is_shown_and_deleted() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    let trial = history.create_trial(&new_trial("a")).expect("created").id;
    let spoilt = Connection::open(&path)
        .and_then(|database| database.execute("UPDATE document SET json = '{' WHERE kind = 'plan'", []));
    assert_eq!(spoilt.expect("written"), 1);
    assert!(history.trial(&trial, &nobody).expect("shown").plan.is_null());
    history.delete(&trial, &nobody).expect("deleted");
}
