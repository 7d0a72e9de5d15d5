//! Resuming with other settings: messages, and early refusals.

use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::{TestEnv, root};

fn said(output: &std::process::Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

#[test]
fn a_resume_tells_how_the_learning_rate_moves() {
    let house = TestEnv::default();
    let recipe = root().join("examples/table-mlp/recipe.toml");
    let recipe = recipe.to_str().expect("UTF-8");
    house.expect(0, ["run", recipe, "--set", "objective.stop={ steps = 20 }"]);
    let resumed = said(&house.expect(0, ["resume", "last", "--set", "objective.stop.steps=40"]));
    assert!(resumed.contains("learning rate rises from 3.00e-4 to "), "{resumed}");
    assert!(resumed.contains("at step 21, because the schedule now ends at step 40"), "{resumed}");
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    let parent =
        history.trial(&id, &|_| TrialActivity::None).expect("a trial").parent.expect("it continues another");
    assert!(
        parent.changes.iter().any(|change| change.starts_with("learning rate rises")),
        "{:?}",
        parent.changes
    );
    // Nothing else moves it.
    let resumed = said(&house.expect(
        0,
        [
            "resume",
            "table-mlp-1@20",
            "--set",
            "objective.stop.steps=40",
            "--set",
            "train.schedule=constant",
            "--set",
            "train.learning_rate=3e-4",
        ],
    ));
    assert!(!resumed.contains("learning rate rises"), "{resumed}");
}

#[test]
fn gpus_that_do_not_exist_are_refused() {
    let house = TestEnv::default();
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let recipe = recipe.to_str().expect("UTF-8");
    for on in [
        "1x8 H100 1x8 A100",
        "1x8 not an H100 but a V100",
        "8x8 H1000",
        "8x8 foo H100",
        "8x8 H100-SXM-40GB",
        "8x8 H100 1W",
    ] {
        house.expect(2, ["plan", recipe, "--on", on]);
    }
}

#[test]
fn the_last_at_sign_divides_user_and_host() {
    let house = TestEnv::default();
    for host in ["user@corp.example@127.0.0.1:1", "CORP\\me@127.0.0.1:1"] {
        let output = house.dtrain(["doctor", host]).output().expect("it starts");
        assert!(said(&output).contains("cannot connect to 127.0.0.1:1"), "{}", said(&output));
    }
}
