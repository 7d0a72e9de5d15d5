//! The program itself on a disk that is full, or that fails while it trains.

use super::disk::{Disk, Memory};
use super::with_disks;
use dtrain_tests::{TestEnv, digest, newest_checkpoint, root};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the program may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program, with its state on a disk.
fn dtrain(house: &TestEnv, state: &Path, arguments: &[&str]) -> Command {
    let mut command = house.dtrain(arguments);
    command.env("DTRAIN_STATE", state).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn recipe() -> String {
    root().join("tests/data/tiny/recipe.toml").to_str().expect("the path is UTF-8").to_owned()
}

/// Arguments of a run of `steps` steps on two ranks, with a checkpoint after every `every` steps.
fn arguments(steps: u32, every: u32, more: &[&str]) -> Vec<String> {
    let mut all = vec!["run".to_owned(), recipe(), "--no-sample".to_owned()];
    let own = [
        format!("objective.stop={{ steps = {steps} }}"),
        format!("checkpoint.every=\"{every} steps\""),
        "cluster.ranks=2".to_owned(),
        "layout.data=2".to_owned(),
    ];
    for setting in own.into_iter().chain(more.iter().map(|text| (*text).to_owned())) {
        all.extend(["--set".to_owned(), setting]);
    }
    all
}

fn strs(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

fn newest_trial(state: &Path) -> PathBuf {
    let entries = fs::read_dir(state.join("trials")).expect("trials were made");
    entries.map(|entry| entry.expect("an entry").path()).max().expect("a trial")
}

/// Names of all folders of checkpoints of the newest trial.
fn folders(state: &Path) -> Vec<String> {
    let entries = fs::read_dir(newest_trial(state).join("checkpoints")).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("plain"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Steps of a training that has room for two of its five checkpoints: weights and moments of 0.82 M parameters are 9.9 MB,
/// and 16 MiB stay free.
const ROOM: u64 = 38 << 20;
const LARGER: [&str; 3] = ["model.hidden=128", "model.layers=4", "checkpoint.keep=2"];

/// Starts a training on a disk with too little room, and waits until its last state cannot be saved. Also what it said until
/// then.
fn without_room(house: &TestEnv, memory: &Memory) -> (Child, BufReader<ChildStderr>, String) {
    let mut run = dtrain(house, &memory.path(), &strs(&arguments(25, 5, &LARGER)));
    let mut run = run.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(run.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("cannot be saved yet") {
        assert!(lines.read_line(&mut said).expect("UTF-8") > 0, "{said}");
    }
    (run, lines, said)
}

#[test]
fn training_goes_on_where_the_disk_is_full_and_the_last_state_waits_for_room() {
    with_disks(|| {
        let memory = Memory::new(ROOM).expect("one was made before");
        let house = TestEnv::default();
        let (mut run, mut lines, mut said) = without_room(&house, &memory);
        assert!(said.contains("was not saved") && said.contains("bytes free"), "the user is told: {said}");
        let (step, newest) = newest_checkpoint(&newest_trial(&memory.path()));
        assert!(crate::checkpoint::examined(&newest).is_ok_and(|found| found.damaged.is_empty()));
        assert!((5..25).contains(&step.0), "the last that had room is kept: {step}");
        sleep(Duration::from_millis(500));
        assert!(run.try_wait().expect("it is ours").is_none(), "it waits: {said}");
        memory.resize(4 * ROOM).expect("there is memory");
        lines.read_to_string(&mut said).expect("UTF-8");
        assert_eq!(run.wait().expect("it ends").code(), Some(0), "{said}");
        assert!(said.contains("completed after 25 of 25 steps"), "{said}");
        let (step, newest) = newest_checkpoint(&newest_trial(&memory.path()));
        assert!(crate::checkpoint::examined(&newest).is_ok_and(|found| found.damaged.is_empty()));
        assert_eq!(step.0, 25, "completed means that the last state can be read");
        let left = folders(&memory.path());
        assert!(left.iter().all(|name| !name.ends_with(".partial")), "what failed takes no room: {left:?}");
    });
}

#[test]
fn a_training_that_is_stopped_before_its_last_state_had_room_is_not_completed() {
    with_disks(|| {
        let memory = Memory::new(ROOM).expect("one was made before");
        let house = TestEnv::default();
        let (mut run, mut lines, mut said) = without_room(&house, &memory);
        // A third terminal may take it up meanwhile, and waits with it.
        let id = i32::try_from(run.id()).ok().and_then(Pid::from_raw).expect("it runs");
        kill_process(id, Signal::INT).expect("it is ours");
        lines.read_to_string(&mut said).expect("UTF-8");
        assert_eq!(run.wait().expect("it ends").code(), Some(130), "{said}");
        assert!(said.contains("the state after step 25 was not saved"), "{said}");
        assert!(!said.contains("completed"), "{said}");
        memory.resize(4 * ROOM).expect("there is memory");
        let resumed = dtrain(&house, &memory.path(), &["resume", "last"]).output().expect("it starts");
        assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
        assert_eq!(newest_checkpoint(&newest_trial(&memory.path())).0.0, 25);
    });
}

#[test]
fn a_training_without_room_for_one_checkpoint_is_refused_before_it_starts() {
    with_disks(|| {
        let memory = Memory::new(18 << 20).expect("one was made before");
        let house = TestEnv::default();
        let run = dtrain(&house, &memory.path(), &strs(&arguments(25, 5, &LARGER))).output();
        let run = run.expect("the program starts");
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(4), "{said}");
        assert!(said.contains("a checkpoint needs") && said.contains("free some space"), "{said}");
        assert!(!memory.path().join("trials").exists(), "nothing was recorded");
    });
}

#[test]
fn a_training_whose_disk_failed_goes_on_to_the_same_end_when_it_is_back() {
    with_disks(|| {
        let house = TestEnv::default();
        let all = arguments(600, 50, &[]);
        house.expect(0, strs(&all)); // measures the machine, and is what the other must reach
        let expected = digest(&newest_checkpoint(&house.newest_trial()).1);

        let disk = Disk::new(super::DISK).expect("one was made before");
        let state = disk.path().join("state");
        fs::create_dir(&state).expect("an empty disk");
        fs::copy(house.history(), state.join("history.db")).expect("room on disk");
        // A copy is not durable by itself, and what the program adds to it could be no better.
        File::open(state.join("history.db")).and_then(|file| file.sync_all()).expect("room on disk");
        File::open(&state).and_then(|folder| folder.sync_all()).expect("room on disk");
        let mut run = dtrain(&house, &state, &strs(&all)).stderr(Stdio::piped()).spawn().expect("it starts");
        let begun = Instant::now();
        while !has_two(&state) {
            assert!(begun.elapsed() < PATIENCE, "there are checkpoints");
            sleep(Duration::from_millis(5));
        }
        disk.cut();
        let begun = Instant::now();
        while run.try_wait().expect("it is ours").is_none() {
            if begun.elapsed() > PATIENCE {
                run.kill().expect("it is ours");
                panic!("the program does not notice that its disk is gone");
            }
            sleep(Duration::from_millis(20));
        }
        let output = run.wait_with_output().expect("it ended");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{said}");
        disk.restart();
        let resumed = dtrain(&house, &state, &["resume", "last"]).output().expect("it starts");
        assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
        assert_eq!(digest(&newest_checkpoint(&newest_trial(&state)).1), expected, "the same weights");
    });
}

/// Whether the newest trial has two committed checkpoints.
fn has_two(state: &Path) -> bool {
    let Ok(trials) = fs::read_dir(state.join("trials")) else { return false };
    let newest = trials.flatten().map(|entry| entry.path()).max();
    let Some(entries) = newest.and_then(|trial| fs::read_dir(trial.join("checkpoints")).ok()) else {
        return false;
    };
    entries.flatten().filter(|entry| entry.path().join("COMMIT").exists()).count() > 1
}
