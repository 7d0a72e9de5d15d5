//! Scripts of other frameworks, unchanged, on two hosts. `tests/run foreign` installs the frameworks and runs these alone; where
//! one is missing its test is skipped.

use crate::cluster::train::{Run, nothing_is_left};
use crate::lab::{Lab, Options};
use dtrain_protocol::{AttemptId, Failure, Rank};
use dtrain_runner::AttemptEnd;
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_skip::skip_large;
use dtrain_tests::{python_with, root};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

const HOSTS: &str = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-2]\"]\n";

/// How long a rank may take to be started.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the example `name` on two hosts, kills the second rank once, and looks at what was kept of it.
fn trains_on_two_hosts(name: &str, module: &str) {
    let python = match python_with(module) {
        Ok(python) => python,
        Err(reason) => return skip_large(reason),
    };
    let Some(lab) = Lab::with(&Options { hosts: 2, direct: true, ..Options::default() }) else { return };
    for machine in ["controller", "node1", "node2"] {
        lab.put(machine, "hosts.toml", HOSTS);
        for file in ["recipe.toml", "train.py"] {
            let path = root().join("examples/foreign").join(name).join(file);
            lab.put(machine, file, fs::read(path).expect("it is part of the example"));
        }
    }
    let argv = format!("model.argv=[{:?}, \"train.py\"]", python.to_str().expect("UTF-8"));
    let mut run = Run::of(&lab, &[&argv]);
    kill_process(second_rank(&lab), Signal::KILL).expect("it just started");
    let (_, words) = run.hears("retrying in");
    assert!(words.contains("killed by signal 9"), "{words}");
    run.completes(100);
    nothing_is_left(&lab, &["node1", "node2"]);

    // SQLite resolves links, and the way into a lab is one that only the kernel can follow.
    let (state, copy) =
        (lab.home("controller").join(".local/state/dtrain"), tempfile::tempdir().expect("a folder"));
    for file in fs::read_dir(state).expect("a folder").flatten().filter(|file| file.path().is_file()) {
        fs::copy(file.path(), copy.path().join(file.file_name())).expect("room on disk");
    }
    let history = History::open_read_only(&copy.path().join("history.db")).expect("a history");
    let trial = history.find("last").expect("a trial");
    let losses = history.series(&trial, "loss", Rank(0)).expect("losses");
    assert_eq!((losses.len(), losses[99].step), (100, 100));
    assert!(losses[99].value < losses[0].value / 100.0, "{:?}", losses.last());
    let attempts = history.trial(&trial, &|_| TrialActivity::None).expect("it is there").attempts;
    assert_eq!(attempts.len(), 2);
    let ended = attempts[0].ended.as_ref();
    let is_killed =
        matches!(ended, Some(AttemptEnd::Lost(Failure::Command { code: None, signal: Some(9), .. })));
    assert!(is_killed && attempts[0].number == AttemptId(1), "{ended:?}");
}

/// The process of the rank on the second host, as soon as there is one.
fn second_rank(lab: &Lab) -> Pid {
    let until = Instant::now() + PATIENCE;
    loop {
        let all = lab.processes("node2");
        if let Some(rank) = all.iter().find(|process| process.command.ends_with("train.py")) {
            return i32::try_from(rank.id).ok().and_then(Pid::from_raw).expect("a number of a process");
        }
        assert!(Instant::now() < until, "no rank on node2: {all:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn foreign_pytorch_trains_on_two_hosts_after_a_rank_was_killed() {
    trains_on_two_hosts("pytorch", "torch");
}

#[test]
fn foreign_jax_trains_on_two_hosts_after_a_rank_was_killed() {
    trains_on_two_hosts("jax", "jax");
}

#[test]
fn foreign_tensorflow_trains_on_two_hosts_after_a_rank_was_killed() {
    trains_on_two_hosts("tensorflow", "tensorflow");
}
