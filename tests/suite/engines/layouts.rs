//! Layouts of engines, each compared with the own worker on one rank: the losses of 30 steps, those of validations and the
//! weights at the end.

use super::{Form, RECIPE, assert_near, command, env, python};
use dtrain_protocol::Rank;
use dtrain_runner::ledger::History;
use dtrain_tests::{TestEnv, root};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The largest difference between weights that counts as none.
const WEIGHTS: f64 = 1e-3;

/// A layout of an engine.
struct Case {
    engine: String,
    ranks: u32,
    layers: String,
    context: String,
    is_short: bool,
    settings: Vec<String>,
}

/// Reads the list of layouts.
fn cases() -> Vec<Case> {
    let text = fs::read_to_string(root().join("tests/data/engines/layouts.tsv")).expect("it is there");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
            [engine, ranks, layers, context, short, settings] => Case {
                engine: engine.to_owned(),
                ranks: ranks.parse().expect("a number"),
                layers: layers.to_owned(),
                context: context.to_owned(),
                is_short: short == "yes",
                settings: settings.split(' ').map(str::to_owned).collect(),
            },
            _ => panic!("{line:?}"),
        })
        .collect()
}

/// The results of a training.
struct Trained {
    losses: Vec<f64>,
    valid: Vec<f64>,
    weights: String,
}

/// Trains a recipe, and exports its weights into the folder `weights`.
fn train(env: &TestEnv, arguments: Vec<String>, weights: &str) -> Trained {
    env.expect(0, arguments);
    env.expect(0, ["model", "export", "last", "--to", "hf", "--out", weights]);
    let history = History::open_read_only(&env.history()).expect("a history");
    let trial = history.find("last").expect("a trial");
    let names = history.series_names(&trial).expect("series");
    // The last stage of a pipeline reports.
    let of = |key: &str| {
        let rank = names.iter().find(|(name, _)| name == key).map_or(Rank(0), |(_, rank)| *rank);
        let points = history.series(&trial, key, rank).expect("a series");
        points.iter().map(|point| point.value).collect()
    };
    Trained { losses: of("loss"), valid: of("valid.loss"), weights: weights.to_owned() }
}

/// Returns the largest difference between the weights in two folders.
fn difference(env: &TestEnv, python: &Path, one: &str, other: &str) -> f64 {
    let mut command = Command::new(python);
    command
        .arg(root().join("tests/data/engines/weights.py"))
        .arg(env.path().join(one))
        .arg(env.path().join(other));
    let output = command.output().expect("python starts");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

/// Trains every layout of a form beside the own worker on one rank.
#[expect(clippy::print_stdout, reason = "the log of the tests tells how near they are")]
fn compare(form: Form) {
    let Some(python) = python(form) else { return };
    let env = env();
    let mut wanted: BTreeMap<(String, String), Trained> = BTreeMap::new();
    for (number, case) in
        cases().iter().enumerate().filter(|(_, case)| case.is_short == (form == Form::Short))
    {
        let recipe = RECIPE
            .replace("layers = 2", &format!("layers = {}", case.layers))
            .replace("context = 64", &format!("context = {}", case.context))
            .replace("ranks = 2", &format!("ranks = {}", case.ranks));
        let size = (case.layers.clone(), case.context.clone());
        let wanted = wanted.entry(size).or_insert_with(|| {
            env.file("recipe.toml", recipe.replace(&format!("ranks = {}", case.ranks), "ranks = 1"));
            let weights = format!("own-{}-{}", case.layers, case.context);
            train(&env, command(&env, "dtrain", &python, &[]), &weights)
        });
        env.file("recipe.toml", &recipe);
        let settings: Vec<&str> = case.settings.iter().map(String::as_str).collect();
        let trained =
            train(&env, command(&env, &case.engine, &python, &settings), &format!("weights-{number}"));
        let what = format!("{} with {}", case.engine, case.settings.join(" "));
        assert_near(&what, &wanted.losses, &trained.losses);
        assert_near(&what, &wanted.valid, &trained.valid);
        let apart = difference(&env, &python, &wanted.weights, &trained.weights);
        assert!(apart < WEIGHTS, "{what}: weights differ by {apart}");
        let most = wanted.losses.iter().zip(&trained.losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{what}: losses within {most:.1e}, weights within {apart:.1e}");
    }
}

#[test]
fn layouts_of_engines_train_as_one_rank_does() {
    compare(Form::Short);
}

#[test]
fn further_layouts_of_engines_train_as_one_rank_does() {
    compare(Form::Whole);
}
