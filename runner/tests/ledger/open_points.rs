//! Unsealed points: the cost of a commit, and that readers cannot tell them from sealed ones.

use crate::support::*;
use dtrain_protocol::{AttemptId, Event, Rank, StampedEvent, StopReason};
use dtrain_runner::ledger::{Condition, Filter, Pagination, Relation, Sort, TrialRow};
use dtrain_runner::{Fact, History, Ledger, TrialUpdate, Verdict};
use rusqlite::Connection;
use std::path::Path;

fn count(path: &Path, query: &str) -> u64 {
    let raw = Connection::open(path).expect("opens");
    raw.query_row(query, [], |row| row.get::<_, i64>(0)).expect("counted").cast_unsigned()
}

/// Returns the first `steps` steps of an attempt, whose losses go down to `least`.
fn falling(least: f64, steps: u64) -> TrialUpdate {
    let of = |n: u64| {
        let mut event = step(n, n + 1);
        if let Event::Step(figures) = &mut event.event {
            figures.loss = least + 1.0 / (n + 1) as f64;
            figures.times.step = 0.01 * least;
        }
        event
    };
    events((0..steps).map(of).collect())
}

#[test]
fn a_commit_of_one_step_writes_a_page_and_a_bit() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.record(&trial.id, &facts(vec![started(1)])).expect("kept");
    let log = path.with_extension("db-wal");
    let size = || std::fs::metadata(&log).expect("there").len();
    let before = size();
    for n in 0..300 {
        let news = TrialUpdate {
            events: vec![step(n, n + 1)],
            offset: Some((ATTEMPT, n)),
            ..TrialUpdate::default()
        };
        history.record(&trial.id, &news).expect("kept");
    }
    let pages = (size() - before) as f64 / 4120.0 / 300.0;
    println!("{pages:.2} pages of log a commit");
    assert!(pages < 2.0, "{pages:.2} pages of log a commit");
}

#[test]
fn summaries_and_lists_are_the_same_whether_points_are_open_or_sealed() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("made");
    let mut trials = Vec::new();
    for (n, least) in [0.7, 0.2, 0.9, 0.4, 0.6, 0.3].into_iter().enumerate() {
        let trial = history.create_trial(&new_trial(&format!("t{n}"))).expect("created").id;
        history.record(&trial, &facts(vec![started(1)])).expect("kept");
        history.record(&trial, &falling(least, 40 + 7 * n as u64)).expect("kept");
        // Every second one is sealed, and then continues.
        if n % 2 == 0 {
            history.record(&trial, &facts(vec![ended(1), started(2)])).expect("kept");
            let again = |event: StampedEvent| StampedEvent { attempt: AttemptId(2), ..event };
            let more = falling(least / 2.0, 12).events.into_iter().map(again).collect();
            history.record(&trial, &events(more)).expect("kept");
        }
        trials.push(trial);
    }
    let least = |key: &str, value| {
        let condition = Condition { key: key.into(), relation: Relation::Less, value };
        Filter { conditions: vec![condition], ..Filter::default() }
    };
    let look = |history: &History| {
        let list = |filter: &Filter, sort: &Sort| -> Vec<TrialRow> {
            let page = Pagination { skip: 1, limit: 4 };
            let rows = history.trials(filter, sort, page, &nobody).expect("listed");
            // Its speed is computed when an attempt ends.
            rows.into_iter()
                .map(|row| TrialRow { tokens_per_second: None, step_seconds: None, ..row })
                .collect()
        };
        let sorts = [
            Sort::Newest,
            Sort::Best,
            Sort::Least("loss".into()),
            Sort::Least("step".into()),
            Sort::Least("batch".into()),
        ];
        let all: Vec<_> = sorts.iter().map(|sort| list(&Filter::default(), sort)).collect();
        let some: Vec<_> = sorts.iter().map(|sort| list(&least("loss", 0.65), sort)).collect();
        let figures: Vec<_> = trials.iter().map(|trial| history.summaries(trial).expect("read")).collect();
        let points: Vec<_> =
            trials.iter().map(|trial| history.series(trial, "loss", Rank(0)).expect("read")).collect();
        (all, some, figures, points)
    };
    let open = look(&history);
    assert_eq!(look(&History::open_read_only(&path).expect("opens")), open, "readers see the same");
    assert_eq!(open.2[1].iter().find(|summary| summary.key == "loss").map(|loss| loss.points), Some(47));
    assert_eq!(count(&path, "SELECT count(*) FROM open_points"), 6);
    for (n, trial) in trials.iter().enumerate() {
        let attempt = if n % 2 == 0 { 2 } else { 1 };
        history.record(trial, &facts(vec![ended(attempt)])).expect("kept");
    }
    assert_eq!(count(&path, "SELECT count(*) FROM open_points"), 0);
    assert_eq!(look(&history), open);
}

#[test]
fn a_log_that_is_full_is_sealed_by_series_and_the_figures_stay() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    for batch in 0..200 {
        let steps = (batch * 20..batch * 20 + 20).map(|n| step(n, n + 1)).collect();
        let news =
            TrialUpdate { events: steps, offset: Some((ATTEMPT, batch + 1)), ..TrialUpdate::default() };
        history.record(&trial.id, &news).expect("kept");
        assert_eq!(history.offset(&trial.id, ATTEMPT).expect("read"), batch + 1);
    }
    let expected: Vec<_> = (1..=4000).map(|step| (step, 1.0 / step as f64)).collect();
    assert_eq!(losses(&history, &trial.id), expected);
    let summaries = history.summaries(&trial.id).expect("read");
    let loss = summaries.iter().find(|summary| summary.key == "loss").expect("there");
    assert_eq!((loss.points, loss.last_step, loss.min_step, loss.max), (4000, 4000, Some(4000), Some(1.0)));
    let sum = expected.iter().map(|(_, loss)| loss).sum::<f64>();
    assert_eq!(loss.mean, Some(sum / 4000.0), "added in the same order");
    assert!(count(&path, "SELECT count(*) FROM chunk") > 20, "it was sealed");
    assert!(count(&path, "SELECT max(length(data)) FROM open_points") <= 4 << 20);
    let again =
        TrialUpdate { events: (3000..4000).map(|n| step(n, n + 1)).collect(), ..TrialUpdate::default() };
    history.record(&trial.id, &again).expect("kept");
    assert_eq!(losses(&history, &trial.id).len(), 4000, "sealed or open, an event counts once");
}

#[test]
fn a_trial_that_is_over_has_no_open_points_however_late_they_come() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let over = Fact::TrialEnded { verdict: Verdict::Completed(StopReason::Complete) };
    history.record(&trial.id, &facts(vec![started(1), ended(1), over])).expect("kept");
    for n in 0..3 {
        history.record(&trial.id, &events(vec![step(n, n + 1)])).expect("kept");
    }
    assert_eq!(count(&path, "SELECT count(*) FROM open_points"), 0);
    assert_eq!(losses(&history, &trial.id), [(1, 1.0), (2, 0.5), (3, 1.0 / 3.0)]);
    history.record(&trial.id, &events(vec![step(2, 3)])).expect("kept");
    assert_eq!(losses(&history, &trial.id).len(), 3, "an event counts once");
}

#[test]
fn facts_that_another_process_keeps_are_known_too() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.record(&trial.id, &facts(vec![started(1)])).expect("kept");
    let mut other = History::open(&path).expect("opens");
    other.record(&trial.id, &facts(vec![ended(1)])).expect("kept");
    history.record(&trial.id, &facts(vec![started(1), ended(1), started(2)])).expect("kept");
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1), ended(1), started(2)]);
}

#[test]
fn an_older_file_with_points_as_rows_is_read_as_before() {
    let (_folder, path) = place();
    let sample =
        |n: u64| (n + 1, 1_700_000_000_000 + n, if n == 590 { f64::NAN } else { 0.5 / (n + 1) as f64 });
    let raw = Connection::open(&path).expect("made");
    raw.execute_batch(concat!(
        "PRAGMA application_id = 0x4454524E;",
        include_str!("../../src/ledger/sql/v1.sql"),
        include_str!("../../src/ledger/sql/v1_1.sql"),
        include_str!("../../src/ledger/sql/v1_2.sql"),
        "PRAGMA user_version = 102;
         INSERT INTO key(id, name) VALUES (1, 'loss');
         INSERT INTO trial(id, uid, label, recipe, state, objective, layout, batch, learning_rate, config_hash, host_digest,
             model_digest, created_ms, git_dirty, program)
         VALUES (1, '01J9ZQ6W3M0000000000000000', 'old-1', 'old', 'open', 'valid.loss', 'one rank', 8, 0.1, 'c', 'h', 'm', 5, 0, '0.1');
         INSERT INTO series(id, trial, key, rank, attempt, last_step) VALUES (1, 1, 1, 0, 1, 600);
         INSERT INTO summary VALUES (1, 1, 0, 600, 599, 7.0, 0.5, 600, 1, 0.1, 600, 0.5, 1);
         INSERT INTO heard VALUES (1, 1, 0, 599);
         INSERT INTO spool VALUES (1, 1, 6000);"
    ))
    .expect("made");
    // Points as version 1.2 stored them: 512 sealed, the others as rows, NULL for NaN.
    let sealed: Vec<_> = (0..512)
        .map(|n| {
            let (step, at_ms, value) = sample(n);
            dtrain_protocol::series_codec::MetricSample { step, at_ms, value }
        })
        .collect();
    let bytes = dtrain_protocol::series_codec::encode(&sealed);
    raw.execute("INSERT INTO chunk VALUES (1, 0, ?1)", [bytes]).expect("made");
    for n in 512..600 {
        let (step, at_ms, value) = sample(n);
        let value = (!value.is_nan()).then_some(value);
        raw.execute(
            "INSERT INTO tail VALUES (1, ?1, ?2, ?3)",
            (step.cast_signed(), at_ms.cast_signed(), value),
        )
        .expect("made");
    }
    drop(raw);
    let mut history = History::open(&path).expect("migrated");
    let trial = history.find("old-1").expect("there");
    let read = |history: &History| -> Vec<(u64, u64, u64)> {
        let series = history.series(&trial, "loss", Rank(0)).expect("read");
        series.iter().map(|s| (s.step, s.at_ms, s.value.to_bits())).collect()
    };
    let expected: Vec<_> = (0..600)
        .map(sample)
        .map(|(step, at_ms, value)| {
            (step, at_ms, if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() })
        })
        .collect();
    assert_eq!(read(&history), expected);
    assert_eq!(count(&path, "SELECT count(*) FROM sqlite_schema WHERE name = 'tail'"), 0);
    assert_eq!(history.summaries(&trial).expect("read")[0].points, 600);
    // It continues: events before the stored ones do not count again.
    history.record(&trial, &events((590..610).map(|n| step(n, n + 1)).collect())).expect("kept");
    assert_eq!(read(&history).len(), 610);
    assert_eq!(history.offset(&trial, ATTEMPT).expect("read"), 6000);
    history.record(&trial, &facts(vec![started(1), ended(1)])).expect("kept");
    assert_eq!(read(&history).len(), 610);
}
