//! Effects of a terminal on training: Ctrl-C, closing it, and a pipe whose reader is gone.

use crate::kill::card;
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::{TestEnv, newest_checkpoint, root};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Steps of every training here.
const STEPS: u64 = 900;

/// A run of the tiny recipe on two ranks.
fn run(house: &TestEnv, more: &[&str]) -> Command {
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let mut command = house.dtrain(["run", recipe.to_str().expect("UTF-8"), "--no-sample"]);
    let stop = format!("objective.stop={{ steps = {STEPS} }}");
    for setting in [&stop, "cluster.ranks=2", "layout.data=2", "checkpoint.every=\"50 steps\""] {
        command.args(["--set", setting]);
    }
    command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn trials(house: &TestEnv) -> Vec<PathBuf> {
    let entries = fs::read_dir(house.state().join("trials"));
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Starts a run, and waits until something of it is saved.
fn begin(house: &TestEnv) -> Child {
    let before = trials(house);
    let child = run(house, &[]).spawn().expect("it starts");
    let begun = Instant::now();
    let is_saved = |trial: &PathBuf| {
        let names = fs::read_dir(trial.join("checkpoints")).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| !name.ends_with(".partial"))
    };
    while !trials(house).iter().any(|trial| !before.contains(trial) && is_saved(trial)) {
        assert!(begun.elapsed() < PATIENCE, "a checkpoint should be there");
        sleep(Duration::from_millis(5));
    }
    child
}

fn send(child: &Child, signal: Signal) {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("it runs");
    kill_process(id, signal).expect("it is ours");
}

/// The exit code, and what was said; nothing of it is a panic.
fn ended(mut child: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
    let code = child.wait().expect("it ends").code();
    assert!(!said.contains("panicked"), "{said}");
    (code, said)
}

/// How the newest trial stands, and how many attempts it took.
fn newest(house: &TestEnv) -> (String, u64, usize) {
    let history = History::open_read_only(&house.history()).expect("a history");
    let trial =
        history.trial(&history.find("last").expect("a trial"), &|_| TrialActivity::None).expect("a trial");
    (trial.row.status.to_string(), trial.row.step, trial.attempts.len())
}

#[test]
fn ctrl_c_saves_and_a_closed_terminal_or_pipe_ends_no_training() {
    let house = TestEnv::default();
    // Measures the machine, while the reader of its output stops after the first line.
    let mut unread = run(&house, &["--json"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(unread.stdout.take().expect("a pipe"));
    let mut first = String::new();
    lines.read_line(&mut first).expect("a line");
    drop(lines);
    let (code, said) = ended(unread);
    assert_eq!(code, Some(0), "{first}{said}");
    assert_eq!(newest(&house), ("completed".into(), STEPS, 1));

    let stopped = begin(&house);
    send(&stopped, Signal::INT);
    let (code, said) = ended(stopped);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("next: dtrain resume"), "{said}");
    let (status, step, _) = newest(&house);
    assert_eq!(
        (status.as_str(), newest_checkpoint(&house.newest_trial()).0.0),
        ("stopped", step),
        "what was done is saved"
    );
    assert!(step < STEPS, "it was stopped at step {step}");
    house.expect(0, ["resume", "last", "--quiet"]);
    assert_eq!(newest(&house), ("completed".into(), STEPS, 2));

    let before = trials(&house);
    let closed = begin(&house);
    let agent = card(&house, &before).expect("it runs").agent;
    send(&closed, Signal::HUP);
    let (code, said) = ended(closed);
    assert_eq!(code, Some(131), "{said}");
    house.expect(0, ["resume", "last", "--quiet"]);
    assert_eq!(newest(&house), ("completed".into(), STEPS, 1), "the ranks were not disturbed");
    let begun = Instant::now();
    while agent.is_alive() {
        assert!(begun.elapsed() < PATIENCE, "the agent ends with its trial");
        sleep(Duration::from_millis(10));
    }
}
