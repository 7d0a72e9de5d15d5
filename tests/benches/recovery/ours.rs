//! Trainings by dtrain's own worker.

use super::lab::Lab;
use super::shared::perceptron::{TRAINING, rows};
use super::shared::{self, Step};
use super::training::Training;
use dtrain_runner::control_protocol::AgentCard;
use dtrain_tests::TestEnv;
use std::fs;
use std::path::Path;
use std::process::Command;

const HOSTS: &str = r#"
[cluster]
launcher = "ssh"
hosts = ["node[1-2]"]
"#;

/// Two ranks on this machine.
pub(crate) fn here() -> Training {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", recipe());
    house.file("rows.csv", rows());
    let mut command = house.dtrain(["run", "--no-sample", "--json"]);
    command.arg(recipe);
    let trials = house.state().join("trials");
    Training::start(&mut command, step, move |_, rank| process_of(&trials, rank), house)
}

/// A rank on each of two hosts.
pub(crate) fn on_hosts(lab: &Lab) -> Training {
    let (rows, recipe) = (rows(), recipe());
    for machine in ["controller", "node1", "node2"] {
        for (name, text) in
            [("rows.csv", rows.as_str()), ("recipe.toml", recipe.as_str()), ("hosts.toml", HOSTS)]
        {
            lab.put(machine, name, text);
        }
    }
    let mut command: Command = lab.command("dtrain");
    command.args(["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample", "--json"]);
    Training::start(&mut command, step, |_, _| unreachable!("hosts are struck, not ranks"), ())
}

/// Two ranks, wherever they are.
fn recipe() -> String {
    format!("name = \"recovery\"\n{TRAINING}\n[cluster]\nranks = 2\n")
}

/// The step that a line of `--json` tells of.
fn step(line: &str) -> Option<Step> {
    shared::step(&shared::seen(line)?)
}

/// The process of a rank of the only trial.
fn process_of(trials: &Path, rank: u32) -> u32 {
    let trial = fs::read_dir(trials).expect("a trial").flatten().next().expect("a trial").path();
    let card = fs::read(trial.join("agent.json")).expect("its agent runs");
    let card: AgentCard = serde_json::from_slice(&card).expect("a card is JSON");
    card.ranks[rank as usize].id
}
