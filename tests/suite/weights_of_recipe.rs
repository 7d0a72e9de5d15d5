//! Recipes that name the weights that training begins with.

use crate::interop::{fixture, recipe};
use dtrain_runner::ledger::{History, TrialActivity, TrialDetails};
use dtrain_tests::TestEnv;
use std::fs;
use std::process::Output;

/// What the program printed on standard error, with all white space as one space.
fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn newest(house: &TestEnv) -> TrialDetails {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    history.trial(&id, &|_| TrialActivity::None).expect("a trial")
}

/// The folder whose weights the newest trial began with.
fn folder(house: &TestEnv) -> Option<String> {
    newest(house).provenance.environment.get("weights.folder").cloned()
}

const STEPS: [&str; 8] = [
    "--quiet",
    "--no-sample",
    "--set",
    "objective.stop={ steps = 1 }",
    "--set",
    "data.valid=tokens.bin",
    "--set",
    "train.batch=8",
];

#[test]
fn a_recipe_of_init_begins_with_the_weights_of_its_folder() {
    let house = TestEnv::default();
    let recipe = recipe(&house, "llama").display().to_string();
    let from = fixture("llama").display().to_string();
    house.expect(0, ["run", &recipe].iter().chain(&STEPS));
    assert_eq!(folder(&house).as_deref(), Some(from.as_str()));
    let random = ["run", &recipe, "--set", "train.from=none"];
    house.expect(0, random.iter().chain(&STEPS));
    assert_eq!(folder(&house), None);
    // The flag counts more than the key, also where the key names nothing.
    let text = fs::read_to_string(&recipe)
        .expect("a recipe")
        .replace(&format!("from = {from:?}"), "from = \"gone\"");
    fs::write(&recipe, text).expect("a recipe");
    let gone = words(&house.expect(2, ["run", &recipe].iter().chain(&STEPS)));
    assert!(gone.contains("there is no folder") && gone.contains("hf download"), "{gone}");
    house.expect(2, ["check", &recipe]);
    house.expect(0, ["run", &recipe, "--from", &from].iter().chain(&STEPS));
    assert_eq!(folder(&house).as_deref(), Some(from.as_str()));
    house.expect(0, ["run", &recipe, "--from", "last"].iter().chain(&STEPS));
    assert!(newest(&house).parent.is_some_and(|parent| parent.weights_only));
}

#[test]
fn a_saved_plan_and_the_trials_of_a_study_begin_with_the_weights_too() {
    let house = TestEnv::default();
    let recipe = recipe(&house, "llama").display().to_string();
    let from = fixture("llama").display().to_string();
    let set: Vec<&str> = STEPS[2..].to_vec();
    house.expect(0, ["plan", &recipe, "--out", "p.json"].iter().chain(&set));
    house.expect(0, ["run", "p.json", "--no-sample"]);
    assert_eq!(folder(&house).as_deref(), Some(from.as_str()));
    let tune = ["tune", &recipe, "--trials", "1", "--steps", "2", "--layouts", "1", "--quiet"];
    let set = ["--set", "train.learning_rate={ log = [1e-5, 1e-4] }", "--set", "train.batch=8"];
    let data = ["--set", "data.valid=tokens.bin", "--set", "objective.stop={ steps = 4 }"];
    house.expect(0, tune.iter().chain(&set).chain(&data));
    assert_eq!(folder(&house).as_deref(), Some(from.as_str()));
}

#[test]
fn a_folder_that_is_not_there_is_answered_with_how_to_get_it() {
    let house = TestEnv::default();
    for name in ["No-Such-Model", "./No-Such-Org/No-Such-Model"] {
        let said = words(&house.expect(2, ["init", "new.toml", "--from", name]));
        assert!(said.contains("there is no folder") && said.contains("hf download"), "{said}");
        assert!(!said.contains("os error"), "{said}");
    }
    let recipe = recipe(&house, "llama").display().to_string();
    let said = words(&house.expect(2, ["run", &recipe, "--from", "No-Such-Model"]));
    assert!(said.contains("hf download ORG/No-Such-Model --local-dir No-Such-Model"), "{said}");
}

#[test]
fn text_for_a_folder_without_tokenizer_json_is_refused() {
    let house = TestEnv::default();
    house.file("a.txt", "to be or not to be");
    let from = fixture("llama").display().to_string();
    for data in ["a.txt", "*.md"] {
        let said = words(&house.expect(2, ["init", "new.toml", "--from", &from, "--data", data]));
        assert!(said.contains("has no tokenizer.json"), "{said}");
    }
    let said = words(&house.expect(0, ["init", "new.toml", "--from", &from]));
    assert!(said.contains("has no tokenizer.json, so the recipe reads token numbers"), "{said}");
}
