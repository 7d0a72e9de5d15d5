//! Training continues with other settings, layouts and lengths, from the same weights.

use dtrain_protocol::Rank;
use dtrain_runner::ledger::{History, TrialActivity, TrialDetails, TrialStatus};
use dtrain_tests::{TestEnv, root};
use std::collections::BTreeMap;

/// The tiny recipe on this many ranks to this step.
fn train(house: &TestEnv, ranks: u32, name: &str, steps: u64) {
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let (ranks, steps) = (format!("cluster.ranks={ranks}"), format!("objective.stop={{ steps = {steps} }}"));
    let recipe = recipe.to_str().expect("UTF-8");
    let arguments =
        ["run", recipe, "--name", name, "--quiet", "--no-sample", "--set", &ranks, "--set", &steps];
    // The length of the schedule must not depend on where a part of the training stops.
    let constant =
        ["--set", "train.schedule=constant", "--set", "train.warmup=10 steps", "--set", "train.batch=12"];
    house.expect(0, arguments.into_iter().chain(constant));
}

fn trial(house: &TestEnv, name: &str) -> TrialDetails {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find(name).expect("a trial");
    history.trial(&id, &|_| TrialActivity::None).expect("a trial")
}

fn losses(house: &TestEnv, name: &str) -> BTreeMap<u64, f64> {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find(name).expect("a trial");
    let points = history.series(&id, "loss", Rank(0)).expect("losses");
    points.iter().map(|point| (point.step, point.value)).collect()
}

#[test]
fn a_run_of_two_ranks_continues_under_every_layout() {
    let house = TestEnv::default();
    train(&house, 2, "whole", 80);
    train(&house, 2, "half", 40);
    let whole = losses(&house, "whole-1");
    for layout in [
        &["cluster.ranks=1"][..],
        &["cluster.ranks=3"],
        &["cluster.ranks=4"],
        &["layout.tensor=2"],
        &["layout.pipeline=2"],
    ] {
        let mut arguments = vec!["resume", "half-1", "--quiet", "--set", "objective.stop.steps=80"];
        arguments.extend(layout.iter().flat_map(|setting| ["--set", setting]));
        house.expect(0, &arguments);
        let child = trial(&house, "last");
        let parent = child.parent.as_ref().expect("it continues another");
        assert_eq!((parent.label.as_str(), parent.step.0), ("half-1", 40));
        let setting = layout[0].replace('=', " = ");
        assert!(parent.changes.iter().any(|change| change.contains(&setting)), "{:?}", parent.changes);
        let continued = losses(&house, "last");
        assert_eq!(continued.keys().copied().collect::<Vec<_>>(), (41..=80).collect::<Vec<_>>());
        let apart = continued.iter().map(|(step, loss)| ((loss - whole[step]) / whole[step]).abs());
        let worst = apart.fold(0.0, f64::max);
        println!("{layout:?} ({}): losses differ by at most {worst:.1e}", child.row.layout);
        assert!(worst < 1e-4, "{layout:?}: losses differ by {worst:.1e}");
    }
    assert_eq!(trial(&house, "half-1").row.step, 40, "the parent is as it was");
}

#[test]
fn a_completed_trial_is_trained_longer_from_any_of_its_checkpoints() {
    let house = TestEnv::default();
    train(&house, 1, "first", 40);
    house.expect(
        0,
        [
            "resume",
            "first-1",
            "--quiet",
            "--set",
            "objective.stop.steps=50",
            "--set",
            "train.learning_rate=0.0001",
        ],
    );
    let child = trial(&house, "last");
    assert_eq!(
        (child.row.step, child.row.status, child.row.learning_rate),
        (50, TrialStatus::Completed, 0.0001)
    );
    // A child is a trial like any other: it can have children, and be the one that others begin with.
    house.expect(0, ["resume", "last", "--quiet", "--set", "objective.stop.steps=60"]);
    assert_eq!(trial(&house, "last").parent.expect("it continues another").step.0, 50);
    let known = |words: &str, arguments: &[&str]| {
        let output = house.expect(2, arguments);
        let found = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(found.contains(words), "expected `{words}` in: {found}");
    };
    known(
        "first-1 is at step 40, and `objective.stop.steps` is 30",
        &["resume", "first-1", "--set", "objective.stop.steps=30"],
    );
    known(
        "cannot continue with another `train.batch`",
        &["resume", "first-1", "--set", "train.batch=4", "--set", "objective.stop.steps=99"],
    );
    known(
        "cannot continue with another `model`",
        &["resume", "first-1", "--set", "model.layers=3", "--set", "objective.stop.steps=99"],
    );
    known("has no checkpoint of step 7", &["resume", "first-1@7"]);
    known("did you mean", &["resume", "first-1", "--set", "objective.stop.step=99"]);
}

#[test]
fn another_recipe_begins_with_the_weights_of_a_trial() {
    let house = TestEnv::default();
    train(&house, 1, "base", 60);
    let base = losses(&house, "base-1");
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let run = |from: &str, code, more: &[&str]| {
        let fixed = [
            "run",
            recipe.to_str().expect("UTF-8"),
            "--name",
            "tuned",
            "--from",
            from,
            "--quiet",
            "--no-sample",
        ];
        house
            .expect(code, fixed.iter().chain(more).copied().chain(["--set", "objective.stop={ steps = 20 }"]))
    };
    run("base-1@60", 0, &["--set", "train.seed=5", "--set", "cluster.ranks=2"]);
    let tuned = trial(&house, "tuned-1");
    let parent = tuned.parent.expect("it begins with another");
    assert!(parent.weights_only && parent.step.0 == 60, "{parent:?}");
    let first = losses(&house, "tuned-1")[&1];
    assert!(
        first < 0.7 * base[&1] && first < 1.5 * base[&60],
        "{first} after {} and {}",
        base[&1],
        base[&60]
    );
    let words = String::from_utf8_lossy(&run("base-1", 2, &["--set", "model.layers=1"]).stderr).into_owned();
    assert!(
        words.contains("the model is not that of base-1") && words.contains("model.layers = 1 (was 2)"),
        "{words}"
    );
}
