//! Bundles with any one field replaced: each is imported whole, or rejected without changes.

use crate::bundle::Machine;
use crate::support::*;
use dtrain_protocol::bundle::{BundleError, MAGIC};
use dtrain_runner::ledger::{ImportError, NewTrial, StudyTrialRow};
use dtrain_runner::{Fact, History};
use rusqlite::Connection;
use rusqlite::types::Value as Sql;
use serde_json::{Value, json};

/// Kinds of records: the last, a trial, and all that are JSON.
const END: u8 = 0;
const TRIAL: u8 = 3;
const JSON: [u8; 3] = [1, TRIAL, 5];

type Records = Vec<(u8, Vec<u8>)>;

/// Splits a bundle into its records, each with its kind.
fn records(bundle: &[u8]) -> Records {
    let (mut all, mut rest) = (Vec::new(), &bundle[12..]);
    while let [kind, a, b, c, d, _, _, _, _, after @ ..] = rest {
        let (payload, next) = after.split_at(u32::from_le_bytes([*a, *b, *c, *d]) as usize);
        all.push((*kind, payload.to_vec()));
        rest = next;
    }
    all
}

/// Builds a bundle of these records with valid checksums.
fn bundle(records: &Records) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &1u32.to_le_bytes()].concat();
    for (kind, payload) in records {
        let payload = if *kind == END { blake3::hash(&bytes).as_bytes().to_vec() } else { payload.clone() };
        bytes.push(*kind);
        bytes.extend(u32::try_from(payload.len()).expect("small").to_le_bytes());
        bytes.extend(crc32c::crc32c(&payload).to_le_bytes());
        bytes.extend(payload);
    }
    bytes
}

/// Collects the paths of all fields in a value; of long lists the first and the last item.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, inner)| (name.clone(), inner)).collect(),
        Value::Array(items) => {
            let is_taken = |at: &usize| items.len() <= 3 || *at == 0 || *at == items.len() - 1;
            (0..items.len()).filter(is_taken).map(|at| (at.to_string(), &items[at])).collect()
        }
        _ => Vec::new(),
    };
    for (name, inner) in below {
        let path = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
        found.push(path.clone());
        paths(inner, &path, found);
    }
}

/// Returns the values that replace a field.
fn replacements() -> Vec<Value> {
    let long = "a".repeat(5000);
    let numbers = [json!(null), json!(true), json!(-1), json!(1.5), json!(u64::MAX), json!([]), json!({})];
    let texts = ["", "x", "../../x", "/tmp/x", "\u{1b}[2J", "{}", "[1]", "\"resumed\"", &long];
    numbers.into_iter().chain(texts.map(Value::from)).collect()
}

/// Returns every row of every table.
fn dump(path: &std::path::Path) -> String {
    let database = Connection::open(path).expect("opens");
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name";
    let mut tables = database.prepare(tables).expect("SQL");
    let tables: Vec<String> =
        tables.query_map([], |row| row.get(0)).expect("rows").map(|name| name.expect("a name")).collect();
    let mut text = String::new();
    for table in tables {
        let mut select = database.prepare(&format!("SELECT * FROM {table}")).expect("SQL");
        let columns = select.column_count();
        let mut rows = select.query([]).expect("rows");
        while let Some(row) = rows.next().expect("a row") {
            let values: Vec<Sql> = (0..columns).map(|at| row.get(at).expect("a value")).collect();
            text += &format!("{table} {values:?}\n");
        }
    }
    text
}

/// Returns a bundle of two trials, the second with all optional parts, and a study.
fn whole() -> Vec<u8> {
    let mut there = Machine::new("there");
    let first = there.train("r", 3);
    there.end(&first);
    there.history.create_study("r-tune-1", &json!({"seed": 1})).expect("made");
    let new = NewTrial { study: Some("r-tune-1".into()), ..new_trial("r") };
    let second = there.history.create_trial(&new).expect("created").id;
    let tried = StudyTrialRow {
        number: 0,
        json: json!({"values": [1]}),
        trial: Some(second.clone()),
        rejection: None,
    };
    there.history.record_study_trial("r-tune-1", &tried).expect("kept");
    there.history.record_study_event("r-tune-1", 0, &json!({"a": 1})).expect("kept");
    use dtrain_runner::Ledger;
    let saved =
        Fact::CheckpointCommitted { attempt: ATTEMPT, step: dtrain_protocol::StepId(2), folder: "/x".into() };
    there.history.record(&second, &facts(vec![started(1), saved])).expect("kept");
    there.history.record(&second, &events((0..3).map(|n| step(n, n + 1)).collect())).expect("kept");
    there.history.add_note(&second, "good").expect("kept");
    there.history.set_tag(&second, "keep", "yes").expect("kept");
    there.bundle()
}

/// Returns the file of a history with a trial of its own.
fn own() -> Vec<u8> {
    let mut own = Machine::new("here");
    own.train("own", 2);
    let raw = Connection::open(&own.path).expect("opens");
    raw.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("all is in the file");
    std::fs::read(&own.path).expect("a file")
}

fn merge(history: &mut History, bundle: &[u8]) -> Result<(), ImportError> {
    history.merge_bundles([Ok(bundle)], &mut |_| {}).map(drop)
}

#[test]
fn a_bundle_with_any_field_replaced_is_imported_whole_or_changes_nothing() {
    let whole = records(&whole());
    let own = own();
    let mut machine = Machine::with("here", &own);
    let before = dump(&machine.path);
    let (mut refused, mut taken) = (0, 0);
    // The first trial is imported long before the error in the second, or in the study, is found.
    let first = whole.iter().position(|(kind, _)| *kind == TRIAL).expect("a trial");
    for (at, (kind, payload)) in whole.iter().enumerate() {
        if !JSON.contains(kind) || at == first {
            continue;
        }
        let value: Value = serde_json::from_slice(payload).expect("JSON");
        let mut all = Vec::new();
        paths(&value, "", &mut all);
        for (path, new) in all.iter().flat_map(|path| replacements().into_iter().map(move |new| (path, new)))
        {
            let mut other = value.clone();
            *other.pointer_mut(path).expect("it was found there") = new.clone();
            let mut records = whole.clone();
            records[at].1 = serde_json::to_vec(&other).expect("JSON");
            let bytes = bundle(&records);
            let what = format!("{path} = {new:.99}");
            match merge(&mut machine.history, &bytes) {
                Ok(()) => {
                    History::check_bundle(&bytes[..]).unwrap_or_else(|error| panic!("{what}: {error}"));
                    machine.all();
                    let again = machine.bundle();
                    History::check_bundle(&again[..]).unwrap_or_else(|error| panic!("{what}: {error}"));
                    machine.history.check().expect("sound");
                    machine = Machine::with("here", &own);
                    taken += 1;
                }
                Err(ImportError::Bundle { number, source }) => {
                    assert!(number == 0 && !matches!(source, BundleError::Io(_)), "{what}: {source}");
                    History::check_bundle(&bytes[..]).expect_err(&what);
                    refused += 1;
                }
                Err(ImportError::Ledger(error)) => panic!("{what}: the history is blamed: {error}"),
            }
            assert_eq!(dump(&machine.path), before, "{what}");
        }
    }
    assert!(refused > 500 && taken > 50, "{refused} refused, {taken} taken");
}

#[test]
fn of_several_bundles_none_is_imported_when_the_last_trial_of_the_last_one_is_wrong() {
    let whole = whole();
    let mut records = records(&whole);
    let last = records.iter().rposition(|(kind, _)| *kind == TRIAL).expect("a trial");
    let mut trial: Value = serde_json::from_slice(&records[last].1).expect("JSON");
    let path = trial["params"][0][0].as_str().expect("a path").to_owned();
    trial["params"][0][1] = json!("not JSON");
    records[last].1 = serde_json::to_vec(&trial).expect("JSON");
    let wrong = bundle(&records);
    let mut machine = Machine::with("here", &own());
    let before = dump(&machine.path);
    let merged = machine.history.merge_bundles([Ok(&whole[..]), Ok(&wrong[..])], &mut |_| {});
    let Err(ImportError::Bundle { number, source }) = merged else { panic!("{merged:?}") };
    assert_eq!(number, 1);
    assert!(source.to_string().starts_with(&format!("trial r-2: `params.{path}` is not JSON")), "{source}");
    assert_eq!(dump(&machine.path), before);
    merge(&mut machine.history, &whole).expect("the other one is whole");
}
