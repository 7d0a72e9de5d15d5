//! Studies of scripts on two hosts, one of which is switched off in the middle.

use crate::lab::Lab;
use crate::scripts::{STUDIED, STUDY};
use dtrain_skip::skip_large;
use dtrain_tests::{python_with, root};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Two hosts that run four trials side by side.
const HOSTS: &str = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-2]\"]\nslots = 4\n";

/// Trials of each study; a host is lost when half of them were begun.
const TRIALS: usize = 12;

/// Tunes a script with ASHA and these settings on two hosts, and switches one of them off in the middle.
///
/// Returns what the study found, as JSON; `None` where the machine does not allow a lab.
fn survives_the_loss_of_a_host(script: &str, recipe: &str, settings: &[&str]) -> Option<Value> {
    let lab = Lab::start(2)?;
    for machine in ["controller", "node1", "node2"] {
        for (name, text) in [("train.py", script), ("recipe.toml", recipe), ("hosts.toml", HOSTS)] {
            lab.put(machine, name, text);
        }
    }
    let mut command = lab.command("dtrain");
    command.args(["tune", "recipe.toml", "--cluster", "hosts.toml", "--study", "s", "--pruner", "asha"]);
    command.args(["--trials", &TRIALS.to_string(), "--json"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let mut study = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let lines = BufReader::new(study.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let (mut found, mut launched, mut is_killed) = (Value::Null, 0, false);
    for line in lines {
        let line: Value = serde_json::from_str(&line).expect("JSON");
        launched += usize::from(line["event"].get("launched").is_some());
        if launched == TRIALS / 2 && !is_killed {
            lab.cut("node2");
            lab.kill_host("node2");
            is_killed = true;
        }
        found = line;
    }
    assert!(study.wait().expect("it ends").success(), "{found}");

    let trials = found["trials"].as_array().expect("a list of trials");
    let of = |how: &str| trials.iter().filter(|trial| trial["outcome"][how]["value"].is_f64()).count();
    let is_lost = |trial: &&Value| trial["outcome"]["failed"]["reason"] == "lost";
    let lost: Vec<&Value> = trials.iter().filter(is_lost).collect();
    assert!(!lost.is_empty() && of("done") > 0, "{found}");
    assert_eq!(of("done") + of("pruned"), TRIALS, "those that were lost do not count: {found}");
    for one in lost {
        let is_tried_again = |trial: &Value| trial["values"] == one["values"] && !is_lost(&trial);
        assert!(trials.iter().any(is_tried_again), "{} was lost and not tried again: {found}", one["values"]);
    }
    Some(found)
}

#[test]
fn a_study_on_two_hosts_survives_the_loss_of_one() {
    let settings = ["params.pause=0.2", "params.kind=\"plain\"", "objective.stop.steps=9"];
    let Some(found) = survives_the_loss_of_a_host(STUDIED, STUDY, &settings) else { return };
    let best = found["recommended"]["values"][0].as_f64().expect("a number");
    assert!((best - 0.3).abs() < 0.25, "{}", found["recommended"]);
}

/// The example as it is, with a `python3` that has PyTorch, which `tests/run foreign` installs.
#[test]
fn a_foreign_script_of_pytorch_is_tuned_on_two_hosts_of_which_one_is_lost() {
    let python = match python_with("torch") {
        Ok(python) => python,
        Err(reason) => return skip_large(reason),
    };
    let of_example = |name: &str| {
        let path = root().join("examples/script-study/pytorch").join(name);
        fs::read_to_string(path).expect("it is part of the example")
    };
    let recipe = of_example("recipe.toml").replace("python3", python.to_str().expect("UTF-8"));
    // The hosts of the lab share the cores of this machine.
    let settings = ["model.env={ OMP_NUM_THREADS = \"1\" }"];
    let found = survives_the_loss_of_a_host(&of_example("train.py"), &recipe, &settings);
    let Some(found) = found else { return };
    let best = found["recommended"]["measured"].as_f64().expect("a number");
    assert!(best > 0.6, "{}", found["recommended"]);
}
