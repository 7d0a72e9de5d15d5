//! Studies that are stopped, and that are started again.

use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::TestEnv;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

const RECIPE: &str = r#"
[model]
kind = "command"
argv = ["echo", "step 1 score {params.x}"]
progress = ["step {step} score {score}"]

[params]
x = { uniform = [0.1, 1.0] }

[objective]
metric = "score"
goal = "min"
stop = { steps = 1 }

[cluster]
ranks = 1
"#;

#[test]
fn a_study_that_goes_on_says_how_many_trials_are_done() {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", RECIPE);
    let recipe = recipe.to_str().expect("UTF-8");
    let tune = |trials| {
        let output = house.expect(0, ["tune", recipe, "--study", "s", "--trials", trials]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let first = tune("2");
    assert!(first.contains("study s; if interrupted"), "{first}");
    let second = tune("3");
    assert!(second.contains("study s, continuing: 2 of 3 trials done; if interrupted"), "{second}");
}

#[test]
fn a_study_of_another_recipe_is_refused_by_its_key_and_can_be_learned_from() {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", RECIPE);
    let recipe = recipe.to_str().expect("UTF-8");
    house.expect(0, ["tune", recipe, "--study", "s", "--trials", "2"]);
    house.file("recipe.toml", RECIPE.replace("[0.1, 1.0]", "[0.1, 2.0]"));
    let refused = house.expect(2, ["tune", recipe, "--study", "s", "--trials", "3"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("params.x") && said.contains("`--from s`"), "{said}");
    house.expect(0, ["tune", recipe, "--study", "t", "--from", "s", "--trials", "1"]);
}

#[test]
fn a_study_that_is_stopped_says_how_it_goes_on_and_who_stopped_it() {
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 7)] {
        let house = TestEnv::default();
        house.file("train.py", "import time\nprint('step 1 score 1', flush=True)\ntime.sleep(600)\n");
        let recipe = RECIPE.replace("\"echo\", \"step 1 score", "\"python3\", \"train.py\", \"");
        let recipe = house.file("recipe.toml", recipe.replace("steps = 1 ", "steps = 2 "));
        let mut tune = house.dtrain(["tune", recipe.to_str().expect("UTF-8"), "--study", "s"]);
        let tune = tune.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let tune = tune.expect("it starts");
        let begun = Instant::now();
        while !is_training(&house) {
            assert!(begun.elapsed() < Duration::from_secs(60), "a trial should train");
            sleep(Duration::from_millis(20));
        }
        let process = i32::try_from(tune.id()).ok().and_then(Pid::from_raw).expect("it runs");
        kill_process(process, signal).expect("it is ours");
        let output = tune.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(expected), "{said}");
        assert!(said.contains("next: dtrain tune"), "{said}");
    }
}

/// Whether the newest trial has trained a step.
fn is_training(house: &TestEnv) -> bool {
    let step = || -> Result<u64, Box<dyn std::error::Error>> {
        let history = History::open_read_only(&house.history())?;
        Ok(history.trial(&history.find("last")?, &|_| TrialActivity::Running)?.row.step)
    };
    step().is_ok_and(|step| step > 0)
}
