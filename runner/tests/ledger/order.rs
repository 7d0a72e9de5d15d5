//! References: the trial recorded last, an id by its beginning, and folders of a copied state folder.

use crate::support::*;
use dtrain_protocol::StepId;
use dtrain_runner::ledger::{Filter, LookupError, Pagination, Sort};
use dtrain_runner::{Fact, History, Ledger};
use rusqlite::Connection;
use std::fs;

#[test]
fn the_last_trial_is_the_one_that_was_recorded_last_whatever_the_clock_said() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    let made: Vec<_> =
        ["a", "b", "c"].map(|name| history.create_trial(&new_trial(name)).expect("created").id).into();
    // One of them has open points, so that the list is merged from two queries.
    history.record(&made[1], &events(vec![step(0, 1)])).expect("kept");
    let raw = Connection::open(&path).expect("opens");
    raw.execute("UPDATE trial SET created_ms = 9000000000000 - id", []).expect("by a clock that went back");
    let listed = |history: &History| {
        let rows = history
            .trials(&Filter::default(), &Sort::Newest, Pagination::default(), &nobody)
            .expect("listed");
        rows.into_iter().map(|row| row.label).collect::<Vec<_>>()
    };
    assert_eq!(history.find("last").expect("the newest"), made[2]);
    assert_eq!(listed(&history), ["c-1", "b-1", "a-1"]);
    assert_eq!(history.latest_ms().expect("read"), Some(("c-1".to_owned(), 8_999_999_999_997)));

    let import = "INSERT INTO imported_trial(trial, history_id, host, name, points) SELECT id, 'm', 'h', label, 0 FROM trial WHERE id = 3";
    raw.execute(import, []).expect("as if it came from elsewhere");
    assert_eq!(history.find("last").expect("the newest of this machine"), made[1]);
    // Trials of other machines are ordered by the clock of their machine.
    let at = |row: i64, ms: i64| {
        raw.execute("UPDATE trial SET created_ms = ?2 WHERE id = ?1", [row, ms]).expect("set")
    };
    at(3, 8_000_000_000_000);
    assert_eq!(listed(&history), ["b-1", "a-1", "c-1"]);
    at(3, 9_500_000_000_000);
    assert_eq!(listed(&history), ["c-1", "b-1", "a-1"]);
}

#[test]
fn the_beginning_of_an_id_needs_eight_characters_and_labels_come_first() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    for short in ["0", "01", &trial.id.0[..7], &trial.id.0[..7].to_lowercase()] {
        let error = history.find(short).expect_err("it says too little");
        assert!(matches!(error, LookupError::Short { .. }), "{short}: {error}");
        assert!(error.to_string().contains("at least 8 characters"), "{error}");
    }
    assert_eq!(history.find(&trial.id.0[..8]).expect("enough"), trial.id);
    let labelled = history.create_trial(&new_trial(&trial.id.0[..8])).expect("created");
    assert_eq!(history.find(&trial.id.0[..8]).expect("a label begins so"), labelled.id);
    assert_eq!(history.find(&trial.id.0).expect("a whole id"), trial.id);
}

#[test]
fn folders_of_a_copied_state_folder_are_those_of_the_copy() {
    let root = tempfile::tempdir().expect("a folder");
    let (old, new) = (root.path().join("old"), root.path().join("new"));
    let (mut history, trial) = with_trial(&old.join("history.db"));
    let name = "step-000000030.a1";
    let below =
        |state: &std::path::Path| state.join("trials").join(&trial.id.0).join("checkpoints").join(name);
    fs::create_dir_all(below(&old)).expect("a folder");
    let durable = Fact::CheckpointCommitted { attempt: ATTEMPT, step: StepId(30), folder: below(&old) };
    history.record(&trial.id, &facts(vec![started(1), durable])).expect("kept");
    drop(history);
    fs::create_dir_all(below(&new)).expect("a folder");
    fs::copy(old.join("history.db"), new.join("history.db")).expect("copied");

    let mut copy = History::open(&new.join("history.db")).expect("opens");
    let folders = |history: &History| -> Vec<_> {
        let of_fact = history.facts(&trial.id).expect("read").into_iter().filter_map(|fact| match fact {
            Fact::CheckpointCommitted { folder, .. } => Some(folder),
            _ => None,
        });
        let shown = history.trial(&trial.id, &nobody).expect("read").checkpoints;
        let listed = history.checkpoints(&trial.id).expect("read");
        of_fact.chain(shown.into_iter().chain(listed).map(|saved| saved.folder)).collect()
    };
    assert_eq!(folders(&copy), [below(&new), below(&new), below(&new)]);
    assert_eq!(folders(&History::open(&old.join("history.db")).expect("opens"))[0], below(&old));
    // A record with the new path of a folder applies to the old one.
    let refused = Fact::CheckpointRefused { step: StepId(30), folder: below(&new), reason: "torn".into() };
    copy.record(&trial.id, &facts(vec![refused.clone()])).expect("kept");
    assert_eq!(copy.checkpoints(&trial.id).expect("read")[0].refused.as_deref(), Some("torn"));
    let known = copy.facts(&trial.id).expect("read").len();
    copy.record(&trial.id, &facts(vec![refused])).expect("kept");
    assert_eq!(copy.facts(&trial.id).expect("read").len(), known, "it is known");
}
