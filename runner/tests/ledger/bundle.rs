//! Merging the histories of several machines.

use crate::support::*;
use dtrain_protocol::{AttemptId, Rank, StopReason, TrialId};
use dtrain_runner::ledger::{Filter, MergeReport, Pagination, Sort, StudyTrialRow, TrialRow, TrialStatus};
use dtrain_runner::{AttemptEnd, Fact, History, Ledger, MetricPoint, TrialUpdate, Verdict};
use serde_json::json;
use std::path::PathBuf;

/// A machine: its history, and the path of it.
pub(crate) struct Machine {
    pub(crate) history: History,
    pub(crate) path: PathBuf,
    host: &'static str,
    _folder: tempfile::TempDir,
}

impl Machine {
    pub(crate) fn new(host: &'static str) -> Self {
        let (folder, path) = place();
        Self { history: History::open(&path).expect("made"), path, host, _folder: folder }
    }

    /// Returns a machine with this file as its history.
    pub(crate) fn with(host: &'static str, history: &[u8]) -> Self {
        let (folder, path) = place();
        std::fs::write(&path, history).expect("room on disk");
        Self { history: History::open(&path).expect("opens"), path, host, _folder: folder }
    }

    /// Trains: some steps, an odd point, and an end.
    pub(crate) fn train(&mut self, recipe: &str, steps: u64) -> TrialId {
        let id = self.history.create_trial(&new_trial(recipe)).expect("created").id;
        self.history.record(&id, &facts(vec![started(1)])).expect("kept");
        self.history.record(&id, &events((0..steps).map(|n| step(n, n + 1)).collect())).expect("kept");
        let odd = f64::from_bits(0x7ff8_0000_dead_beef);
        let point = |step, value| MetricPoint {
            attempt: ATTEMPT,
            rank: Rank(0),
            key: "host.load".into(),
            step,
            at_ms: step,
            value,
        };
        let points = vec![point(1, odd), point(2, f64::NEG_INFINITY), point(3, -0.0)];
        self.history.record(&id, &TrialUpdate { points, ..TrialUpdate::default() }).expect("kept");
        id
    }

    pub(crate) fn end(&mut self, trial: &TrialId) {
        let ended =
            Fact::AttemptEnded { attempt: AttemptId(1), ended: AttemptEnd::Finished(StopReason::Complete) };
        let over = Fact::TrialEnded { verdict: Verdict::Completed(StopReason::Complete) };
        self.history.record(trial, &facts(vec![ended, over])).expect("kept");
    }

    pub(crate) fn bundle(&mut self) -> Vec<u8> {
        let all: Vec<_> = self.rows().into_iter().map(|row| row.id).collect();
        self.history.write_bundle(&all, self.host, Vec::new(), &mut |_| {}).expect("written")
    }

    pub(crate) fn merge(&mut self, bundle: &[u8]) -> MergeReport {
        History::check_bundle(bundle).expect("whole");
        self.history.merge_bundles([Ok(bundle)], &mut |_| {}).expect("merged").remove(0)
    }

    pub(crate) fn rows(&self) -> Vec<TrialRow> {
        self.history.trials(&Filter::default(), &Sort::Best, Pagination::default(), &nobody).expect("listed")
    }

    /// Returns everything that can be read of every trial.
    pub(crate) fn all(&self) -> Vec<String> {
        let page = |row: TrialRow| {
            let trial = self.history.trial(&row.id, &nobody).expect("read");
            let series = self.history.series_names(&row.id).expect("read");
            let points: Vec<_> = series
                .iter()
                .flat_map(|(key, rank)| self.history.series(&row.id, key, *rank).expect("read"))
                .map(|s| (s.step, s.at_ms, s.value.to_bits()))
                .collect();
            format!("{} {series:?} {points:?}", serde_json::to_string(&trial).expect("JSON"))
        };
        self.rows().into_iter().map(page).collect()
    }
}

#[test]
fn bundles_of_two_machines_give_the_same_history_in_either_order_and_however_often() {
    let (mut a, mut b) = (Machine::new("a"), Machine::new("b"));
    let first = a.train("r", 30);
    a.end(&first);
    a.train("r", 5);
    a.history.add_note(&first, "good").expect("kept");
    let theirs = b.train("r", 700);
    b.history.set_tag(&theirs, "keep", "yes").expect("kept");
    b.end(&theirs);
    let (of_a, of_b) = (a.bundle(), b.bundle());
    assert_eq!(of_a, a.bundle(), "the same trials are the same bytes");

    let (mut one, mut other) = (Machine::new("c"), Machine::new("d"));
    let merged = one.merge(&of_a);
    assert_eq!((merged.new, merged.unchanged), (2, 0));
    one.merge(&of_b);
    other.merge(&of_b);
    other.merge(&of_a);
    assert_eq!(one.all(), other.all());
    let again = one.merge(&of_a);
    assert_eq!(again, MergeReport { unchanged: 2, ..MergeReport::default() });
    assert_eq!(one.all(), other.all(), "a merge may be repeated");

    let mut labels: Vec<_> = one.rows().into_iter().map(|row| row.label).collect();
    labels.sort();
    let end = theirs.0[20..].to_lowercase();
    assert_eq!(labels, ["r-1".to_owned(), format!("r-1-{end}"), "r-2".to_owned()], "the older has the name");
    // The trained values are there to the bit.
    let bits = |machine: &Machine| -> Vec<u64> {
        let load = machine.history.series(&theirs, "host.load", Rank(0)).expect("read");
        load.iter().map(|sample| sample.value.to_bits()).collect()
    };
    assert_eq!(bits(&one), bits(&b));
    assert_eq!(bits(&one)[0], 0x7ff8_0000_dead_beef);
    let line = |machine: &Machine| {
        let rows = machine.rows();
        let row = rows.into_iter().find(|row| row.id == theirs).expect("there");
        TrialRow { imported_from: None, label: String::new(), ..row }
    };
    assert_eq!(line(&one), line(&b), "its line is that of the machine that trained it");
    assert_eq!(one.history.observations(&new_trial("r").host_digest, "m").expect("read").len(), 2);
    // Passed on by a third machine, they are unchanged.
    let mut third = Machine::new("e");
    third.merge(&one.bundle());
    assert_eq!(third.all(), one.all());
}

#[test]
fn a_trial_that_went_on_is_brought_forward_and_an_older_bundle_changes_nothing() {
    let mut a = Machine::new("a");
    let trial = a.train("r", 10);
    let early = a.bundle();
    a.history.add_note(&trial, "from a").expect("kept");
    a.history.record(&trial, &events((10..40).map(|n| step(n, n + 1)).collect())).expect("kept");
    let middle = a.bundle();
    a.end(&trial);
    let late = a.bundle();

    let mut here = Machine::new("here");
    here.merge(&early);
    here.history.add_note(&trial, "from here").expect("kept");
    assert_eq!(here.rows()[0].status, TrialStatus::Lost, "no process works on it here");
    assert!(here.history.open_attempts().expect("read").is_empty(), "it is not this machine's to end");
    let merged = here.merge(&middle);
    assert_eq!((merged.updated, merged.annotations), (1, 1));
    assert_eq!(losses(&here.history, &trial).len(), 40);
    here.merge(&late);
    for older in [&early, &middle] {
        assert_eq!(here.merge(older), MergeReport { unchanged: 1, ..MergeReport::default() });
    }
    assert_eq!(here.rows()[0].status, TrialStatus::Completed);
    let trial = here.history.trial(&trial, &nobody).expect("read");
    let notes: Vec<_> = trial.notes.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert_eq!(trial.attempts.len(), 1);
    // Back on the original machine, only the note is new.
    let before = a.rows();
    let back = a.merge(&here.bundle());
    assert_eq!((back.unchanged, back.annotations), (1, 1));
    assert_eq!(a.rows(), before);
    assert_eq!(a.rows()[0].imported_from, None);
}

#[test]
fn a_trial_that_begins_after_an_import_gets_a_name_of_its_own() {
    let (mut a, mut b) = (Machine::new("a"), Machine::new("b"));
    a.train("r", 3);
    a.train("r", 3);
    b.merge(&a.bundle());
    let created = b.history.create_trial(&new_trial("r")).expect("created");
    assert_eq!(created.label, "r-3");
    let mut own = Machine::new("own");
    own.train("r", 3);
    own.merge(&a.bundle());
    let labels: Vec<_> = own.rows().into_iter().filter(|row| row.imported_from.is_none()).collect();
    assert_eq!(labels[0].label, "r-1", "a trial of this machine keeps its name");
    assert_eq!(own.rows().len(), 3);
}

#[test]
fn studies_travel_with_what_they_tried_and_two_of_one_name_stay_two() {
    let study = |machine: &mut Machine, seed: u64| {
        machine.history.create_study("r-tune-1", &json!({"seed": seed})).expect("made");
        let new = dtrain_runner::ledger::NewTrial { study: Some("r-tune-1".into()), ..new_trial("r") };
        let trial = machine.history.create_trial(&new).expect("created").id;
        let tried = |number, trial, rejection| StudyTrialRow {
            number,
            json: json!({"values": [number]}),
            trial,
            rejection,
        };
        machine.history.record_study_trial("r-tune-1", &tried(0, Some(trial.clone()), None)).expect("kept");
        machine
            .history
            .record_study_trial("r-tune-1", &tried(1, None, Some("no memory".into())))
            .expect("kept");
        trial
    };
    let (mut a, mut b) = (Machine::new("a"), Machine::new("b"));
    let (of_a, of_b) = (study(&mut a, 1), study(&mut b, 2));
    let (mut one, mut other) = (Machine::new("c"), Machine::new("d"));
    let bundles = [a.bundle(), b.bundle()];
    assert_eq!(one.merge(&bundles[0]).studies + one.merge(&bundles[1]).studies, 2);
    other.merge(&bundles[1]);
    other.merge(&bundles[0]);
    assert_eq!(one.all(), other.all());
    let study_of = |trial: &TrialId| {
        let row = one.history.trial(trial, &nobody).expect("read").row;
        row.study.expect("it has one")
    };
    assert_ne!(study_of(&of_a), study_of(&of_b));
    for (trial, seed) in [(&of_a, 1), (&of_b, 2)] {
        let name = study_of(trial);
        assert!(name.starts_with("r-tune-1-"), "{name}");
        assert_eq!(one.history.study(&name).expect("read"), Some(json!({"seed": seed})));
        let tried = one.history.study_trials(&name).expect("read");
        assert_eq!(tried.iter().map(|tried| tried.trial.as_ref()).collect::<Vec<_>>(), [Some(trial), None]);
        assert_eq!(tried[1].rejection.as_deref(), Some("no memory"));
    }
    let back = a.merge(&one.bundle());
    assert_eq!((back.new, back.studies), (1, 1), "its own study is its own");
}

#[test]
fn a_bundle_that_is_cut_changes_nothing() {
    let mut a = Machine::new("a");
    a.train("r", 100);
    let bundle = a.bundle();
    let here = Machine::new("here");
    for length in [0, 11, 40, bundle.len() / 2, bundle.len() - 1] {
        History::check_bundle(&bundle[..length]).expect_err("cut");
    }
    assert!(here.rows().is_empty() && here.path.exists());
}
