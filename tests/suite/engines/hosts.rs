//! Engines on two hosts of the lab, of which a rank, an agent or a whole host is killed.

use super::{ENGINES, Form, RECIPE, STEPS, assert_near, corpus, interpreter, losses, python};
use crate::cluster::train::{Run, nothing_is_left};
use crate::lab::{Lab, Options};
use dtrain_protocol::Rank;
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::TestEnv;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const HOSTS: &str = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-2]\"]\n";

/// Time within which an engine saves its second checkpoint.
const PATIENCE: Duration = Duration::from_secs(150);

/// A part of the cluster that is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Rank,
    /// A rank, after every checkpoint of its host is gone.
    RankAndCheckpoints,
    Agent,
    Host,
}

impl Victim {
    fn kill(self, lab: &Lab) {
        match self {
            Self::Host => lab.kill_host("node2"),
            Self::Rank => kill_one(lab, "dtrain_engines"),
            Self::RankAndCheckpoints => {
                for trial in fs::read_dir(lab.trials("node2")).expect("a trial").flatten() {
                    let engine = trial.path().join("checkpoints/engine");
                    for step in fs::read_dir(engine).expect("checkpoints").flatten() {
                        // A rank may be writing into one of them.
                        drop(fs::remove_dir_all(step.path()));
                    }
                }
                kill_one(lab, "dtrain_engines");
            }
            Self::Agent => kill_one(lab, " agent"),
        }
    }
}

/// Kills the process of node2 whose command contains `word`.
fn kill_one(lab: &Lab, word: &str) {
    let all = lab.processes("node2");
    let found =
        all.iter().find(|process| process.command.contains(word) && !process.command.contains("--stdio"));
    let found = found.unwrap_or_else(|| panic!("nothing with {word:?} on node2: {all:?}"));
    let pid = i32::try_from(found.id).ok().and_then(Pid::from_raw).expect("a number of a process");
    kill_process(pid, Signal::KILL).expect("it is there");
}

/// Makes a lab of two hosts with the recipe and its text, and returns it with the interpreter for an engine; `None`, the
/// test being skipped, where the machine does not allow one.
fn two_hosts(env: &TestEnv, engine: &str, python: &Path) -> Option<(Lab, PathBuf)> {
    let lab = Lab::with(&Options { hosts: 2, direct: true, ..Options::default() })?;
    for machine in ["controller", "node1", "node2"] {
        lab.put(machine, "recipe.toml", RECIPE);
        lab.put(machine, "corpus.txt", corpus());
        lab.put(machine, "hosts.toml", HOSTS);
    }
    let interpreter = interpreter(env, engine, python);
    // The users of the hosts start it too.
    for path in interpreter.ancestors().take_while(|path| path.starts_with(env.path())) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    Some((lab, interpreter))
}

/// Returns the settings with which an engine trains the recipe on the hosts.
fn settings(engine: &str, python: &Path) -> Vec<String> {
    let own = [format!("engine={engine}"), format!("cluster.python={}", python.display())];
    let fixed = ["layout.zero=3", "layout.data=2", "checkpoint.every=5 steps"].map(str::to_owned);
    own.into_iter().chain(fixed).collect()
}

/// Starts the training of the recipe on the hosts.
fn start(lab: &Lab, settings: &[String]) -> Run {
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    Run::of(lab, &settings)
}

/// Waits until a host has the complete checkpoint of a step.
fn wait_for_checkpoint(lab: &Lab, host: &str, step: u32) {
    let until = Instant::now() + PATIENCE;
    let file = format!("checkpoints/engine/step-{step}/manifest.json");
    loop {
        let trials = lab.home(host).join(".local/state/dtrain/hosts");
        let hosts = fs::read_dir(trials).into_iter().flatten().flatten();
        let trials =
            hosts.filter_map(|host| fs::read_dir(host.path().join("trials")).ok()).flatten().flatten();
        if trials.into_iter().any(|trial| trial.path().join(&file).exists()) {
            return;
        }
        assert!(Instant::now() < until, "no checkpoint of step {step} on {host}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the losses of the newest trial of the controller, and the number of its attempts.
fn recorded(lab: &Lab) -> (Vec<f64>, usize) {
    // SQLite resolves links, and the way into a lab is one that only the kernel can follow.
    let (state, copy) =
        (lab.home("controller").join(".local/state/dtrain"), tempfile::tempdir().expect("a folder"));
    for file in fs::read_dir(state).expect("a folder").flatten().filter(|file| file.path().is_file()) {
        fs::copy(file.path(), copy.path().join(file.file_name())).expect("room on disk");
    }
    let history = History::open_read_only(&copy.path().join("history.db")).expect("a history");
    let trial = history.find("last").expect("a trial");
    let losses = history.series(&trial, "loss", Rank(0)).expect("losses");
    let attempts = history.trial(&trial, &|_| TrialActivity::None).expect("it is there").attempts.len();
    (losses.iter().map(|point| point.value).collect(), attempts)
}

/// Kills a part of the second host after a checkpoint, and compares the losses with those of the own worker.
fn goes_on_without(victim: Victim, engines: &[&str]) {
    let Some(python) = python(Form::Whole) else { return };
    let env = super::env();
    let wanted = losses(&env, "dtrain", &python, &["layout.zero=3", "layout.data=2"]);
    for engine in engines {
        let Some((lab, interpreter)) = two_hosts(&env, engine, &python) else { return };
        let mut run = start(&lab, &settings(engine, &interpreter));
        wait_for_checkpoint(&lab, "node1", 10);
        victim.kill(&lab);
        run.completes(STEPS);
        let (found, attempts) = recorded(&lab);
        assert_near(&format!("{engine} without a {victim:?}"), &wanted, &found);
        assert_eq!(attempts, 2, "{engine}: one {victim:?} was killed once");
        let left: &[&str] = if matches!(victim, Victim::Host) { &["node1"] } else { &["node1", "node2"] };
        nothing_is_left(&lab, left);
    }
}

#[test]
fn engines_go_on_after_a_rank_of_two_hosts_was_killed() {
    goes_on_without(Victim::Rank, &ENGINES);
}

#[test]
fn engines_bring_a_checkpoint_to_a_host_that_lost_its_part() {
    goes_on_without(Victim::RankAndCheckpoints, &ENGINES);
}

#[test]
fn engines_go_on_after_an_agent_of_two_hosts_was_killed() {
    goes_on_without(Victim::Agent, &["fsdp"]);
}

#[test]
fn engines_go_on_after_a_host_of_two_was_killed() {
    goes_on_without(Victim::Host, &ENGINES);
}

/// Runs dtrain on the controller to its end, and returns what it printed.
fn says(lab: &Lab, arguments: &[&str]) -> String {
    let output = lab.command("dtrain").args(arguments).output().expect("the program starts");
    let [out, error] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{arguments:?}: {out}{error}");
    out + &error
}

/// Two hosts have the interpreter and nothing of the recipe; every command works for the trial as for one of the own worker.
#[test]
fn a_recipe_on_the_controller_alone_is_trained_by_engines_on_two_hosts() {
    let Some(python) = python(Form::Whole) else { return };
    let env = super::env();
    let wanted = losses(&env, "dtrain", &python, &["layout.zero=3", "layout.data=2"]);
    for engine in ENGINES {
        let Some((lab, interpreter)) = two_hosts(&env, engine, &python) else { return };
        for host in ["node1", "node2"] {
            for file in ["recipe.toml", "corpus.txt", "hosts.toml"] {
                fs::remove_file(lab.home(host).join(file)).expect("it was put there");
            }
        }
        let made = lab.command("mkdir").arg("project").status().expect("it is there");
        assert!(made.success(), "a folder for the recipe");
        lab.put("controller", "project/recipe.toml", RECIPE);
        lab.put("controller", "project/corpus.txt", corpus());
        let hosts = format!("{HOSTS}workdir = true\n");
        lab.put("controller", "hosts.toml", hosts);
        let settings = settings(engine, &interpreter);
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let run = ["run", "project/recipe.toml", "--cluster", "hosts.toml", "--no-sample"];
        let said = says(&lab, &run.into_iter().chain(settings).collect::<Vec<_>>());
        assert!(said.contains("node2: sent the recipe's folder"), "{said}");
        assert_near(&format!("{engine} on two hosts"), &wanted, &recorded(&lab).0);

        let shown = says(&lab, &["show", "last"]);
        for words in ["valid.loss", "learning_rate", "tokens/s", "CHECKPOINTS", "step 30", "torch 2.15"] {
            assert!(shown.contains(words), "{words:?} in {shown}");
        }
        assert!(says(&lab, &["history"]).contains("done"), "the history has it");
        let table = says(&lab, &["export", "last", "--to", "csv", "--out", "-"]);
        for key in [",loss,", ",valid.loss,", ",learning_rate,", ",tokens_per_second,"] {
            assert!(table.contains(key), "{key:?} in {table}");
        }
        let listed = says(&lab, &["checkpoint", "ls", "last"]);
        assert!(listed.contains("committed") && listed.contains("node2"), "{listed}");
        assert!(says(&lab, &["checkpoint", "verify", "last"]).contains("step-30: intact"));
        says(&lab, &["checkpoint", "pull", "last", "--to", "pulled"]);
        assert!(lab.home("controller").join("pulled/.metadata").exists());
        assert!(says(&lab, &["logs", "last"]).contains("rank 1"), "each rank has a log");
        says(&lab, &["model", "export", "last", "--to", "hf", "--out", "trained"]);
        assert!(lab.home("controller").join("trained/model.safetensors").exists());
        nothing_is_left(&lab, &["node1", "node2"]);
    }
}
