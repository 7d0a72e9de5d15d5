//! What a fleet costs: four real hosts write what the simulation says, from which the table in docs/several-hosts.md is.

use crate::cluster::train::{Run, nothing_is_left};
use crate::lab::Lab;
use dtrain_protocol::{Event, frame};
use dtrain_runner::spool::SpoolRecord;
use dtrain_tests::{SHORT_TRAINING, numbered_lines, root};
use std::collections::BTreeMap;
use std::fs;

const HOSTS: [&str; 4] = ["node1", "node2", "node3", "node4"];

/// Steps, of which every fifth is a checkpoint.
const STEPS: u32 = 20;

/// How far a figure of the simulation may be from that of real hosts.
const TOLERANCE: f64 = 0.2;

/// Records and their bytes.
type Amount = (u64, u64);

/// The records that the simulation says four hosts write, by what they are written for.
fn simulated() -> BTreeMap<String, Amount> {
    let path = root().join("runner/src/agent/simulate/costs.csv");
    let text = fs::read_to_string(path).expect("the simulation wrote it");
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().expect("a header");
    let column = |name: &str| header.iter().position(|other| *other == name).expect("a known column");
    let (part, records, bytes) = (column("part"), column("records"), column("record_bytes"));
    let number = |text: &str| text.parse().expect("a number");
    lines
        .filter(|line| line[column("hosts")] == "4")
        .map(|line| (line[part].to_owned(), (number(line[records]), number(line[bytes]))))
        .collect()
}

/// The records of a spool by what they are written for, as the mean of one step, validation or checkpoint.
fn measured(spool: &[u8]) -> BTreeMap<String, Amount> {
    let (mut rest, mut sums) = (spool, BTreeMap::<_, Amount>::new());
    let (mut steps, mut validations, mut checkpoints) = (0, 0, 0);
    while !rest.is_empty() {
        let before = rest.len();
        let record: SpoolRecord = frame::read(&mut rest).expect("as it was written");
        let part = match record {
            SpoolRecord::Event(said) => match said.event {
                Event::Step(_) => {
                    steps += u64::from(said.rank.0 == 0);
                    "step"
                }
                Event::Validated { .. } => {
                    validations += u64::from(said.rank.0 == 0);
                    "validation"
                }
                Event::Saved { .. } => "checkpoint",
                Event::Listening(_) | Event::Ready { .. } => "launch",
                _ => continue,
            },
            SpoolRecord::Began { .. } => "launch",
            SpoolRecord::Committed { .. } => {
                checkpoints += 1;
                "checkpoint"
            }
            _ => continue,
        };
        let (records, bytes) = sums.entry(part.to_owned()).or_default();
        *records += 1;
        *bytes += (before - rest.len()) as u64;
    }
    let times = BTreeMap::from([
        ("launch", 1),
        ("step", steps),
        ("validation", validations),
        ("checkpoint", checkpoints),
    ]);
    let mean = |(part, (records, bytes)): (String, Amount)| {
        let times = times[part.as_str()];
        (part, (records / times, bytes / times))
    };
    sums.into_iter().map(mean).collect()
}

#[test]
fn four_hosts_cost_what_the_simulation_says() {
    let Some(lab) = Lab::start(4) else { return };
    let cluster = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-4]\"]\nranks = 8\n";
    let (text, recipe) = (numbered_lines(), format!("name = \"lab\"\n{SHORT_TRAINING}"));
    for machine in HOSTS.into_iter().chain(["controller"]) {
        lab.put(machine, "text.txt", &text);
        lab.put(machine, "recipe.toml", &recipe);
        lab.put(machine, "hosts.toml", cluster);
    }
    let steps = format!("objective.stop={{ steps = {STEPS} }}");
    let mut run = Run::of(&lab, &[&steps, "layout.data=8"]);
    run.completes(STEPS);
    nothing_is_left(&lab, &HOSTS);
    let trial = fs::read_dir(lab.trials("node1")).expect("a trial").flatten().next().expect("a trial").path();
    let spool = fs::read(trial.join("spool/attempt-1.spool")).expect("the leader wrote it");
    let (measured, simulated) = (measured(&spool), simulated());
    println!("| | measured | simulated |\n|---|---|---|");
    for (part, (records, bytes)) in &measured {
        let (expected_records, expected_bytes) = simulated[part];
        println!("| {part} | {records}: {bytes} B | {expected_records}: {expected_bytes} B |");
    }
    for part in ["launch", "step", "validation", "checkpoint"] {
        let ((records, bytes), (expected_records, expected_bytes)) = (measured[part], simulated[part]);
        for (what, found, expected) in
            [("records", records, expected_records), ("bytes", bytes, expected_bytes)]
        {
            #[expect(clippy::cast_precision_loss, reason = "figures are small")]
            let ratio = found as f64 / expected as f64;
            assert!((ratio - 1.0).abs() <= TOLERANCE, "{what} of a {part}: {found}, simulated {expected}");
        }
    }
}
