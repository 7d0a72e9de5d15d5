//! The recipe's folder, sent to hosts that do not have it.

use crate::cluster::train::nothing_is_left;
use crate::lab::{Lab, Options};
use std::fs;
use std::path::PathBuf;

const RECIPE: &str = r#"
name = "sent"

[model]
kind = "command"
argv = ["sh", "train.sh"]
progress = ["step {step} loss {loss}"]

[objective]
metric = "loss"
goal = "min"
stop = { steps = 2 }

[cluster]
launcher = "ssh"
hosts = ["node[1-2]"]
workdir = { exclude = ["*.bin"] }
"#;

/// A script that needs another file of its folder.
const SCRIPT: &str =
    ". ./lib/loss.sh\nfor step in 1 2; do echo \"step $step loss $loss\"; done\nexit $code\n";

const HOSTS: [&str; 2] = ["node1", "node2"];

/// Runs dtrain on the controller; returns its exit code and what it said.
fn dtrain(lab: &Lab, arguments: &[&str]) -> (Option<i32>, String) {
    let output = lab.command("dtrain").args(arguments).output().expect("the program starts");
    let [out, error] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (output.status.code(), format!("{out}{error}"))
}

/// Runs the recipe to its end; returns the hosts to which the folder was sent.
fn sent_to(lab: &Lab, arguments: &[&str]) -> Vec<&'static str> {
    let (code, said) = dtrain(lab, arguments);
    assert_eq!(code, Some(0), "{said}");
    let is_sent = |host: &&str| said.contains(&format!("{host}: sent the recipe's folder (3 files"));
    let sent = HOSTS.into_iter().filter(is_sent).collect();
    nothing_is_left(lab, &HOSTS);
    sent
}

/// The folders that a host received.
fn received(lab: &Lab, host: &str) -> Vec<PathBuf> {
    let state = lab.trials(host).parent().expect("the state of the host").join("workdirs");
    let found = fs::read_dir(state).expect("it received one").flatten().map(|entry| entry.path());
    found.filter(|path| path.is_dir()).collect()
}

#[test]
fn a_script_on_the_controller_alone_runs_on_two_hosts_and_is_sent_once_for_every_change() {
    const RUN: &[&str] = &["run", "project/recipe.toml", "--no-sample"];
    let Some(lab) = Lab::with(&Options { hosts: 2, direct: true, ..Options::default() }) else { return };
    let made = lab.command("mkdir").args(["-p", "project/lib"]).status().expect("mkdir");
    assert!(made.success());
    lab.put("controller", "project/recipe.toml", RECIPE);
    lab.put("controller", "project/train.sh", SCRIPT);
    lab.put("controller", "project/lib/loss.sh", "loss=0.5\ncode=0\n");
    lab.put("controller", "project/large.bin", vec![0; 8192]);

    assert_eq!(sent_to(&lab, RUN), HOSTS);
    for host in HOSTS {
        assert!(!lab.home(host).join("project").exists(), "only the controller has the folder itself");
        let folders = received(&lab, host);
        assert_eq!(folders.len(), 1, "{folders:?}");
        assert_eq!(fs::read_to_string(folders[0].join("train.sh")).expect("it was sent"), SCRIPT);
        assert!(!folders[0].join("large.bin").exists(), "it is excluded");
    }
    assert!(sent_to(&lab, RUN).is_empty(), "the hosts have it");

    lab.put("controller", "project/lib/loss.sh", "loss=0.25\ncode=0\n");
    assert_eq!(sent_to(&lab, RUN), HOSTS, "another content");
    let (_, logs) = dtrain(&lab, &["logs", "sent-3"]);
    assert!(logs.contains("step 2 loss 0.25"), "{logs}");
    assert_eq!(received(&lab, "node1").len(), 2);

    // Too much: refused before anything starts.
    let limits = ["--set", "cluster.workdir.exclude=['nothing']", "--set", "cluster.workdir.limit=4 KiB"];
    let (code, said) = dtrain(&lab, &[RUN, &limits].concat());
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("large.bin: 8.0 KiB") && said.contains("`cluster.workdir.limit`"), "{said}");
    assert!(!said.contains("connected in"), "{said}");

    // A trial that fails is resumed with the code as it was mended.
    lab.put("controller", "project/lib/loss.sh", "loss=0.125\ncode=3\n");
    let (code, said) = dtrain(&lab, RUN);
    assert_ne!(code, Some(0), "{said}");
    lab.put("controller", "project/lib/loss.sh", "loss=0.125\ncode=0\n");
    let (code, said) = dtrain(&lab, &["resume", "sent-4"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the recipe's folder has changed since sent-4"), "{said}");
    let (_, shown) = dtrain(&lab, &["show", "sent-4"]);
    assert!(shown.contains("the recipe's folder changed: attempts from now on use"), "{shown}");
    nothing_is_left(&lab, &HOSTS);
}
