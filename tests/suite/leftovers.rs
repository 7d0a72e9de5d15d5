//! Nothing of a trial is left behind: no process, whatever it does with signals and sessions, and no
//! unreported run, whatever its libraries print and its shell allows.

use crate::kill::{card, kill};
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::{TestEnv, root};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(90);

/// A recipe of one rank of `train.py`.
const SCRIPT: &str = r#"name = "script"
[model]
kind = "command"
argv = ["python3", "train.py"]
progress = ["step {step} loss {loss}"]
[cluster]
ranks = 1
"#;

/// Three ways for a process to leave its parent, its group and its session; the process numbers go to files.
const ESCAPES: &str = r#"import os, subprocess, sys, time
def note(name, pid):
    with open(name + ".new", "w") as file:
        file.write(str(pid))
    os.rename(name + ".new", name)
def escape():
    note("session", subprocess.Popen(["sleep", "177"], start_new_session=True).pid)
    bare = subprocess.Popen(["sleep", "177"], start_new_session=True, env={}, stdout=subprocess.DEVNULL)
    note("bare", bare.pid)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note("daemon", os.getpid())
            os.execvp("sleep", ["sleep", "177"])
        os._exit(0)
    os.wait()
    while not os.path.exists("daemon"):
        time.sleep(0.01)
"#;

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what} should have come");
        sleep(Duration::from_millis(10));
    }
}

/// A house with a script, and the path of its recipe.
fn with_script(script: &str) -> (TestEnv, String) {
    let house = TestEnv::default();
    house.file("train.py", script);
    let recipe = house.file("recipe.toml", SCRIPT);
    (house, recipe.to_str().expect("UTF-8").to_owned())
}

/// The process whose number a script wrote.
fn noted(house: &TestEnv, name: &str) -> Pid {
    let path = house.state().parent().expect("the house").join(name);
    let id = fs::read_to_string(path).expect("the script wrote it").parse().expect("a number");
    Pid::from_raw(id).expect("a process")
}

fn is_gone(process: Pid) -> bool {
    let state = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let has_ended =
        state.is_ok_and(|text| text.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")));
    has_ended || test_kill_process(process).is_err()
}

/// How the newest trial stands, and how many attempts it took.
fn newest(house: &TestEnv) -> (String, usize) {
    let history = History::open_read_only(&house.history()).expect("a history");
    let trial =
        history.trial(&history.find("last").expect("a trial"), &|_| TrialActivity::None).expect("a trial");
    (trial.row.status.to_string(), trial.attempts.len())
}

#[test]
fn nothing_that_a_script_starts_survives_it() {
    let (house, recipe) = with_script(&format!("{ESCAPES}escape()\nprint('step 1 loss 0.5', flush=True)\n"));
    house.expect(0, ["run", &recipe]);
    for name in ["session", "bare", "daemon"] {
        let process = noted(&house, name);
        wait("the end of what the script started", || is_gone(process));
    }
}

#[test]
fn what_a_script_started_is_ended_by_the_next_attempt_where_its_agent_was_killed() {
    let script = format!(
        "{ESCAPES}if os.environ['DTRAIN_ATTEMPT'] == '1':\n    escape()\n    print('step 1 loss 0.5', flush=True)\n    \
         time.sleep(600)\nprint('step 2 loss 0.5', flush=True)\n"
    );
    let (house, recipe) = with_script(&script);
    let run = house.dtrain(["run", &recipe]).stderr(Stdio::null()).spawn().expect("it starts");
    let there = house.state().parent().expect("the house").join("daemon");
    wait("what the script starts", || there.exists());
    kill(card(&house, &[]).expect("it runs").agent);
    let ended = run.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(newest(&house), ("completed".into(), 2));
    // The environment of the third is empty: no process can tell which trial it belonged to.
    kill_process(noted(&house, "bare"), Signal::KILL).expect("it is the test's to end");
    for name in ["session", "daemon"] {
        let process = noted(&house, name);
        wait("the end of what the script started", || is_gone(process));
    }
}

#[test]
fn a_script_that_ignores_sigterm_is_killed_and_the_trial_has_stopped() {
    let (house, recipe) = with_script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor step in range(1, 10000):\n    \
         print('step', step, 'loss', 1 / step, flush=True)\n    time.sleep(0.1)\n",
    );
    let mut run = house.dtrain(["run", &recipe]).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(run.stderr.take().expect("a pipe"));
    let mut text = String::new();
    while !text.contains("\nstep ") {
        assert_ne!(said.read_line(&mut text).expect("UTF-8"), 0, "{text}");
    }
    let controller = Pid::from_raw(i32::try_from(run.id()).expect("a process")).expect("a process");
    kill_process(controller, Signal::TERM).expect("it is ours");
    said.read_to_string(&mut text).expect("UTF-8");
    assert_eq!(run.wait().expect("it ends").code(), Some(7), "{text}");
    assert!(text.contains("waiting up to 30"), "{text}");
    assert_eq!(newest(&house), ("stopped".into(), 1));
}

/// Builds a library that prints a line in every process that loads it and that this program starts for a part of its work.
fn talkative_library(folder: &Path) {
    let source = r#"#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void talk(void) {
  char line[4096] = {0};
  FILE *file = fopen("/proc/self/cmdline", "r");
  if (!file) return;
  size_t length = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  for (char *word = line; word < line + length; word += strlen(word) + 1)
    if (!strcmp(word, "worker") || !strcmp(word, "agent")) { puts("a library says hello"); fflush(stdout); return; }
}
"#;
    fs::write(folder.join("talk.c"), source).expect("a file");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "talk.so", "talk.c"])
        .current_dir(folder)
        .status()
        .expect("cc links the programs of Rust");
    assert!(built.success());
}

#[test]
fn what_a_library_prints_goes_to_the_logs_of_a_trial() {
    let house = TestEnv::default();
    let folder = house.state().parent().expect("the house").to_owned();
    talkative_library(&folder);
    let recipe = root().join("examples/table-mlp/recipe.toml");
    let recipe = recipe.to_str().expect("UTF-8");
    let preloaded = |args: &[&str]| -> Output {
        let mut command = house.dtrain(args);
        command.env("LD_PRELOAD", folder.join("talk.so")).output().expect("it starts")
    };
    // Probes, an agent, two ranks; then a process that predicts.
    let settings = ["cluster.ranks=2", "layout.data=2", "objective.stop={ steps = 4 }"];
    let mut args = vec!["run", recipe];
    settings.iter().for_each(|setting| args.extend(["--set", setting]));
    let run = preloaded(&args);
    assert!(run.status.success(), "{run:?}");
    let logs = house.expect(0, ["logs", "last"]).stdout;
    let hellos = String::from_utf8(logs).expect("UTF-8").matches("a library says hello").count();
    assert!(hellos >= 2, "both ranks loaded the library");
    let table = root().join("examples/table-mlp/rings.csv");
    let predicted = preloaded(&["model", "predict", "last", table.to_str().expect("UTF-8")]);
    assert!(predicted.status.success(), "{predicted:?}");
    let rows = String::from_utf8(predicted.stdout).expect("UTF-8");
    assert!(!rows.contains("a library"), "predictions go to a program");
}

/// What `dtrain run` of the example with a table prints under a limit of the shell, and its exit code.
fn run_under(limit: &str, more: &str) -> (Option<i32>, String) {
    let house = TestEnv::default();
    let recipe = root().join("examples/table-mlp/recipe.toml");
    let unlimited = house.dtrain(["run"]);
    let variables = unlimited.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let line = format!("ulimit {limit}; exec \"$0\" run \"$1\" {more}");
    let mut shell = Command::new("bash");
    shell.envs(variables).arg("-c").arg(line).arg(unlimited.get_program()).arg(recipe);
    let output = shell.output().expect("bash starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_limit_of_the_shell_is_an_error_that_names_it() {
    let (code, said) = run_under("-f 64", "");
    assert_eq!(code, Some(6), "the history is larger: {said}");
    assert!(said.contains("file size limit (ulimit -f)"), "{said}");
    let (code, said) = run_under("-f 30000", "--set 'model.hidden=[3000, 3000]' --set cluster.ranks=1");
    assert_eq!(code, Some(4), "a checkpoint is larger: {said}");
    assert!(said.contains("file size limit (ulimit -f)"), "{said}");
    let (code, said) = run_under("-n 32", "");
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("ulimit -Hn"), "{said}");
}
