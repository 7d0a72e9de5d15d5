//! An engine in a Slurm job of two nodes: it is stopped and resumed, on the farm of the tests of Slurm.

use super::{Form, PATIENCE, RECIPE, STEPS, assert_near, interpreter, losses, python};
use crate::interop::series;
use crate::slurm::Farm;
use std::fs;
use std::process::Stdio;

#[test]
fn an_engine_trains_in_a_slurm_job_and_goes_on_in_another() {
    let Some(python) = python(Form::Whole) else { return };
    let Some(farm) = Farm::start(2) else { return };
    let env = super::env();
    let wanted = losses(&env, "dtrain", &python, &["layout.zero=3", "layout.data=2"]);
    let engine = format!(
        "engine = \"torchtitan\"\n{RECIPE}python = \"{}\"\nlauncher = \"slurm\"\nslurm.nodes = 2\n[checkpoint]\nevery = 5\n[layout]\nzero = 3\ndata = 2\n",
        interpreter(&env, "torchtitan", &python).display()
    );
    env.file("job.toml", engine);
    let dtrain = |arguments: &[&str]| farm.dtrain(&env, arguments);
    let mut run = dtrain(&["run", "job.toml", "--no-sample"]);
    let child =
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let before = env.newest_trial();
    let is_saved = || {
        let newest = env.newest_trial();
        newest != before && newest.join("checkpoints/engine/step-10/manifest.json").exists()
    };
    farm.wait_for("a checkpoint of step 10", PATIENCE, is_saved);
    let says = |arguments: &[&str]| {
        let output = dtrain(arguments).stdin(Stdio::null()).output().expect("it starts");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {words}\n{}", farm.logs());
        words
    };
    says(&["stop", "last"]);
    let stopped = child.wait_with_output().expect("it is our child");
    assert_eq!(stopped.status.code(), Some(130), "{}", String::from_utf8_lossy(&stopped.stderr));
    let resumed = says(&["resume", "last"]);
    assert!(resumed.contains(&format!("completed after {STEPS} of {STEPS} steps")), "{resumed}");
    assert_near("two jobs of torchtitan", &wanted, &series(&env, "loss"));
    let kept = fs::read_dir(env.newest_trial().join("checkpoints/engine")).expect("a folder").count();
    assert!(kept >= 1, "the jobs share their checkpoints");
}
