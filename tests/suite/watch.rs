//! `dtrain watch` in a pseudo-terminal, while a trial runs.

use dtrain_runner::ledger::{History, TrialActivity, TrialStatus};
use dtrain_tests::{TestEnv, root};
use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run of the tiny recipe that lasts until it is stopped.
fn run(house: &TestEnv) -> Child {
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let mut command = house.dtrain(["run", recipe.to_str().expect("UTF-8"), "--no-sample", "--quiet"]);
    for setting in ["objective.stop={ steps = 100000 }", "cluster.ranks=2", "layout.data=2"] {
        command.args(["--set", setting]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().expect("it starts");
    let begun = Instant::now();
    while newest(house).is_none_or(|(_, step)| step == 0) {
        assert!(begun.elapsed() < PATIENCE, "it should train");
        sleep(Duration::from_millis(20));
    }
    child
}

/// How the newest trial stands, and its last recorded step.
fn newest(house: &TestEnv) -> Option<(TrialStatus, u64)> {
    let history = History::open_read_only(&house.history()).ok()?;
    let trial = history.trial(&history.find("last").ok()?, &|_| TrialActivity::Running).ok()?;
    Some((trial.row.status, trial.row.step))
}

/// Runs `dtrain watch` in a terminal of this size, and does these steps (see `tests/data/watch_terminal.py`).
fn watch(house: &TestEnv, size: (u16, u16), name: &str, steps: &str) -> Output {
    let program = house.dtrain(["watch", name].into_iter().filter(|word| !word.is_empty()));
    let mut command = Command::new("python3");
    command.arg(root().join("tests/data/watch_terminal.py")).args([size.0.to_string(), size.1.to_string()]);
    command.arg(program.get_program()).args(program.get_args()).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("python3");
    child.stdin.take().expect("a pipe").write_all(steps.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    output
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[test]
fn a_watched_trial_goes_on_when_the_viewer_leaves_and_stops_when_asked() {
    let house = TestEnv::default();
    let mut run = run(&house);
    let label = "tiny-1";
    let shown = watch(
        &house,
        (80, 24),
        "last",
        "wait loss\nwait checkpoint\nwait RANKS 2\nshow\ntype ?\nwait KEYS\ntype x\nwait RANKS 2\n\
         type l\nwait LOG\ntype q\nend\n",
    );
    let page = text(&shown);
    assert!(page.contains(label) && page.contains("running") && page.contains("/100000"), "{page}");
    assert!(page.contains("the screen is given back"), "{page}");
    assert!(run.try_wait().expect("ours").is_none(), "the trial goes on");
    for ends in ["type \\x03\nend\n", "signal TERM\nend\n"] {
        let left = text(&watch(&house, (60, 20), "last", &format!("wait RANKS 2\n{ends}")));
        assert!(left.contains("the screen is given back"), "{left}");
    }
    let resized = "wait RANKS 2\nsize 100 30\nwait RANKS 2\nsize 38 10\nwait dtrain watch needs 40x12\nsize 80 24\n\
        wait RANKS 2\ntype l\nwait LOG\nsignal TERM\nend\n";
    assert!(text(&watch(&house, (80, 24), "last", resized)).contains("the screen is given back"));
    watch(&house, (u16::MAX, u16::MAX), "last", "wait RANKS 2\ntype q\nend\n");
    watch(&house, (60, 20), "last", "wait RANKS 2\nhang\n");
    let (status, step) = newest(&house).expect("a trial");
    assert_eq!(status, TrialStatus::Running);
    // Without a name what runs is listed, and Enter opens it.
    let steps = "wait 1 trial running\ntype \\r\nwait RANKS 2\ntype s\nwait stop tiny-1\ntype n\ntype s\nwait stop tiny-1\n\
                 type y\nwait stopped\ntype q\nend\n";
    assert!(text(&watch(&house, (160, 48), "", steps)).contains("the screen is given back"));
    assert_eq!(run.wait().expect("it ends").code(), Some(130));
    let (status, last) = newest(&house).expect("a trial");
    assert!(status == TrialStatus::Stopped && last >= step, "{status} at {last}");
}

#[test]
fn without_a_terminal_watch_names_another_command() {
    let house = TestEnv::default();
    let output = house.expect(2, ["watch", "last"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("needs a terminal") && said.contains("dtrain attach last"), "{said}");
}
