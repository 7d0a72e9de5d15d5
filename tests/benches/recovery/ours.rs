//! Trainings by dtrain's own worker.

use super::lab::Lab;
use super::training::{Step, Training};
use dtrain_protocol::Event;
use dtrain_runner::Seen;
use dtrain_runner::agent::AgentCard;
use dtrain_tests::House;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The same perceptron as in `train.py`, with as many samples.
const RECIPE: &str = r#"
name = "recovery"

[model]
kind = "mlp"
inputs = 64
hidden = [1024, 1024]
classes = 10

[data]
train = "rows.csv"
target = "class"

[objective]
stop = { steps = 1000000 }

[train]
batch = 128
learning_rate = 1e-3
precision = "f32"

[checkpoint]
every = "10 steps"

[cluster]
ranks = 2
"#;

const HOSTS: &str = r#"
[cluster]
launcher = "ssh"
hosts = ["node[1-2]"]
"#;

/// Two ranks on this machine.
pub(crate) fn here() -> Training {
    let house = House::default();
    let recipe = house.file("recipe.toml", RECIPE);
    house.file("rows.csv", rows());
    let mut command = house.dtrain(["run", "--no-sample", "--json"]);
    command.arg(recipe);
    let trials = house.state().join("trials");
    Training::start(&mut command, step, move |_, rank| process_of(&trials, rank), house)
}

/// A rank on each of two hosts.
pub(crate) fn on_hosts(lab: &Lab) -> Training {
    let rows = rows();
    for machine in ["controller", "node1", "node2"] {
        for (name, text) in [("rows.csv", rows.as_str()), ("recipe.toml", RECIPE), ("hosts.toml", HOSTS)] {
            lab.put(machine, name, text);
        }
    }
    let mut command: Command = lab.command("dtrain");
    command.args(["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample", "--json"]);
    Training::start(&mut command, step, |_, _| unreachable!("hosts are struck, not ranks"), ())
}

/// Rows of numbers that look random, and a class each.
fn rows() -> String {
    let mut text: String = (0..64).map(|column| format!("x{column},")).collect();
    text += "class\n";
    let mut state = 1u64;
    for row in 0..2048 {
        for _ in 0..64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            write!(text, "{:.2},", f64::from((state >> 40) as u32 % 1000) / 500.0 - 1.0)
                .expect("a string grows");
        }
        writeln!(text, "c{}", row % 10).expect("a string grows");
    }
    text
}

/// The step that a line of `--json` tells of.
fn step(line: &str) -> Option<Step> {
    let mut line: serde_json::Value = serde_json::from_str(line).ok()?;
    let Seen::Event(said) = serde_json::from_value(line["seen"].take()).ok()? else { return None };
    let Event::Step(figures) = said.event else { return None };
    Some(Step { life: said.attempt.0, rank: said.rank.0, number: figures.step.0, at_ms: said.at_ms })
}

/// The process of a rank of the only trial.
fn process_of(trials: &Path, rank: u32) -> u32 {
    let trial = fs::read_dir(trials).expect("a trial").flatten().next().expect("a trial").path();
    let card = fs::read(trial.join("agent.json")).expect("its agent runs");
    let card: AgentCard = serde_json::from_slice(&card).expect("a card is JSON");
    card.ranks[rank as usize].id
}
