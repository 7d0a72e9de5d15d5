//! How long until something runs on all hosts of a cluster: `cargo build --release`, then
//! `cargo bench --workspace --bench fanout -- hosts=32 rounds=3`, as root.
//!
//! Every round asks `dtrain doctor` about all hosts of a lab, and lets `dtrain run` start a command on each that says one line. The
//! first run also sends the program to every host. Times are from the start of the program on the controller.

#[expect(dead_code, unused_imports, reason = "a lab can do more than this bench asks of it")]
#[path = "../../suite/lab/mod.rs"]
mod lab;
#[expect(dead_code, unused_imports, reason = "nothing is disturbed here")]
#[path = "../shared/mod.rs"]
mod shared;

use dtrain_runner::{ControllerStatus, TrialEvent};
use lab::{Lab, Options};
use shared::measured::{Better, Row};
use shared::{Words, heard, now_ms, say, seen};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Stdio;
use std::time::Instant;

/// What runs on each host.
const RECIPE: &str = r#"
name = "fanout"

[model]
kind = "command"
argv = ["sh", "-c", "echo step 1 loss 1.0"]
progress = ["step {step} loss {loss}"]
"#;

fn main() {
    let words = Words::of_the_command_line();
    let (hosts, rounds) = (words.number("hosts", 32), words.number("rounds", 3));
    let count = usize::try_from(hosts).expect("few");
    let begun = Instant::now();
    let Some(lab) = Lab::with(&Options { hosts: count, direct: true, ..Options::default() }) else { return };
    say(&format!("{hosts} hosts, up after {:.1} s", begun.elapsed().as_secs_f64()));
    let cluster = format!("[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-{hosts}]\"]\n");
    lab.put("controller", "recipe.toml", RECIPE);
    lab.put("controller", "hosts.toml", cluster);
    let (mut examined, mut started) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        examined.push(doctor(&lab, hosts));
        say(&format!("doctor {round}: {:.2} s", examined[examined.len() - 1]));
        let (seconds, words) = run(&lab, count);
        say(&format!("run {round}: {words}"));
        started.push(seconds);
    }
    for (what, ours) in [("`dtrain doctor` of", examined), ("first word of every rank on", started)] {
        let what = format!("{what} {hosts} hosts over SSH");
        let note = "all hosts are namespaces of one machine".to_owned();
        Row { section: "Fan-out", what, unit: "s", better: Better::Lower, ours, peer: None, note }.print();
    }
}

/// Seconds until the doctor has told of all hosts.
fn doctor(lab: &Lab, hosts: u64) -> f64 {
    let begun = Instant::now();
    let mut command = lab.command("dtrain");
    command.arg("doctor").args((1..=hosts).map(|host| format!("node{host}"))).arg("--json");
    let output = command.output().expect("the program starts");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    let told = report["hosts"].as_array().expect("reports").iter();
    let reached = told.filter(|host| host["checks"].as_array().is_some_and(|checks| checks.len() > 1));
    assert_eq!(reached.count() as u64, hosts, "{report}");
    begun.elapsed().as_secs_f64()
}

/// Seconds until every rank had its first say, and in words also when the agents were started.
fn run(lab: &Lab, hosts: usize) -> (f64, String) {
    let mut command = lab.command("dtrain");
    command.args(["run", "recipe.toml", "--cluster", "hosts.toml", "--json"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let began_ms = now_ms();
    let mut process = command.spawn().expect("nsenter starts");
    let lines = heard(process.stdout.take().expect("it is piped"), |line| Some((now_ms(), seen(line)?)));
    let since = |ms: u64| std::time::Duration::from_millis(ms.saturating_sub(began_ms)).as_secs_f64();
    let (mut words, mut first) = (String::new(), BTreeMap::new());
    for (at_ms, seen) in lines {
        match seen {
            TrialEvent::Status(ControllerStatus::Launching { .. }) => {
                write!(words, "all hosts ready after {:.2} s", since(at_ms)).expect("to a string");
            }
            TrialEvent::Status(ControllerStatus::Attached { .. }) => {
                write!(words, ", agents on all after {:.2} s", since(at_ms)).expect("to a string");
            }
            TrialEvent::Event(said) => drop(first.entry(said.rank).or_insert(since(said.at_ms))),
            TrialEvent::Status(_) | TrialEvent::Record(_) => {}
        }
    }
    let output = process.wait_with_output().expect("it is ours");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let mut first: Vec<f64> = first.into_values().collect();
    first.sort_by(f64::total_cmp);
    assert_eq!(first.len(), hosts, "every rank has its say");
    let (least, middle, most) = (first[0], first[hosts / 2], first[hosts - 1]);
    let end = since(now_ms());
    words += &format!(
        "; first word of a rank {least:.2} s, of half {middle:.2} s, of all {most:.2} s; over after {end:.2} s"
    );
    (most, words)
}
