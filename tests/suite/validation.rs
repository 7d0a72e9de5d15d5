//! Validation is part of the plan: of its time, and of what a limit and Ctrl-C end.

use dtrain_protocol::Rank;
use dtrain_runner::ledger::{History, MetricSample, TrialActivity, TrialDetails};
use dtrain_tests::TestEnv;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// A house with a text of so many megabytes, and the recipe that `dtrain init` writes for it.
fn house(megabytes: usize) -> TestEnv {
    let house = TestEnv::default();
    let mut text = String::new();
    for line in 0.. {
        if text.len() >= megabytes << 20 {
            break;
        }
        writeln!(text, "{} and {} are {}; {line} follows.", line % 97, line % 89, line % 97 + line % 89)
            .expect("a text grows");
    }
    house.file("text.txt", text);
    house.expect(0, ["init", "mine.toml", "--template", "decoder", "--data", "text.txt"]);
    house
}

fn newest(house: &TestEnv) -> TrialDetails {
    let history = History::open_read_only(&house.history()).expect("a history");
    history.trial(&history.find("last").expect("a trial"), &|_| TrialActivity::None).expect("a trial")
}

fn series(house: &TestEnv, key: &str) -> Vec<MetricSample> {
    let history = History::open_read_only(&house.history()).expect("a history");
    history.series(&history.find("last").expect("a trial"), key, Rank(0)).expect("a series")
}

/// As `dtrain init` and a text of 3 MB, where all validation samples take far longer than the run may.
#[test]
fn a_time_limit_holds_with_validations_and_most_of_the_time_goes_into_steps() {
    const LIMIT: f64 = 8.0;
    let house = house(3);
    let limit = format!("objective.stop.time=\"{LIMIT} s\"");
    let shown = house.expect(0, ["plan", "mine.toml", "--set", &limit, "--explain"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let row = shown.lines().find(|line| line.starts_with("validation ")).expect("a row");
    assert!(row.contains(" each: ") && row.contains(" % of the time"), "{row}");

    let output = house.expect(0, ["run", "mine.toml", "--no-sample", "--set", &limit]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let sum = |key| series(&house, key).iter().map(|sample| sample.value).sum::<f64>();
    let (steps, validations) = (sum("step_seconds"), sum("validation_seconds"));
    assert!(steps > 0.6 * LIMIT, "{steps} s of {LIMIT} s in steps, {validations} s in validations\n{said}");
    let limits = steps + validations;
    // A busy machine may be slower at the end than it was before, and may halt during the last step.
    let last_step = series(&house, "step_seconds").last().expect("a step").value;
    assert!(
        limits - last_step < LIMIT + 2.0,
        "{limits} s of {LIMIT} s, {last_step} s in the last step\n{said}"
    );
    assert!(
        steps - last_step < LIMIT,
        "no step begins after the limit: {steps} s, {last_step} s in the last step"
    );
    let last = series(&house, "valid.loss").last().expect("it was validated").step;
    assert_eq!(last, newest(&house).row.step, "the last validation is that of the end");

    // The share of the training grows by the step alone, also over a validation.
    let (shares, seconds) = (series(&house, "elapsed"), series(&house, "step_seconds"));
    for (pair, step) in shares.windows(2).zip(&seconds).rev().skip(1) {
        let (grown, least) = (pair[1].value - pair[0].value, step.value / LIMIT);
        assert!(
            grown < 3.0 * least + 0.05,
            "step {}: {grown} of the training in {} s",
            step.step,
            step.value
        );
    }

    let time = said.lines().find(|line| line.trim_start().starts_with("time ")).expect("a line");
    assert!(time.contains("training steps (") && time.contains("over all of it"), "{time}");
    let page = house.expect(0, ["show", "last"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    for part in ["training steps", " validations", "checkpoints", "in all"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn ctrl_c_gives_a_validation_up_and_the_trial_goes_on_after_it() {
    let house = house(6);
    // Thousands of samples: minutes.
    let settings =
        ["data.valid=50%", "validation.samples=1M", "validation.every=2", "objective.stop={ steps = 4 }"];
    let mut command = house.dtrain(["run", "mine.toml", "--json", "--set", "train.batch=2"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let validates = lines.by_ref().any(|line| line.expect("UTF-8").contains("\"validating\""));
    assert!(validates, "it says how far the validation is");
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("it runs");
    kill_process(id, Signal::INT).expect("it is ours");
    let rest: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    // It says how far it is several times a second: hundreds of times until it is done.
    let further = rest.iter().filter(|line| line.contains("\"validating\"")).count();
    assert!(further < 32, "it went on {further} times: {:?}", rest.last());
    assert!(!rest.iter().any(|line| line.contains("\"validated\"")), "the validation was given up");
    assert_eq!(newest(&house).row.step, 2);

    house.expect(0, ["resume", "last", "--set", "validation.samples=8"]);
    assert_eq!(newest(&house).row.step, 4);
    let steps: Vec<u64> = series(&house, "valid.loss").iter().map(|sample| sample.step).collect();
    assert_eq!(steps, [4]);
}
