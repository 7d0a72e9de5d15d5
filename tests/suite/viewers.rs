//! Any number of terminals watch one trial.

use dtrain_protocol::TrialId;
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::{TestEnv, root};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Steps of the run. It must still train when every viewer has attached, on a machine whose cores do other work.
const STEPS: usize = 8_000;

/// A run of the tiny recipe that lasts for some seconds.
fn run(house: &TestEnv) -> Child {
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let mut command = house.dtrain(["run", recipe.to_str().expect("UTF-8"), "--no-sample"]);
    let stop = format!("objective.stop={{ steps = {STEPS} }}");
    for setting in [stop.as_str(), "cluster.ranks=2", "layout.data=2", "checkpoint.every=\"1000 steps\""] {
        command.args(["--set", setting]);
    }
    let child = piped(command);
    let begun = Instant::now();
    while trial(house).is_none_or(|(_, step)| step == 0) {
        assert!(begun.elapsed() < PATIENCE, "it should train");
        sleep(Duration::from_millis(20));
    }
    child
}

fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// The trial and its last recorded step.
fn trial(house: &TestEnv) -> Option<(TrialId, u64)> {
    let history = History::open_read_only(&house.history()).ok()?;
    let trial = history.find("last").ok()?;
    let step = history.trial(&trial, &|_| TrialActivity::None).ok()?.row.step;
    Some((trial, step))
}

/// Exit code, standard output and standard error.
fn ended(mut child: Child) -> (Option<i32>, String, String) {
    let mut errors = child.stderr.take().expect("a pipe");
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).map(|_| text)
    });
    let mut printed = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("UTF-8");
    let said = said.join().expect("no panic").expect("UTF-8");
    (child.wait().expect("it ends").code(), printed, said)
}

#[test]
fn viewers_follow_a_trial_that_another_terminal_runs() {
    let house = TestEnv::default();
    let run = run(&house);
    let attach = || piped(house.dtrain(["attach", "last"]));
    let viewers = [attach(), attach()];
    let json = piped(house.dtrain(["attach", "last", "--json"]));
    let logs = piped(house.dtrain(["logs", "last", "--follow"]));
    let (code, _, said) = ended(run);
    assert_eq!(code, Some(0), "{said}");
    for viewer in viewers {
        let (code, _, said) = ended(viewer);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("which process") && said.contains("training "), "{said}");
        assert!(
            said.contains("step ") && said.contains(&format!("/{STEPS}")) && said.contains("loss "),
            "{said}"
        );
        assert!(said.contains("completed after 8,000 of 8,000 steps"), "{said}");
    }
    let (id, _) = trial(&house).expect("a trial");
    let (code, printed, said) = ended(json);
    assert_eq!(code, Some(0), "{said}");
    let lines = printed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let lines: Vec<_> = lines.collect();
    assert!(lines.len() > STEPS && lines.iter().all(|line| line["trial"] == id.0), "{printed}");
    let (code, printed, said) = ended(logs);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        printed.contains(&format!("/{STEPS}   loss "))
            && printed.contains(&format!("checkpoint at step {STEPS} saved")),
        "{printed}"
    );
    // What is over can still be read.
    let output = house.expect(0, ["logs", "last"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("checkpoint at step {STEPS} saved")));
}

#[test]
fn a_viewer_takes_over_when_the_controller_is_killed() {
    let house = TestEnv::default();
    let mut run = run(&house);
    let mut viewer = piped(house.dtrain(["attach", "last"]));
    // The controller dies only when the viewer has said that it is not the first.
    let mut errors = BufReader::new(viewer.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("which process") {
        assert_ne!(errors.read_line(&mut said).expect("UTF-8"), 0, "it was the first: {said}");
    }
    run.kill().expect("it runs");
    run.wait().expect("it ends");
    errors.read_to_string(&mut said).expect("UTF-8");
    assert_eq!(viewer.wait().expect("it ends").code(), Some(0), "{said}");
    assert!(said.contains("completed after 8,000 of 8,000 steps"), "{said}");
}
