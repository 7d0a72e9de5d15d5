//! Trials of engines that are detached, watched, stopped, resumed, and resumed in another layout.

use super::{ENGINES, Form, PATIENCE, STEPS, assert_near, command, env, losses, python};
use crate::interop::series;
use dtrain_tests::TestEnv;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Waits until the newest trial has the complete checkpoint of a step.
fn wait_for_checkpoint(env: &TestEnv, step: u32) {
    let until = Instant::now() + PATIENCE;
    let file = format!("checkpoints/engine/step-{step}/manifest.json");
    while !env.find_newest_trial().is_some_and(|trial| trial.join(&file).exists()) {
        assert!(Instant::now() < until, "no checkpoint of step {step}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_detached_engine_is_attached_stopped_and_resumed() {
    let Some(python) = python(Form::Whole) else { return };
    let settings = ["layout.zero=3", "layout.data=2", "checkpoint.every=5 steps"];
    for engine in ENGINES {
        let env = env();
        let wanted = losses(&env, "dtrain", &python, &settings);
        let mut detached = command(&env, engine, &python, &settings);
        detached.push("--detach".to_owned());
        env.expect(0, detached);
        let mut attached = env.dtrain(["attach", "last"]).spawn().expect("it starts");
        wait_for_checkpoint(&env, 5);
        env.expect(0, ["stop", "last"]);
        attached.wait().expect("it ends");
        let stopped = series(&env, "loss").len();
        assert!((5..STEPS as usize).contains(&stopped), "{engine} was stopped after step {stopped}");
        env.expect(0, ["resume", "last"]);
        assert_near(engine, &wanted, &series(&env, "loss"));
    }
}

#[test]
fn an_engine_goes_on_in_another_layout() {
    let Some(python) = python(Form::Whole) else { return };
    let env = env();
    let keep = ["layout.zero=3", "layout.data=2", "checkpoint.every=10 steps", "checkpoint.keep=3"];
    for engine in ENGINES {
        let wanted = losses(&env, engine, &python, &keep);
        let other = ["layout.zero=0", "layout.data=1", "layout.tensor=2"];
        let settings = other.into_iter().flat_map(|setting| ["--set", setting]);
        env.expect(0, ["resume", "last@10"].into_iter().chain(settings));
        let found = series(&env, "loss");
        assert_near(&format!("{engine} from step 10"), &wanted[10..], &found);
    }
}
