//! Files of earlier versions can be read: a plan, a history and a bundle from before keys of files were
//! renamed.
//!
//! The files are in `tests/data/old`, whose README says how they were made.

use dtrain_planner::planning::written::digest_of;
use dtrain_runner::ledger::History;
use dtrain_tests::{TestEnv, root};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Where the files were made: the folder of `project` and `state`.
const MADE_IN: &str = "/tmp/dtrain-old";

/// Steps of the trial that was stopped, had it gone on.
const STEPS: u64 = 6000;

/// Runs a program that must succeed.
fn succeeds(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A house with the files of the earlier version, whose history says that its data is where it is now.
fn old() -> TestEnv {
    let house = TestEnv::default();
    let folder = house.state().with_file_name("");
    let archive = root().join("tests/data/old/files.tar.gz");
    succeeds(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder));
    let move_data = "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1])\n\
        db.execute('UPDATE document SET json = replace(json, ?, ?)', sys.argv[2:])\ndb.commit()\n";
    let folder = folder.to_str().expect("UTF-8").trim_end_matches('/');
    succeeds(Command::new("python3").args(["-c", move_data]).arg(house.history()).args([MADE_IN, folder]));
    house
}

/// What a command says with `--json`.
fn json(house: &TestEnv, arguments: &[&str]) -> Value {
    let output = house.expect(0, arguments.iter().chain(&["--json"]));
    serde_json::from_slice(&output.stdout).expect("one document")
}

/// Label and status of every trial, sorted.
fn listed(house: &TestEnv) -> Vec<(String, String)> {
    let listed = json(house, &["history"]);
    let text = |row: &Value, key: &str| row[key].as_str().expect("a text").to_owned();
    let trials = listed["trials"].as_array().expect("a list");
    let mut all: Vec<_> = trials.iter().map(|row| (text(row, "label"), text(row, "status"))).collect();
    all.sort();
    all
}

/// The trials of the history and of the bundle.
fn expected() -> Vec<(String, String)> {
    let all = [
        ("done-1", "completed"),
        ("search-1", "completed"),
        ("search-2", "completed"),
        ("stopped-1", "stopped"),
    ];
    all.map(|(label, status)| (label.to_owned(), status.to_owned())).into()
}

#[test]
fn a_plan_of_an_earlier_version_is_carried_out_unless_it_was_changed() {
    let house = old();
    let project = house.state().with_file_name("project");
    let text = fs::read_to_string(project.join("plan.json")).expect("a plan");
    assert!(text.contains("\"dtrain.plan/1\"") && text.contains("\"weighed\"") && text.contains("\"pace\""));
    let digest = |text: &str| digest_of("plan", text).expect("JSON").expect("a plan");
    let (was, written) = (digest(&text), serde_json::from_str::<Value>(&text).expect("JSON"));
    assert_eq!(written["digest"], *was, "the digest is of the names of then");
    // Its data is beside it.
    let moved = text.replace(&format!("{MADE_IN}/project"), project.to_str().expect("UTF-8"));
    let moved = moved.replace(&was, &digest(&moved));
    fs::write(project.join("plan.json"), &moved).expect("written");
    // It was made on another machine.
    house.expect(0, ["run", "project/plan.json", "--stale-ok", "--quiet"]);
    let trial = &json(&house, &["show", "last"])["trial"];
    assert_eq!((&trial["plan"]["format"], &trial["row"]["step"]), (&2.into(), &20.into()), "{trial}");
    assert!(trial["plan"]["choices"][0]["run_length"].is_object(), "{trial}");

    fs::write(project.join("plan.json"), moved.replacen("\"seed\": 7", "\"seed\": 8", 1)).expect("written");
    let output = house.expect(2, ["run", "project/plan.json", "--stale-ok"]);
    let words = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("the file was modified"), "{words}");
}

#[test]
fn a_history_of_an_earlier_version_is_listed_and_shown() {
    let house = old();
    assert_eq!(listed(&house), expected());
    assert!(house.state().join("history.db.v1.4.backup").exists(), "it was copied before it was changed");
    for (label, _) in expected() {
        let trial = &json(&house, &["show", &label])["trial"];
        assert_eq!(trial["plan"]["format"], 2, "{trial}");
        assert!(trial["plan"]["choices"][0]["run_length"]["checkpointing"].is_object(), "{trial}");
        assert!(trial["recipe"]["tune"]["min_steps"].is_u64(), "{trial}");
        let has_param =
            |path: &str| trial["params"].as_array().expect("params").iter().any(|one| one["path"] == path);
        assert!(has_param("tune.min_steps") && !has_param("tune.least"), "{trial}");
        house.expect(0, ["show", &label]);
    }
    assert!(
        !json(&house, &["show", "stopped-1"])["trial"]["checkpoints"].as_array().expect("a list").is_empty()
    );
    house.expect(0, ["checkpoint", "verify", "stopped-1"]);
    house.expect(0, ["report", "--study", "rings", "--out", "report.html"]);
    History::open_read_only(&house.history()).and_then(|history| history.check()).expect("it is sound");
}

#[test]
fn a_study_of_an_earlier_version_is_learned_from() {
    let house = old();
    // Its rows were not mixed before they were split, so its trials are not comparable with those of today.
    let output =
        house.expect(2, ["tune", "project/search.toml", "--study", "rings", "--trials", "3", "--quiet"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("data.mix = 7 (was its default)") && words.contains("--from rings"), "{words}");
    let more =
        ["tune", "project/search.toml", "--study", "more", "--from", "rings", "--trials", "1", "--quiet"];
    house.expect(0, more);
    assert!(
        listed(&house).contains(&("search-3".to_owned(), "completed".to_owned())),
        "{:?}",
        listed(&house)
    );
}

#[test]
fn a_trial_that_an_earlier_version_stopped_goes_on() {
    let house = old();
    let before = json(&house, &["show", "stopped-1"]);
    let saved =
        before["trial"]["checkpoints"].as_array().expect("a list").last().expect("one")["step"].clone();
    house.expect(0, ["resume", "stopped-1", "--quiet"]);
    let after = json(&house, &["show", "stopped-1"]);
    let row = &after["trial"]["row"];
    assert_eq!((&row["status"], &row["step"]), (&"completed".into(), &STEPS.into()), "{after}");
    let attempts = after["trial"]["attempts"].as_array().expect("a list");
    assert_eq!((attempts.len(), &attempts[1]["from"]), (2, &saved), "{after}");
}

#[test]
fn a_bundle_of_an_earlier_version_is_imported_once() {
    let (house, empty) = (old(), TestEnv::default());
    let bundle = house.state().with_file_name("trials.dtrain");
    let bundle = bundle.to_str().expect("UTF-8");
    let merged = json(&empty, &["history", "import", bundle]);
    let count = |merged: &Value, key: &str| merged["bundles"][0][key].as_u64();
    assert_eq!((count(&merged, "new"), count(&merged, "studies")), (Some(4), Some(1)), "{merged}");
    assert_eq!(listed(&empty), expected());
    for (label, _) in expected() {
        let shown = json(&empty, &["show", &label]);
        assert_eq!(shown["trial"]["plan"]["format"], 2, "{shown}");
    }
    // The machine that made it knows its trials, and its study by the digest of then.
    for house in [&empty, &house] {
        let again = json(house, &["history", "import", bundle]);
        assert_eq!((count(&again, "unchanged"), count(&again, "studies")), (Some(4), Some(0)), "{again}");
    }
    house.expect(0, ["history", "export", "--to", "new.dtrain"]);
    let new = house.state().with_file_name("new.dtrain");
    let again = json(&empty, &["history", "import", new.to_str().expect("UTF-8")]);
    assert_eq!((count(&again, "unchanged"), count(&again, "studies")), (Some(4), Some(0)), "{again}");
}

#[test]
fn an_old_recipe_runs_and_is_told_the_new_keys() {
    let house = TestEnv::default();
    house.file("rows.csv", dtrain_tests::random_rows(100));
    let recipe = "[model]\nkind = \"mlp\"\ninputs = 64\nhidden = [8]\nclasses = 10\n[data]\ntrain = \"rows.csv\"\n\
        target = \"class\"\n[objective]\nstop = { steps = 3 }\n[tune]\nleast = 2\n[cluster]\nlost_after = \"5 min\"\n";
    house.file("old.toml", recipe);
    let output = house.expect(0, ["run", "old.toml"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let notes: Vec<&str> = words.lines().filter(|line| line.starts_with("note:")).collect();
    assert_eq!(
        notes,
        [
            "note: `tune.least` is now called `tune.min_steps` (old.toml:12:1)",
            "note: `cluster.lost_after` is now called `cluster.unreachable_timeout` (old.toml:14:1)",
        ]
    );
    let quiet = house.expect(0, ["check", "old.toml", "--quiet"]);
    assert!(quiet.stderr.is_empty(), "{}", String::from_utf8_lossy(&quiet.stderr));
    let resolved = json(&house, &["show", "--resolved", "old.toml"]);
    let setting =
        |key: &str| resolved["settings"].as_array().expect("a list").iter().find(|one| one["key"] == key);
    assert_eq!(setting("tune.min_steps").expect("a key")["value"], "2", "{resolved}");
}
