//! Training on hosts that ends while nobody looks.

use crate::lab::Lab;
use dtrain_protocol::{Event, frame};
use dtrain_runner::agent::SpoolRecord;
use dtrain_tests::{SHORT_TRAINING, numbered_lines};
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

/// How long the training may take.
const PATIENCE: Duration = Duration::from_secs(150);

const HOSTS: &str = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-2]\"]\n";

/// Bytes of the record of the attempt, and how many of them come in a second.
const RECORD: (usize, u64) = (12 << 20, 2 << 20);

/// What a command of dtrain on the controller said, and its exit code.
fn says(lab: &Lab, arguments: &[&str]) -> (String, Option<i32>) {
    let Output { stdout, stderr, status } =
        lab.command("dtrain").args(arguments).output().expect("the program starts");
    let [out, error] = [&stdout, &stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (out + &error, status.code())
}

/// The record of the only attempt of the only trial, on the host that led.
fn record(lab: &Lab) -> PathBuf {
    let trials = lab.home("node1").join(".local/state/dtrain/trials");
    let trial = fs::read_dir(trials).expect("a trial").flatten().next().expect("a trial").path();
    trial.join("spool/attempt-1.spool")
}

/// Makes a record as long as one of many steps, by telling the first step again.
fn lengthen(bytes: &[u8]) -> Vec<u8> {
    let (mut rest, mut longer) = (bytes, Vec::new());
    while !rest.is_empty() {
        let begin = bytes.len() - rest.len();
        let record: SpoolRecord = frame::read(&mut rest).expect("as it was written");
        let own = &bytes[begin..bytes.len() - rest.len()];
        longer.extend(own);
        let is_step = matches!(&record, SpoolRecord::Event(said) if matches!(said.event, Event::Step(_)));
        while is_step && longer.len() < RECORD.0 {
            longer.extend(own);
        }
    }
    longer
}

#[test]
fn a_training_that_ended_unseen_is_completed_whatever_the_size_of_its_record() {
    let Some(lab) = Lab::start(2) else { return };
    let (text, recipe) = (numbered_lines(), format!("name = \"lab\"\n{SHORT_TRAINING}"));
    let files = [("text.txt", text.as_str()), ("recipe.toml", recipe.as_str()), ("hosts.toml", HOSTS)];
    for machine in ["controller", "node1", "node2"] {
        files.iter().for_each(|(name, text)| lab.put(machine, name, text));
    }
    let run = ["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample", "--detach"];
    let (words, code) = says(&lab, &run);
    assert_eq!(code, Some(131), "{words}");
    let until = Instant::now() + PATIENCE;
    while !(lab.processes("node1").is_empty() && lab.processes("node2").is_empty()) {
        assert!(Instant::now() < until, "it never ends: {:?}", lab.processes("node1"));
        thread::sleep(Duration::from_millis(50));
    }
    let path = record(&lab);
    let longer = lengthen(&fs::read(&path).expect("it trained"));
    assert!(longer.len() > RECORD.0);
    fs::write(&path, longer).expect("room on disk");

    lab.cut("node1");
    let (words, code) = says(&lab, &["attach", "lab-1"]);
    assert_eq!(code, Some(6), "{words}");
    assert!(words.contains("what attempt 1 left behind cannot be read now"), "{words}");
    lab.heal("node1");

    lab.slow("node1", RECORD.1);
    let (words, code) = says(&lab, &["attach", "lab-1"]);
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains("completed after 150 of 150 steps"), "{words}");
}
