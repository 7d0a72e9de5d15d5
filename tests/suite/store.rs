//! Removing trials that have checkpoints, and what nothing needs of those that stay.

use dtrain_planner::Plan;
use dtrain_protocol::AttemptId;
use dtrain_runner::Home;
use dtrain_runner::ledger::{History, NewTrial, Parent, TrialActivity, TrialDetails};
use dtrain_runner::transport::ProgramDigest;
use dtrain_tests::{TestEnv, numbered_lines, program, root};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

fn train(house: &TestEnv, name: &str, more: &[&str]) {
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let fixed = ["run", recipe.to_str().expect("UTF-8"), "--name", name, "--quiet", "--no-sample"];
    let ranks = ["--set", "cluster.ranks=1"];
    house.expect(0, fixed.iter().chain(&ranks).chain(more));
}

fn trial(house: &TestEnv, name: &str) -> TrialDetails {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find(name).expect("a trial");
    history.trial(&id, &|_| TrialActivity::None).expect("a trial")
}

/// What the program says that was asked for JSON, with a home folder of the test's own.
fn json(house: &TestEnv, code: i32, arguments: &[&str]) -> Value {
    let mut command = house.dtrain(arguments.iter().chain(&["--json"]));
    let output = command.env("HOME", house.state().with_file_name("home")).output().expect("it starts");
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one document")
}

#[test]
fn a_child_keeps_the_checkpoint_of_a_parent_that_is_removed() {
    let house = TestEnv::default();
    train(&house, "first", &[]);
    house.expect(0, ["resume", "first-1", "--quiet", "--set", "objective.stop.steps=30"]);
    let parent = trial(&house, "first-1");
    let folder = Home::at(house.state()).trial(&parent.row.id);
    assert!(folder.checkpoints().exists());
    let gone = json(&house, 0, &["rm", "first-1", "--yes"]);
    assert!(!folder.path().exists());
    // The child took over one of the two checkpoints, so the files of one alone are free.
    let newest = parent.checkpoints.last().expect("a checkpoint");
    assert_eq!(newest.step.0, 20, "{gone}");
    house.expect(0, ["checkpoint", "verify", "first-2"]);
    house.expect(0, ["resume", "first-2@20", "--quiet", "--set", "objective.stop.steps=24"]);
    assert_eq!(trial(&house, "last").row.step, 24);
}

#[test]
fn a_parent_whose_checkpoint_is_still_to_be_taken_over_is_not_removed() {
    let house = TestEnv::default();
    train(&house, "first", &[]);
    let parent = trial(&house, "first-1");
    let saved = parent.checkpoints.last().expect("a checkpoint");
    let plan = Plan::read(&parent.plan).expect("a plan");
    let begun = Parent {
        trial: parent.row.id.clone(),
        label: parent.row.label.clone(),
        step: saved.step,
        folder: saved.folder.clone(),
        weights_only: true,
        changes: Vec::new(),
        inputs: None,
    };
    // As when the program is killed right after it recorded the child.
    let new = NewTrial { parent: Some(begun), ..NewTrial::of(&plan, plan.best(), parent.provenance.clone()) };
    History::open(&house.history()).expect("a history").create_trial(&new).expect("recorded");
    let refused = json(&house, 2, &["rm", "first-1", "--yes"]);
    assert!(
        refused["message"].as_str().expect("words").contains("first-2 has yet to begin with"),
        "{refused}"
    );
    assert!(saved.folder.exists());
    house.expect(0, ["resume", "first-2", "--quiet"]);
    json(&house, 0, &["rm", "first-1", "--yes"]);
    json(&house, 0, &["rm", "first-2", "--yes"]);
}

#[test]
fn both_a_parent_and_the_child_that_needs_it_can_be_removed() {
    let house = TestEnv::default();
    train(&house, "first", &[]);
    house.expect(0, ["resume", "first-1", "--quiet", "--set", "objective.stop.steps=30"]);
    let gone = json(&house, 0, &["rm", "first-1", "first-2", "--yes"]);
    assert_eq!(gone["trials"].as_array().expect("trials").len(), 2);
    let left: Vec<_> = fs::read_dir(house.state().join("trials")).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Files of the cache but for locks.
fn cached(house: &TestEnv) -> Vec<PathBuf> {
    let entries = fs::read_dir(house.state().join("cache")).expect("a cache");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_none_or(|ending| ending != "lock"));
    paths.sort();
    paths
}

#[test]
fn partial_checkpoints_and_tokens_that_no_trial_reads_are_collected() {
    let house = TestEnv::default();
    let text = house.file("text.txt", numbered_lines());
    let data = format!("data.train={}", text.display());
    let settings = ["--set", &data, "--set", "data.tokenizer={ bpe = 300 }", "--set", "model.vocab=300"];
    train(&house, "bpe", &settings);
    train(&house, "bpe", &settings);
    let (first, used) = (trial(&house, "bpe-1"), cached(&house));
    assert_eq!(used.len(), 2, "a tokenizer and its tokens: {used:?}");
    let folder = Home::at(house.state()).trial(&first.row.id);
    let steps: Vec<PathBuf> = first.checkpoints.iter().map(|saved| saved.folder.clone()).collect();
    for (step, file) in [(13, "rank-00000.safetensors"), (14, "COMMIT")] {
        let partial = folder.partial_checkpoint(dtrain_protocol::StepId(step), AttemptId(1));
        fs::create_dir(&partial).expect("a folder");
        fs::write(partial.join(file), "half of it").expect("a file");
    }
    let foreign = house.state().join("cache").join(format!("bpe-{0}-{0}.tokens", "0".repeat(32)));
    let torn = house.state().join("cache").join(format!("bpe-{}.new-4294967294", "0".repeat(32)));
    fs::write(&foreign, [0; 100]).expect("a file");
    fs::write(&torn, [0; 11]).expect("a file");
    let digest = ProgramDigest::of(&program()).expect("the program").to_string();
    let own = house.file(&format!("home/.cache/dtrain/bin/{digest}/dtrain"), "this version");

    let report = json(&house, 0, &["gc"]);
    let sums: Vec<(&str, u64)> = report["kinds"]
        .as_array()
        .expect("kinds")
        .iter()
        .map(|sum| (sum["kind"].as_str().expect("a word"), sum["bytes"].as_u64().expect("bytes")))
        .collect();
    assert_eq!(sums, [("partial_checkpoint", 10), ("tokens", 111)], "{report}");
    assert_eq!(report["bytes"], 121);
    assert!(!folder.partial_checkpoint(dtrain_protocol::StepId(13), AttemptId(1)).exists());
    assert!(
        folder.partial_checkpoint(dtrain_protocol::StepId(14), AttemptId(1)).exists(),
        "it may be the only copy"
    );
    assert!(steps.iter().all(|step| step.exists()) && own.exists());
    assert_eq!(cached(&house), used, "trials read them");

    // Data that cannot be read may come back: all tokens stay, with the reason.
    fs::rename(&text, text.with_extension("away")).expect("renamed");
    fs::write(&foreign, [0; 100]).expect("a file");
    let report = json(&house, 0, &["gc"]);
    assert!(report["kept"][0]["reason"].as_str().expect("words").contains("the data of bpe-2"), "{report}");
    assert!(foreign.exists());
    fs::rename(text.with_extension("away"), &text).expect("renamed");

    json(&house, 0, &["rm", "bpe-1", "--yes"]);
    json(&house, 0, &["gc"]);
    assert_eq!(cached(&house), used, "the other trial reads them");
    json(&house, 0, &["rm", "bpe-2", "--yes"]);
    json(&house, 0, &["gc"]);
    assert_eq!(cached(&house), Vec::<PathBuf>::new());
}
