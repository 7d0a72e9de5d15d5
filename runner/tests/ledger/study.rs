//! Studies, and their suggestions.

use crate::support::{new_trial, place};
use dtrain_runner::History;
use dtrain_runner::ledger::StudyTrialRow;
use serde_json::json;

#[test]
fn a_study_is_kept_once_and_its_trials_in_the_order_of_their_numbers() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    assert_eq!(history.study("a").expect("readable"), None);
    history.create_study("a", &json!({"seed": 1})).expect("new");
    history.create_study("a", &json!({"seed": 2})).expect_err("there is one of that name");
    assert_eq!(history.study("a").expect("readable"), Some(json!({"seed": 1})));

    let trial = history.create_trial(&new_trial("r")).expect("recorded").id;
    let tried = |number, trial, refused: Option<&str>| StudyTrialRow {
        number,
        json: json!({"values": [number]}),
        trial,
        rejection: refused.map(str::to_owned),
    };
    let (first, second) = (tried(0, Some(trial), None), tried(1, None, Some("it does not fit")));
    history.record_study_trial("a", &second).expect("kept");
    history.record_study_trial("a", &first).expect("kept");
    assert_eq!(history.study_trials("a").expect("readable"), [first, second]);
    assert!(history.study_trials("b").expect("readable").is_empty());
    history.record_study_trial("b", &tried(0, None, None)).expect_err("there is no such study");
}

#[test]
fn a_free_name_is_neither_that_of_a_study_nor_of_trials_of_one() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    assert_eq!(history.free_study_name("r").expect("readable"), "r-tune-1");
    history.create_study("r-tune-1", &json!({})).expect("new");
    let mut new = new_trial("r");
    new.study = Some("r-tune-2".into());
    history.create_trial(&new).expect("recorded");
    assert_eq!(history.free_study_name("r").expect("readable"), "r-tune-3");
}
