//! Cost of recovery with a large state; a measurement for docs/measured.md.

use crate::cluster::train::{Run, nothing_is_left};
use crate::lab::{Lab, Options};
use dtrain_tests::numbered_lines;
use std::time::Instant;

/// 164 million parameters, which with their moments are 2 GB, sharded over all ranks.
const RECIPE: &str = r#"
name = "lab"

[model]
kind = "decoder"
layers = 13
hidden = 1024
heads = 8
context = 16

[data]
train = "text.txt"
valid = "5%"

[objective]
stop = { steps = 8 }

[train]
batch = 12

[layout]
zero = 3

[checkpoint]
every = 2
keep = 2
"#;

#[test]
#[ignore = "a measurement that needs an idle machine"]
fn recovery_with_two_gigabytes_of_state() {
    let Some(lab) = Lab::with(&Options { hosts: 4, disk: 6 << 30, ..Options::default() }) else { return };
    let hosts = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-4]\"]\n";
    let text = numbered_lines();
    for machine in ["controller", "node1", "node2", "node3", "node4"] {
        lab.put(machine, "text.txt", &text);
        lab.put(machine, "recipe.toml", RECIPE);
        lab.put(machine, "hosts.toml", hosts);
    }
    let mut run = Run::of(&lab, &["cluster.ranks=4"]);
    run.hears("step 5/8");
    let begun = Instant::now();
    lab.cut("node4");
    lab.kill_host("node4");
    let seconds = |at: Instant| at.duration_since(begun).as_secs_f64();
    let noticed = seconds(run.hears("lost host").0);
    let started = seconds(run.hears("starting").0);
    let next = seconds(run.hears("step ").0);
    println!("noticed after {noticed:.1} s, started after {started:.1} s, next step shown after {next:.1} s");
    run.completes(8);
    for line in lab.agent_log("node1").lines().filter(|line| line.contains("that were needed")) {
        println!("{line}");
    }
    nothing_is_left(&lab, &["node1", "node2", "node3"]);
}
