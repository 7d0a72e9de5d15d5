//! Weights that go into an engine and come out: from a folder of Hugging Face, into one, and on in the own worker.

use super::{Form, command, env, python};
use crate::interop::series;
use dtrain_tests::{TestEnv, root};
use std::path::Path;
use std::process::Command;

/// The largest difference between losses of the same weights that counts as none.
const NEAR: f64 = 1e-4;

/// Returns the loss that transformers compute for the weights in `folder`, on the validation samples of the newest trial.
fn loss_of_transformers(env: &TestEnv, python: &Path, folder: &str) -> f64 {
    // All readers together: the job of a single rank reads every sample.
    let job = env.newest_trial().join("command/engine/rank-0.job.json");
    let mut program = Command::new(python);
    program.arg(root().join("tests/data/engines/loss.py")).arg(job).arg(env.path().join(folder));
    let output = program.env("PYTHONPATH", root().join("runner/python")).output().expect("python starts");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

#[test]
fn weights_of_hugging_face_are_trained_by_an_engine_come_out_and_go_on_in_the_own_worker() {
    let Some(python) = python(Form::Whole) else { return };
    let env = env();
    env.expect(0, command(&env, "dtrain", &python, &["cluster.ranks=1"]));
    let before = *series(&env, "valid.loss").last().expect("it was validated");
    env.expect(0, ["model", "export", "last", "--to", "hf", "--out", "before"]);
    for engine in super::ENGINES {
        let mut run = command(&env, engine, &python, &["cluster.ranks=1", "train.learning_rate=1e-3"]);
        run.extend(["--from".to_owned(), env.path().join("before").display().to_string()]);
        env.expect(0, run);
        let first = series(&env, "loss")[0];
        assert!((first - before).abs() < 0.2, "{engine} begins at {first}, the weights had {before}");
        let wanted = *series(&env, "valid.loss").last().expect("it was validated");
        assert!(wanted < before, "{engine} trained: {before} before, {wanted} after");
        env.expect(0, ["model", "export", "last", "--to", "hf", "--out", engine]);
        let found = loss_of_transformers(&env, &python, engine);
        assert!((found - wanted).abs() < NEAR, "transformers: {found}, {engine}: {wanted}");

        // A rate so small that the weights stay as they are.
        let own = ["run", "--quiet", "--no-sample", "--from", "last", "--set", "train.learning_rate=1e-12"];
        env.expect(0, own);
        let on = *series(&env, "valid.loss").last().expect("it was validated");
        assert!((on - wanted).abs() < NEAR, "the own worker: {on}, {engine}: {wanted}");
    }
}
