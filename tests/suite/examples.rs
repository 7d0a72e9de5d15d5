//! Every command of every example's README, as a new user would type it.

use crate::emit::the_page_s_command_writes_a_config_of_torchtitan;
use crate::fences::{Block, Kind, blocks, command_with, redirected};
use dtrain_protocol::{Rank, StepId};
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_skip::skip_large;
use dtrain_tests::{TestEnv, newest_checkpoint, root};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// Runs the commands of an example in one house, with `--set` to end long training early. Returns the house.
///
/// Blocks marked `sh parsed` are left out: what they need is not on every machine.
fn follow(document: &str, shorter: &[&str]) -> TestEnv {
    follow_with(document, shorter, None)
}

/// The same, with this `python3` where there is one.
fn follow_with(document: &str, shorter: &[&str], python: Option<&Path>) -> TestEnv {
    let house = TestEnv::default();
    let path = std::env::var_os("PATH").expect("a search path");
    let first = python.map(|python| python.parent().expect("a program has a folder").to_owned());
    let path =
        std::env::join_paths(first.into_iter().chain(std::env::split_paths(&path))).expect("no colons");
    let mut count = 0;
    for block in blocks(document) {
        let Kind::Run { exit } = block.kind() else { continue };
        for command in block.commands() {
            let (mut command, _) = redirected(command);
            if command[0] == "run" && command.iter().any(|word| word.ends_with("recipe.toml")) {
                command.extend(shorter.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
            }
            let output = house
                .dtrain(&command)
                .current_dir(root())
                .env("PATH", &path)
                .stdin(Stdio::null())
                .output()
                .expect("the program starts");
            let error = String::from_utf8_lossy(&output.stderr);
            let place = &block.place;
            assert_eq!(
                output.status.code(),
                Some(exit.unwrap_or(0)),
                "{place}: dtrain {}\n{error}",
                command.join(" ")
            );
            count += 1;
        }
    }
    assert!(count > 0, "{document} has no command");
    house
}

#[test]
fn quickstart() {
    follow("examples/quickstart/README.md", &["objective.stop={ steps = 30 }"]);
}

#[test]
fn digits_cnn() {
    follow("examples/digits-cnn/README.md", &[]);
}

#[test]
fn table_mlp() {
    let house = follow("examples/table-mlp/README.md", &[]);
    let accuracy = house.accuracy("table-mlp-1");
    assert!(accuracy > 0.95, "only {:.2} % of the rows not seen are on the right ring", 100.0 * accuracy);
}

/// Needs PyTorch, which `tests/run foreign` installs.
#[test]
fn foreign_scripts() {
    let python = match dtrain_tests::python_with("torch") {
        Ok(python) => python,
        Err(reason) => return skip_large(reason),
    };
    let argv = format!("model.argv=[{:?}, \"train.py\"]", python.to_str().expect("UTF-8"));
    let house = follow("examples/foreign/README.md", &[&argv]);
    let history = History::open_read_only(&house.history()).expect("a history");
    let trial = history.find("last").expect("a trial");
    let losses = history.series(&trial, "loss", Rank(0)).expect("losses");
    assert_eq!(losses.len(), 100);
}

/// A script in plain Python gets its values as arguments.
#[test]
fn foreign_params() {
    let house = follow("examples/foreign/params/README.md", &[]);
    let history = History::open_read_only(&house.history()).expect("a history");
    for trial in ["params-1", "params-2"] {
        let id = history.find(trial).expect("a trial");
        let last = history
            .trial(&id, &|_| TrialActivity::None)
            .expect("a trial")
            .row
            .best
            .expect("it was validated");
        assert!(last < 0.02, "{trial}: {last}, and the noise of the data is 0.01");
    }
}

#[test]
fn a_script_is_tuned() {
    let house = follow("examples/script-study/README.md", &[]);
    let history = History::open_read_only(&house.history()).expect("a history");
    let events = history.study_events("spirals").expect("a study");
    let count = |kind: &str| events.iter().filter(|event| event.get(kind).is_some()).count();
    assert_eq!((count("launched"), count("ended")), (16, 16), "{events:?}");
    assert!(count("paused") > 0, "ASHA paused none: {events:?}");
}

/// Needs PyTorch, which `tests/run foreign` installs.
#[test]
fn foreign_script_of_pytorch_is_tuned() {
    let python = match dtrain_tests::python_with("torch") {
        Ok(python) => python,
        Err(reason) => return skip_large(reason),
    };
    let house = follow_with("examples/script-study/pytorch/README.md", &[], Some(&python));
    let history = History::open_read_only(&house.history()).expect("a history");
    let events = history.study_events("shapes").expect("a study");
    let count = |kind: &str| events.iter().filter(|event| event.get(kind).is_some()).count();
    assert_eq!((count("launched"), count("ended")), (16, 16), "{events:?}");
    let id = history.find("last").expect("the trial with the best params");
    let best =
        history.trial(&id, &|_| TrialActivity::None).expect("a trial").row.best.expect("it was validated");
    assert!(best > 0.6, "{best}");
}

/// What is approximate is called so wherever a user looks, and what is not is not.
#[test]
fn slow_network() {
    let house = follow("examples/slow-network/README.md", &[]);
    for trial in ["slow-network-1", "slow-network-2", "slow-network-3"] {
        assert!(house.accuracy(trial) > 0.9, "{trial}: {}", house.accuracy(trial));
    }
    let text = |args: &[&str]| String::from_utf8(house.expect(0, args).stdout).expect("text");
    for (trial, words) in [
        ("slow-network-1", Some("approximate: replicas synchronise every 8 steps")),
        ("slow-network-2", None),
        ("slow-network-3", Some("approximate: gradients up to 2 steps old")),
    ] {
        let shown = text(&["show", trial]);
        assert_eq!(shown.matches("approximate").count(), usize::from(words.is_some()), "{shown}");
        assert!(words.is_none_or(|words| shown.contains(words)), "{shown}");
    }
    let history = text(&["history"]);
    let marked: Vec<_> = history.lines().filter(|line| line.contains('≈')).collect();
    assert!(marked.len() == 2 && marked.iter().all(|line| !line.contains("slow-network-2")), "{history}");
    text(&["note", "slow-network-2", "the exact one", "--tag", "keep", "--tag", "figure=2"]);
    let kept = text(&["history", "--where", "tag=keep"]);
    assert!(kept.contains("slow-network-2") && !kept.contains("slow-network-1"), "{kept}");
    let shown = text(&["show", "slow-network-2"]);
    assert!(shown.contains("the exact one") && shown.contains("figure"), "{shown}");
    text(&["note", "slow-network-2", "--untag", "keep"]);
    assert!(!text(&["history", "--where", "tag=keep"]).contains("slow-network"), "it was taken away");
    let planned = text(&["plan", root().join("examples/slow-network/recipe.toml").to_str().expect("text")]);
    let planned = planned.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(planned.contains("approximate: replicas synchronise every 8 steps"), "{planned}");
}

#[test]
fn plan_only() {
    let house = follow("examples/plan-only/README.md", &[]);
    // The pages' commands are about the same model, which was measured there.
    the_page_s_command_draws_a_page(&house);
    println!("{}", the_page_s_command_writes_a_config_of_torchtitan(&house));
}

fn the_page_s_command_draws_a_page(house: &TestEnv) {
    let mut words = command_with("docs/planning.md", "--html");
    words[1] = root().join(&words[1]).to_str().expect("UTF-8").to_owned();
    let said = house.expect(0, words);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("core hours at 0.04") && said.contains("% time"), "{said}");
    let page = fs::read_to_string(house.state().with_file_name("plan.html")).expect("a page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.matches("<svg ").count() == 4);
}

#[test]
fn library() {
    follow("examples/library/README.md", &["objective.stop={ steps = 5 }"]);
}

#[test]
fn tune() {
    follow("examples/tune/README.md", &["objective.stop={ steps = 60 }"]);
}

#[test]
fn llama_405b() {
    let house = follow("examples/llama-405b/README.md", &[]);
    let recipe = root().join("examples/llama-405b/recipe.toml");
    let plan =
        |on| house.dtrain(["plan", recipe.to_str().expect("text"), "--on", on]).output().expect("it starts");
    for (on, what) in [
        ("2x8 Frobnicator", "known types"),
        ("2x8", "names no GPU type"),
        ("2*8 H100", "not a number of hosts"),
        ("2x8 H100 +", "names no GPU type"),
    ] {
        let output = plan(on);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{on}: {error}");
        assert!(error.contains(what), "{on}: {error}");
    }
    for rate in ["0", "-400", "NaN"] {
        let rate = format!("--network={rate}");
        house.expect(2, ["plan", recipe.to_str().expect("text"), "--on", "2x8 H100", &rate]);
    }
}

#[test]
fn published() {
    let house = follow("examples/published/README.md", &[]);
    let table = root().join("examples/published/rows.csv");
    let table = table.to_str().expect("text");
    let output = house.expect(0, ["estimate", table, "--json"]);
    let lines = String::from_utf8(output.stdout).expect("text");
    let rows: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON Lines")).collect();
    assert_eq!(rows.len(), 29, "a line for each row");
    assert_eq!(rows[0]["id"], "narayanan2021-0000", "in the order of the table");
    assert!(rows.iter().all(|row| row["step_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0)));
    assert!(String::from_utf8_lossy(&output.stderr).contains("llm-foundry"), "the summary is for people");
    house.expect(2, ["estimate", table, "--calibrate-on", "nobody"]);
}

/// What `examples/resume` tells, step by step: detach, watch and leave, stop, go on to the end.
#[test]
fn resume() {
    let house = TestEnv::default();
    let blocks = blocks("examples/resume/README.md");
    let mut told = blocks.iter().flat_map(Block::commands);
    let mut next = |verb: &str| {
        let command = told.next().unwrap_or_default();
        assert_eq!(command.first().map(String::as_str), Some(verb), "the README's order");
        command
    };
    let mut run = next("run");
    for set in ["model.layers=1", "model.hidden=32", "objective.stop={ steps = 1500 }"] {
        run.extend(["--set".to_owned(), set.to_owned()]);
    }
    let output = house.dtrain(&run).current_dir(root()).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));

    let mut attach =
        house.dtrain(next("attach")).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts");
    let lines = BufReader::new(attach.stderr.take().expect("piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("step ")), "attach shows steps");
    let id = i32::try_from(attach.id()).expect("process ids are small");
    let process = rustix::process::Pid::from_raw(id).expect("not zero");
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it runs");
    lines.for_each(drop);
    assert_eq!(
        attach.wait().expect("it ends").code(),
        Some(131),
        "Ctrl-C leaves attach, and training goes on"
    );

    house.expect(0, next("stop"));
    house.expect(0, next("resume"));
    assert_eq!(newest_checkpoint(&house.newest_trial()).0, StepId(1500));
}
