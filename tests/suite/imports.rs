//! Bundles from other users: imported whole or not at all; names in them cannot escape the history.

use dtrain_protocol::TrialId;
use dtrain_protocol::bundle::{Reader, Record, TrialRecord, Writer};
use dtrain_runner::ledger::{ExpectedPerformance, History, NewTrial, TrialActivity};
use dtrain_tests::{TestEnv, root};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// Series that the trials of a bundle keep.
const KEPT: [&str; 3] = ["learning_rate", "loss", "step_seconds"];

/// A house with one short trial, `tiny-1`.
fn trained() -> TestEnv {
    let house = TestEnv::default();
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let fixed = ["run", recipe.to_str().expect("UTF-8"), "--quiet", "--no-sample"];
    house.expect(
        0,
        fixed.into_iter().chain(["--set", "cluster.ranks=1", "--set", "objective.stop={ steps = 6 }"]),
    );
    house
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A bundle with so many copies of the only trial of a house; `change` is given each copy with its number, from 1.
fn copies(house: &TestEnv, count: u32, change: impl Fn(u32, &mut TrialRecord)) -> PathBuf {
    let (one, many) = (house.file("one.dtrain", ""), house.file("many.dtrain", ""));
    house.expect(0, ["history", "export", "--to", text(&one)]);
    let mut reader = Reader::new(BufReader::new(File::open(&one).expect("written"))).expect("a bundle");
    let mut writer =
        Writer::new(BufWriter::new(File::create(&many).expect("room")), reader.head()).expect("room");
    let (mut trial, mut points) = (None, Vec::new());
    let mut due = Vec::new();
    while let Some(record) = reader.read().expect("whole") {
        match record {
            Record::Trial(found) => {
                for series in &found.series {
                    due.extend((0..series.points).map(|_| KEPT.contains(&series.key.as_str())));
                }
                trial = Some(found);
            }
            Record::Points(samples) => {
                let wanted: Vec<_> = due.drain(..samples.len()).collect();
                if wanted[0] {
                    points.push(Record::Points(samples));
                }
            }
            other => writer.write(&other).expect("room"),
        }
    }
    let mut trial = trial.expect("a trial");
    trial.series.retain(|series| KEPT.contains(&series.key.as_str()));
    for number in 1..=count {
        let mut copy = trial.clone();
        copy.id = TrialId(format!("{}{number:08}", &trial.id.0[..18]));
        copy.name = format!("tiny-{number}");
        change(number, &mut copy);
        writer.write(&Record::Trial(copy)).expect("room");
        points.iter().for_each(|part| writer.write(part).expect("room"));
    }
    drop(writer.finish().expect("room"));
    many
}

/// Labels of all trials.
fn labels(house: &TestEnv) -> Vec<String> {
    let listed = house.expect(0, ["history", "--json"]).stdout;
    let listed: Value = serde_json::from_slice(&listed).expect("JSON");
    let rows = listed["trials"].as_array().expect("a list").iter();
    rows.map(|row| row["label"].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn a_bundle_with_one_wrong_field_is_refused_by_name_and_imports_nothing() {
    let there = trained();
    let here = trained();
    let cases: [(&str, fn(&mut TrialRecord)); 6] = [
        ("trial tiny-2: `params.", |trial| trial.params[0].1 = "not JSON".into()),
        ("trial tiny-2: `documents.plan` is not JSON", |trial| {
            trial.documents.insert("plan".into(), "{".into());
        }),
        ("trial tiny-2: `records[0]` cannot be read", |trial| trial.records[0].1 = "\"danced\"".into()),
        ("`name` is \"/tmp/precious\"", |trial| trial.name = "/tmp/precious".into()),
        ("`name` is \"../../x\"", |trial| trial.name = "../../x".into()),
        ("`recipe` is \"a/b\"", |trial| trial.recipe = "a/b".into()),
    ];
    for (wanted, change) in cases {
        let bundle = copies(&there, 2, |number, trial| {
            if number == 2 {
                change(trial);
            }
        });
        let refused = here.expect(2, ["history", "import", text(&bundle)]);
        let error = said(&refused.stderr);
        assert!(error.contains("many.dtrain") && error.contains(wanted), "{wanted}: {error}");
        assert!(!error.contains("doctor"), "the history is not to blame: {error}");
        assert_eq!(labels(&here), ["tiny-1"], "{wanted}");
    }
    let bundle = copies(&there, 2, |_, _| {});
    here.expect(0, ["history", "import", text(&bundle)]);
    assert_eq!(labels(&here).len(), 3);
}

/// Makes a trial of a recipe with this name, as a history of an earlier version may have it.
fn misname(house: &TestEnv, name: &str) {
    let mut history = History::open(&house.history()).expect("a history");
    let trial =
        history.trial(&history.find("tiny-1").expect("a trial"), &|_| TrialActivity::None).expect("read");
    let mut recipe = trial.recipe.clone();
    recipe["name"] = name.into();
    let new = NewTrial {
        recipe: serde_json::from_value(recipe).expect("a recipe"),
        plan: trial.plan,
        candidate: trial.candidate,
        layout: trial.row.layout,
        batch: trial.row.batch,
        learning_rate: trial.row.learning_rate,
        predicted: ExpectedPerformance::default(),
        host_digest: String::new(),
        model_digest: String::new(),
        study: Some(name.to_owned()),
        parent: None,
        sources: BTreeMap::new(),
        provenance: trial.provenance,
    };
    history.create_trial(&new).expect("room on disk");
}

#[test]
fn an_export_stays_in_its_folder_and_replaces_only_what_dtrain_wrote() {
    let house = trained();
    misname(&house, "../precious");
    let thesis = house.file("precious-1/thesis.tex", "years of work");
    for to in ["tensorboard", "wandb"] {
        let export = ["export", "last", "--to", to, "--out", to];
        house.expect(0, export);
        house.expect(0, export.iter().chain(&["--force"]));
        let runs = house.state().with_file_name(to);
        assert_eq!(fs::read_dir(&runs).expect("made").count(), 1, "{to}");
    }
    for to in ["csv", "jsonl", "parquet"] {
        house.expect(0, ["export", "last", "--to", to]);
        house.expect(0, ["export", "--study", "../precious", "--to", to]);
    }
    assert_eq!(fs::read_to_string(&thesis).expect("kept"), "years of work");

    // A file in an export's folder that belongs to the user.
    house.expect(0, ["export", "tiny-1", "--to", "tensorboard", "--out", "runs"]);
    let thesis = house.file("runs/tiny-1/thesis.tex", "years of work");
    let refused = house.expect(2, ["export", "tiny-1", "--to", "tensorboard", "--out", "runs", "--force"]);
    assert!(said(&refused.stderr).contains("thesis.tex"), "{}", said(&refused.stderr));
    assert_eq!(fs::read_to_string(&thesis).expect("kept"), "years of work");
    fs::remove_file(&thesis).expect("there");
    house.expect(0, ["export", "tiny-1", "--to", "tensorboard", "--out", "runs", "--force"]);
}

/// Runs the program to its end; returns its largest memory in bytes.
fn peak(house: &TestEnv, args: &[&str]) -> u64 {
    let mut child = house.dtrain(args).stdout(Stdio::null()).spawn().expect("it starts");
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak = 0;
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak = peak.max(kilobytes.unwrap_or(0) << 10);
        if let Some(status) = child.try_wait().expect("a child") {
            assert!(status.success(), "{args:?}: {status}");
            return peak;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_export_of_thousands_of_trials_takes_no_more_memory_than_one_of_a_few() {
    let asked = std::env::var("DTRAIN_EXPORT_TRIALS").ok();
    let count = asked.as_ref().map_or(2000, |text| text.parse().expect("a number"));
    let there = trained();
    let house = TestEnv::default();
    let bundle = copies(&there, count, |_, _| {});
    let import = peak(&house, &["history", "import", text(&bundle)]);
    let mut formats = vec!["csv", "jsonl", "parquet", "mlflow", "prometheus"];
    // They make a folder for each trial, which is on disk before the next one begins.
    formats.extend(["tensorboard", "wandb"].iter().filter(|_| asked.is_some()));
    let mut peaks = vec![("import", import)];
    for to in formats {
        let out = format!("out.{to}");
        peaks.push((to, peak(&house, &["export", "--where", "batch>0", "--to", to, "--out", &out])));
    }
    let again = house.file("again.dtrain", "");
    peaks.push(("bundle", peak(&house, &["history", "export", "--to", text(&again)])));
    println!("{count} trials: {peaks:?}");
    for (what, peak) in &peaks {
        assert!((1..=200 << 20).contains(peak), "{what} of {count} trials took {} MB", peak >> 20);
    }
    let lines = fs::read_to_string(again.with_file_name("out.csv")).expect("written").lines().count();
    assert!(lines > count as usize * 6, "{lines} lines");

    // Who reads the first line only is no error.
    let print = ["export", "--where", "batch>0", "--to", "csv", "--out", "-"];
    let pipes = house.dtrain(print).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = pipes.expect("it starts");
    let mut begin = [0; 5];
    child.stdout.take().expect("a pipe").read_exact(&mut begin).expect("a line");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((&begin, ended.status.code(), said(&ended.stderr).as_str()), (b"trial", Some(0), ""));
}
