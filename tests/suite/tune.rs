//! `dtrain tune`: a study that is stopped goes on as if it had not been.

use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::TestEnv;
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

const RECIPE: &str = r#"
name = "tiny"

[model]
kind = "decoder"
layers = 1
hidden = 32
heads = 2
context = 32

[data]
train = "text.txt"
valid = "10%"

[objective]
stop = { steps = 180 }

[train]
batch = 8
learning_rate = { log = [1e-4, 1e-1] }

[layout]
micro_batch = 8

[cluster]
ranks = 1
"#;

fn house() -> (TestEnv, String) {
    let house = TestEnv::default();
    let text: String =
        (0..900).map(|i| format!("{} and {} are {}\n", i % 13, i % 7, i % 13 + i % 7)).collect();
    house.file("text.txt", text);
    let recipe = house.file("recipe.toml", RECIPE);
    (house, recipe.to_str().expect("UTF-8").to_owned())
}

fn arguments<'a>(recipe: &'a str, trials: &'a str) -> Vec<&'a str> {
    vec![
        "tune",
        recipe,
        "--trials",
        trials,
        "--steps",
        "20",
        "--layouts",
        "0",
        "--study",
        "s",
        "--quiet",
        "--json",
    ]
}

/// What a study that has `trials` in all tried, and what came of it.
fn tuned(house: &TestEnv, recipe: &str, trials: &str) -> Value {
    let output = house.expect(0, arguments(recipe, trials));
    let text = String::from_utf8(output.stdout).expect("text");
    let last = text.lines().last().expect("a line");
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_study_that_is_killed_goes_on_to_the_same_end() {
    let (house, recipe) = house();
    let whole = tuned(&house, &recipe, "7");
    let trials = whole["trials"].as_array().expect("a list");
    assert_eq!(trials.len(), 7);
    let rates: Vec<f64> = trials.iter().map(|trial| trial["values"][0].as_f64().expect("a rate")).collect();
    assert!(rates.iter().all(|rate| (1e-4..=1e-1).contains(rate)), "{rates:?}");
    let distinct: std::collections::BTreeSet<u64> = rates.iter().map(|rate| rate.to_bits()).collect();
    assert_eq!(distinct.len(), 7, "nothing is tried twice: {rates:?}");

    let (broken, recipe) = self::house();
    for kill in 0..2 {
        let mut study = broken
            .dtrain(arguments(&recipe, "7"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        wait_for_trials(&broken, 2 * kill + 2);
        study.kill().expect("it runs");
        study.wait().expect("it ends");
    }
    let resumed = tuned(&broken, &recipe, "7");
    assert_eq!(resumed["trials"], whole["trials"], "the same values, and the same losses to the last bit");
    assert_eq!(resumed["recommended"], whole["recommended"]);
}

#[test]
fn what_was_found_is_confirmed_with_other_seeds_and_written_as_a_recipe() {
    let (house, recipe) = house();
    let found = house.file("found.toml", "");
    let found = found.to_str().expect("UTF-8");
    let confirmed = |seeds: &str| {
        let mut words = arguments(&recipe, "4");
        words.extend(["--confirm", seeds, "--recipe-out", found, "--set", "train.clip=0.75"]);
        let text = String::from_utf8(house.expect(0, words).stdout).expect("text");
        serde_json::from_str::<Value>(text.lines().last().expect("a line")).expect("JSON")
    };
    let two = confirmed("2");
    assert_eq!(two["confirmed"]["study"], "s-confirm");
    assert_eq!(
        two["confirmed"]["baseline_is"], "untuned",
        "the first trial is what `dtrain run` takes: {two}"
    );
    let comparison = &two["confirmed"]["comparison"];
    assert_eq!((&comparison["pairs"], &comparison["failed"]), (&2.into(), &serde_json::json!([0, 0])));
    assert!(comparison["margin"].as_f64().is_some_and(|margin| margin > 0.0), "{comparison}");

    // The trials are those of two settings with two seeds; a third seed adds two.
    let trials = |study: &str| {
        let history = History::open_read_only(&house.history()).expect("a history");
        history
            .study_trials(study)
            .expect("a study")
            .into_iter()
            .map(|one| one.json["values"].clone())
            .collect::<Vec<_>>()
    };
    let before = trials("s-confirm");
    let seeds: Vec<&Value> = before.iter().map(|values| &values[1]).collect();
    assert_eq!(seeds, [2, 2, 3, 3], "the study itself has seed 1");
    let three = confirmed("3");
    assert_eq!(trials("s-confirm")[..4], before);
    assert_eq!((trials("s-confirm").len(), &three["confirmed"]["comparison"]["pairs"]), (6, &3.into()));
    assert_eq!(three["trials"], two["trials"], "the study itself is over");

    // The recipe extends the one that was tuned, with what was found and what was said over it.
    let shown =
        String::from_utf8(house.expect(0, ["show", "--resolved", found, "--json"]).stdout).expect("text");
    let written = std::fs::read_to_string(found).expect("it was written");
    let rate = &three["recommended"]["values"][0];
    assert!(written.contains("extends = \"recipe.toml\"") && written.contains("pairs of seeds"), "{written}");
    assert!(written.contains(&format!("train.learning_rate = {rate}")), "{written}");
    assert!(written.contains("train.clip = 0.75") && !written.contains("tune."), "{written}");
    assert!(shown.contains(&rate.to_string()) && shown.contains("0.75"), "{shown}");
    let mut own = arguments(&recipe, "4");
    own.extend(["--recipe-out", &recipe, "--set", "train.clip=0.75"]);
    let error = String::from_utf8_lossy(&house.expect(2, own).stderr).into_owned();
    assert!(error.contains("is the recipe that is tuned"), "{error}");
}

#[test]
fn a_range_test_finds_the_learning_rates_that_are_searched() {
    let house = TestEnv::default();
    let text: String =
        (0..900).map(|i| format!("{} plus {} is {}\n", i % 13, i % 7, i % 13 + i % 7)).collect();
    house.file("text.txt", text);
    let recipe = house.file("recipe.toml", RECIPE.replace("learning_rate = { log = [1e-4, 1e-1] }\n", ""));
    let recipe = recipe.to_str().expect("UTF-8");
    let mut words = arguments(recipe, "2");
    words.push("--range-test");
    house.expect(0, words);
    let history = History::open_read_only(&house.history()).expect("a history");
    let mut rates: Vec<(f64, f64)> = Vec::new();
    for tried in history.study_trials("s-range").expect("a study") {
        let trial =
            history.trial(&tried.trial.expect("it was trained"), &|_| TrialActivity::None).expect("a trial");
        rates.push((trial.row.learning_rate, trial.row.best.unwrap_or(f64::INFINITY)));
    }
    assert_eq!(rates.len(), 9);
    let range =
        &history.study("s").expect("it is read").expect("it began")["study"]["space"][0]["scale"]["log"];
    let bound = |name: &str| range[name].as_f64().expect("a number");
    let (low, high) = (bound("low"), bound("high"));
    assert!(rates[0].0 < low && low < high && high <= rates[8].0 * 1.01, "{low} to {high} of {rates:?}");
    let best = rates.iter().min_by(|a, b| a.1.total_cmp(&b.1)).expect("nine").0;
    assert!((low..=high * 1.01).contains(&best), "{low} to {high} without {best}: {rates:?}");

    let pinned = house.file("pinned.toml", RECIPE);
    let mut words = arguments(pinned.to_str().expect("UTF-8"), "2");
    words.push("--range-test");
    let error = String::from_utf8_lossy(&house.expect(2, words).stderr).into_owned();
    assert!(error.contains("the recipe says which learning rates"), "{error}");
}

#[test]
fn trials_of_all_batches_see_as_many_samples_and_the_batch_is_recorded_as_searched() {
    let (house, recipe) = house();
    let mut words = arguments(&recipe, "4");
    words.extend(["--set", "train.batch={ choices = [8, 16] }"]);
    words.extend(["--set", "train.warmup={ choices = [\"256 tokens\", \"512 tokens\"] }"]);
    let text = String::from_utf8(house.expect(0, words).stdout).expect("text");
    let found: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    let samples = found["samples"].as_u64().expect("their length is in samples");
    let history = History::open_read_only(&house.history()).expect("a history");
    let mut batches = std::collections::BTreeSet::new();
    for tried in history.study_trials("s").expect("a study") {
        let trial =
            history.trial(&tried.trial.expect("it was trained"), &|_| TrialActivity::None).expect("a trial");
        assert_eq!(trial.row.step, samples.div_ceil(trial.row.batch), "{trial:?}");
        batches.insert(trial.row.batch);
        let source =
            |path: &str| trial.params.iter().find(|param| param.path == path).map(|param| param.source);
        assert_eq!(
            source("train.warmup.tokens"),
            Some(dtrain_runner::ledger::ValueSource::Search),
            "{trial:?}"
        );
    }
    assert_eq!(batches.len(), 2, "four trials are spread evenly");
    let plan = house.state().join("studies/s.plan.json");
    let plan: Value = serde_json::from_slice(&std::fs::read(plan).expect("it was saved")).expect("JSON");
    let warmup =
        plan["settings"]["train.warmup"].as_str().or(plan["plan"]["settings"]["train.warmup"].as_str());
    assert!(warmup.is_some_and(|text| text.contains("tokens")), "{plan}");
}

/// Waits until so many trials are written down.
fn wait_for_trials(house: &TestEnv, count: usize) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(120) {
        // The history itself: `dtrain history` would write down how lost trials ended, and be in the study's way.
        let tried = History::open_read_only(&house.history()).and_then(|history| history.study_trials("s"));
        if tried.is_ok_and(|tried| tried.len() >= count) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("the study began fewer than {count} trials in two minutes");
}

#[test]
fn a_study_of_another_recipe_is_not_gone_on_with() {
    let (house, recipe) = house();
    tuned(&house, &recipe, "1");
    let mut other = arguments(&recipe, "2");
    other.extend(["--set", "train.batch=16"]);
    let output = house.expect(2, other);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("another recipe"), "{error}");
    let mut longer = arguments(&recipe, "2");
    longer[5] = "40";
    let output = house.expect(2, longer);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("20 steps, not 40"), "{error}");
    let mut nothing = arguments(&recipe, "2");
    nothing.extend(["--set", "train.learning_rate=1e-3"]);
    nothing[9] = "t";
    let output = house.expect(2, nothing);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("nothing to search"), "{error}");
}
