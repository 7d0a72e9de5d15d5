//! Trials that continue others where checkpoints and hosts are not on the same machine.

use crate::lab::Lab;
use dtrain_tests::{SHORT_TRAINING, numbered_lines};
use serde_json::Value;

const HOSTS: &str = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-2]\"]\n";

/// Runs dtrain on the controller; what it printed to stdout.
fn dtrain(lab: &Lab, arguments: &[&str]) -> String {
    let output = lab.command("dtrain").args(arguments).output().expect("the program starts");
    let [out, error] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{arguments:?}: {out}{error}");
    out
}

/// The newest trial.
fn last(lab: &Lab) -> Value {
    let shown: Value = serde_json::from_str(&dtrain(lab, &["show", "last", "--json"])).expect("one document");
    shown["trial"].clone()
}

#[test]
fn a_trial_continues_from_hosts_to_this_machine_and_from_here_to_hosts() {
    let Some(lab) = Lab::start(2) else { return };
    let recipe = format!("name = \"lab\"\n{SHORT_TRAINING}");
    let text = numbered_lines();
    for machine in ["controller", "node1", "node2"] {
        lab.put(machine, "text.txt", text.as_str());
        lab.put(machine, "recipe.toml", recipe.as_str());
        lab.put(machine, "hosts.toml", HOSTS);
    }
    let steps = |steps: u32| format!("objective.stop={{ steps = {steps} }}");
    // On two hosts, then with their checkpoint on two hosts, then on this machine, then with that checkpoint on two hosts again.
    dtrain(&lab, &["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample", "--set", &steps(10)]);
    for (number, cluster, launcher) in
        [(2, None, "ssh"), (3, Some("cluster.launcher=local"), "local"), (4, None, "ssh")]
    {
        let end = steps(10 * number);
        let mut arguments = vec!["resume", "last", "--set", &end];
        match (cluster, launcher) {
            (Some(setting), _) => arguments.extend(["--set", setting, "--set", "cluster.hosts=[]"]),
            (None, _) if number == 4 => arguments.extend(["--cluster", "hosts.toml"]),
            (None, _) => {}
        }
        dtrain(&lab, &arguments);
        let trial = last(&lab);
        assert_eq!(trial["parent"]["step"], 10 * (number - 1), "{trial}");
        assert_eq!(trial["row"]["step"], 10 * number, "{trial}");
        assert_eq!(trial["recipe"]["cluster"]["launcher"], launcher, "{trial}");
    }
    // What was trained elsewhere can be used here.
    assert!(!dtrain(&lab, &["model", "sample", "last", "--tokens", "4"]).is_empty());
}
