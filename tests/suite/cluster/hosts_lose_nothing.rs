//! Training on hosts that ends without a controller: the next day everything is there, whatever failed
//! meanwhile.

use crate::cluster::train::nothing_is_left;
use crate::lab::{Lab, Options, Process};
use dtrain_protocol::{Event, frame};
use dtrain_runner::spool::SpoolRecord;
use dtrain_tests::{SHORT_TRAINING, numbered_lines};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

/// How long the training may take.
const PATIENCE: Duration = Duration::from_secs(150);

/// Bytes of a large record, which a small one is made into.
const LARGE: u64 = 2 << 30;

/// Bytes of one that comes over a slow link, and how many of them come in a second: 50 Mbit.
const SLOW: (u64, u64) = (200 << 20, 50_000_000 / 8);

/// What a command of dtrain on the controller said, and its exit code.
fn says(lab: &Lab, arguments: &[&str]) -> (String, Option<i32>) {
    let Output { stdout, stderr, status } =
        lab.command("dtrain").args(arguments).output().expect("the program starts");
    let [out, error] = [&stdout, &stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (out + &error, status.code())
}

/// The JSON document that a command of dtrain prints.
fn json(lab: &Lab, arguments: &[&str]) -> Value {
    let Output { stdout, stderr, .. } =
        lab.command("dtrain").args(arguments).arg("--json").output().expect("the program starts");
    serde_json::from_slice(&stdout).unwrap_or_else(|error| {
        panic!("{arguments:?} prints no document: {error}: {}", String::from_utf8_lossy(&stderr))
    })
}

fn names(hosts: usize) -> Vec<String> {
    (1..=hosts).map(|index| format!("node{index}")).collect()
}

/// The folder of the only trial on a host.
fn trial(lab: &Lab, host: &str) -> PathBuf {
    let trials = lab.trials(host);
    fs::read_dir(trials).expect("a trial").flatten().next().expect("a trial").path()
}

/// Puts recipe, hosts and data in place.
fn prepare(lab: &Lab, hosts: usize) {
    let cluster = format!("[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-{hosts}]\"]\nranks = {hosts}\n");
    let (text, recipe) = (numbered_lines(), format!("name = \"lab\"\n{SHORT_TRAINING}"));
    let files = [("text.txt", text.as_str()), ("recipe.toml", recipe.as_str()), ("hosts.toml", &cluster)];
    for machine in names(hosts).iter().map(String::as_str).chain(["controller"]) {
        files.iter().for_each(|(name, text)| lab.put(machine, name, text));
    }
}

/// Waits until no process of the training lives on any host. A relay may still wait for a controller that is cut off.
fn has_ended(lab: &Lab, hosts: usize) {
    let until = Instant::now() + PATIENCE;
    let is_relay = |process: &Process| process.command.contains("--stdio");
    while !names(hosts).iter().all(|host| lab.processes(host).iter().all(is_relay)) {
        assert!(Instant::now() < until, "it never ends: {:?}", lab.processes("node1"));
        thread::sleep(Duration::from_millis(50));
    }
}

/// A training on so many hosts that was started, left alone, and has ended.
fn ended_unseen(hosts: usize) -> Option<Lab> {
    let lab = Lab::with(&Options { hosts, disk: 3 << 30, ..Options::default() })?;
    prepare(&lab, hosts);
    let run = ["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample", "--detach"];
    let (words, code) = says(&lab, &run);
    assert_eq!(code, Some(0), "{words}");
    // No controller sees the end.
    lab.kill_processes("controller");
    has_ended(&lab, hosts);
    Some(lab)
}

/// Makes the record on the host that led as long as one of many steps, by telling the first step again.
fn lengthen(lab: &Lab, least: u64) {
    let path = trial(lab, "node1").join("spool/attempt-1.spool");
    let bytes = fs::read(&path).expect("it trained");
    let mut to = BufWriter::new(File::create(&path).expect("room on disk"));
    let (mut rest, mut length) = (bytes.as_slice(), 0);
    while !rest.is_empty() {
        let begin = bytes.len() - rest.len();
        let record: SpoolRecord = frame::read(&mut rest).expect("as it was written");
        let own = &bytes[begin..bytes.len() - rest.len()];
        let is_step = matches!(&record, SpoolRecord::Event(said) if matches!(said.event, Event::Step(_)));
        let times = if is_step { (least.saturating_sub(length) / own.len() as u64).max(1) } else { 1 };
        for _ in 0..times {
            to.write_all(own).expect("room on disk");
        }
        length += times * own.len() as u64;
    }
    to.flush().expect("room on disk");
}

/// Attaches, and holds what is then known against the whole training.
#[expect(clippy::print_stdout, reason = "the log of the tests tells how long it took")]
fn everything_is_known(lab: &Lab, hosts: usize, attempts: usize) {
    let begun = Instant::now();
    let (words, code) = says(lab, &["attach", "lab-1"]);
    println!("known {:.1} s after it was asked for", begun.elapsed().as_secs_f64());
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains("completed after 150 of 150 steps"), "{words}");
    let shown = json(lab, &["show", "lab-1"]);
    let shown = &shown["trial"];
    assert_eq!(shown["attempts"].as_array().map(Vec::len), Some(attempts), "{shown}");
    assert_eq!((&shown["row"]["status"], &shown["row"]["step"]), (&"completed".into(), &150.into()));
    let checkpoints = shown["checkpoints"].as_array().expect("some");
    assert_eq!(checkpoints.last().map(|last| &last["step"]), Some(&150.into()), "{shown}");
    let (listed, _) = says(lab, &["checkpoint", "verify", "lab-1"]);
    assert!(listed.contains("step-000000150.a1: intact"), "the final weights: {listed}");
    nothing_is_left(lab, &names(hosts).iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn with_a_record_of_two_gigabytes() {
    let Some(lab) = ended_unseen(2) else { return };
    lengthen(&lab, LARGE);
    everything_is_known(&lab, 2, 1);
}

#[test]
fn with_a_record_that_comes_slowly() {
    let Some(lab) = ended_unseen(2) else { return };
    lengthen(&lab, SLOW.0);
    lab.slow("node1", SLOW.1);
    everything_is_known(&lab, 2, 1);
}

#[test]
fn with_the_disk_of_the_leader_gone() {
    let Some(lab) = ended_unseen(4) else { return };
    fs::remove_dir_all(lab.home("node1").join(".local/state/dtrain")).expect("it is unused");
    everything_is_known(&lab, 4, 1);
}

#[test]
fn with_the_leader_gone() {
    let Some(lab) = ended_unseen(2) else { return };
    lab.kill_host("node1");
    everything_is_known(&lab, 1, 1);
}

#[test]
fn with_no_copy_of_the_record_within_reach() {
    let Some(lab) = ended_unseen(2) else { return };
    fs::remove_file(trial(&lab, "node2").join("spool/attempt-1.mirror")).expect("the copy");
    lab.cut("node1");
    let (words, code) = says(&lab, &["attach", "lab-1"]);
    assert_eq!(code, Some(6), "{words}");
    assert!(words.contains("what attempt 1 left behind cannot be read now"), "{words}");
    lab.heal("node1");
    everything_is_known(&lab, 2, 1);
}

#[test]
fn with_the_controller_cut_off_for_three_checkpoints() {
    let Some(lab) = Lab::start(2) else { return };
    prepare(&lab, 2);
    let mut run = crate::cluster::train::Run::of(&lab, &["checkpoint.every=20"]);
    run.hears("starting");
    run.hears("step ");
    let count = || fs::read_dir(trial(&lab, "node1").join("checkpoints")).map_or(0, Iterator::count);
    let newest = |host: &str| {
        let folders = fs::read_dir(trial(&lab, host).join("checkpoints")).into_iter().flatten().flatten();
        let names = folders.map(|folder| folder.file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.ends_with(".partial")).max().unwrap_or_default()
    };
    let before = newest("node1");
    lab.cut("controller");
    has_ended(&lab, 2);
    assert!(count() > 0 && newest("node1") > before, "checkpoints went on: {before}");
    run.kill();
    lab.heal("controller");
    everything_is_known(&lab, 2, 1);
}
