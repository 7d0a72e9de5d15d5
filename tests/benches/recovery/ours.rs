//! Trainings by dtrain's own worker.

use super::lab::Lab;
use super::training::{Step, Training};
use dtrain_protocol::Event;
use dtrain_runner::Seen;
use dtrain_runner::agent::AgentCard;
use dtrain_tests::{House, random_rows};
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

/// As many as in `train.py`.
const SAMPLES: u32 = 2048;

/// Two ranks on this machine.
pub(crate) fn here() -> Training {
    let house = House::default();
    let recipe = house.file("recipe.toml", RECIPE);
    house.file("rows.csv", random_rows(SAMPLES));
    let mut command = house.dtrain(["run", "--no-sample", "--json"]);
    command.arg(recipe);
    let trials = house.state().join("trials");
    Training::start(&mut command, step, move |_, rank| process_of(&trials, rank), house)
}

/// A rank on each of two hosts.
pub(crate) fn on_hosts(lab: &Lab) -> Training {
    let rows = random_rows(SAMPLES);
    for machine in ["controller", "node1", "node2"] {
        for (name, text) in [("rows.csv", rows.as_str()), ("recipe.toml", RECIPE), ("hosts.toml", HOSTS)] {
            lab.put(machine, name, text);
        }
    }
    let mut command: Command = lab.command("dtrain");
    command.args(["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample", "--json"]);
    Training::start(&mut command, step, |_, _| unreachable!("hosts are struck, not ranks"), ())
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
