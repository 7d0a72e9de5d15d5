//! Recipes that another engine trains. `tests/run engines` installs PyTorch, torchtitan and transformers and runs these alone;
//! without them a test is skipped. CI runs a short form.

mod control;
mod failures;
mod families;
mod hosts;
mod install;
mod layouts;
mod slurm;
mod weights;

use crate::interop::series;
use dtrain_protocol::Rank;
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_skip::skip_large;
use dtrain_tests::{TestEnv, python_with, root};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Engines that `dtrain run` starts, besides dtrain's own worker.
const ENGINES: [&str; 2] = ["fsdp", "torchtitan"];

/// Time within which an engine saves its second checkpoint.
const PATIENCE: Duration = Duration::from_secs(300);

const RECIPE: &str = r#"
[model]
kind = "decoder"
family = "llama"
layers = 2
hidden = 64
heads = 4
kv_heads = 2
ffn = 128
vocab = 256
context = 64

[data]
train = ["corpus.txt"]
valid = "5%"

[train]
batch = 8
learning_rate = 1e-2
precision = "f32"
optimizer = { kind = "adamw", weight_decay = 0.1 }

[objective.stop]
steps = 30

[validation]
every = "10 steps"

[cluster]
ranks = 2
devices = "cpu"
"#;

/// Steps of the recipe.
const STEPS: u32 = 30;

/// Returns the text of the recipe.
fn corpus() -> String {
    let words = ["gradient", "descends", "slowly", "over", "a", "rough", "loss", "surface"];
    let text: Vec<_> = (0..6000usize).map(|at| words[at * at % 13 % words.len()]).collect();
    text.join(" ")
}

/// Makes a folder with the recipe and its text.
fn env() -> TestEnv {
    let env = TestEnv::default();
    env.file("recipe.toml", RECIPE);
    env.file("corpus.txt", corpus());
    env
}

/// Returns an interpreter with the packages of all engines; `None`, the test being skipped, where there is none, and in CI
/// for a test that does not belong to the short form there.
fn python(form: Form) -> Option<PathBuf> {
    if form == Form::Whole && std::env::var_os("TESTS_WHOLE_ENGINES").is_none() {
        skip_large("it belongs to the whole form, `tests/run engines`".to_owned());
        return None;
    }
    python_with("torchtitan").map_err(skip_large).ok()
}

/// The form of these tests to which one belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// That of CI.
    Short,
    /// That of `tests/run engines`.
    Whole,
}

/// Returns the interpreter for an engine on this machine's CPUs. torchtitan expects an accelerator, so its interpreter
/// first makes the CPU look like one.
fn interpreter(env: &TestEnv, engine: &str, python: &Path) -> PathBuf {
    if engine != "torchtitan" {
        return python.to_owned();
    }
    let shim = root().join("tests/data/engines/cpu_shim.py");
    let (python, shim) = (python.display(), shim.display());
    let script = format!(
        "#!/bin/sh\n[ \"$2\" = torchtitan.train ] || exec {python} \"$@\"\nshift 2\nexec {python} {shim} \"$@\"\n"
    );
    let path = env.file("python", script);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

/// Returns the command that trains the recipe with an engine.
fn command(env: &TestEnv, engine: &str, python: &Path, more: &[&str]) -> Vec<String> {
    let python = format!("cluster.python={}", interpreter(env, engine, python).display());
    let fixed = ["run", "--quiet", "--no-sample", "--engine", engine, "--set", &python];
    let more = more.iter().flat_map(|setting| ["--set", setting]);
    fixed.into_iter().chain(more).map(str::to_owned).collect()
}

/// Trains the recipe with an engine, and returns the loss of each step.
fn losses(env: &TestEnv, engine: &str, python: &Path, more: &[&str]) -> Vec<f64> {
    env.expect(0, command(env, engine, python, more));
    series(env, "loss")
}

/// Asserts that losses are those that were wanted, to a thousandth.
fn assert_near(what: &str, wanted: &[f64], found: &[f64]) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (step, (wanted, found)) in wanted.iter().zip(found).enumerate() {
        assert!((wanted - found).abs() < 1e-3, "{what}, step {}: {found}, not {wanted}", step + 1);
    }
}

/// Returns the process of rank 1 of the trial, once it is an engine's.
fn second_rank(trial: &str) -> Option<Pid> {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let has = |path: PathBuf, texts: &[&str]| {
        let found = fs::read(path).unwrap_or_default();
        let found = String::from_utf8_lossy(&found).into_owned();
        texts.iter().all(|text| found.split('\0').any(|one| one.contains(text)))
    };
    let mut found = processes.map(|entry| entry.path()).filter(|path| {
        has(path.join("environ"), &[trial, "RANK=1", "DTRAIN_ENGINE_JOB="])
            && has(path.join("cmdline"), &["python"])
    });
    let number = found.next()?.file_name()?.to_str()?.parse().ok()?;
    Pid::from_raw(number)
}

#[test]
fn engines_train_as_the_own_worker_does() {
    let Some(python) = python(Form::Short) else { return };
    let env = env();
    let zero = ["layout.zero=3", "layout.data=2"];
    let wanted = losses(&env, "dtrain", &python, &zero);
    let valid = series(&env, "valid.loss");
    assert_eq!((wanted.len(), valid.len()), (30, 3));
    for engine in ENGINES {
        assert_near(engine, &wanted, &losses(&env, engine, &python, &zero));
        assert_near(engine, &valid, &series(&env, "valid.loss"));
        let shown = String::from_utf8(env.expect(0, ["show", "last"]).stdout).expect("UTF-8");
        assert!(shown.contains("tokens/s") && !shown.contains("forward"), "it reports no phases: {shown}");
    }
    env.expect(0, command(&env, "torchtitan", &python, &["layout.pipeline=2"]));
    // The last stage of a pipeline knows the loss.
    let reported = |key| {
        let history = History::open_read_only(&env.history()).expect("a history");
        let trial = history.find("last").expect("a trial");
        let points = history.series(&trial, key, Rank(1)).expect("a series");
        points.iter().map(|point| point.value).collect::<Vec<_>>()
    };
    let (found, validated) = (reported("loss"), reported("valid.loss"));
    assert_near("pipeline", &wanted, &found);
    assert_near("pipeline", &valid, &validated);
}

#[test]
fn the_python_package_passes_its_tests() {
    let Some(python) = python(Form::Whole) else { return };
    let package = root().join("runner/python");
    let mut tests = Command::new(python);
    tests.args(["-m", "unittest", "discover", "-s"]).arg(package.join("tests")).env("PYTHONPATH", &package);
    let output = tests.output().expect("python starts");
    let words = String::from_utf8_lossy(&output.stderr);
    let files = fs::read_dir(package.join("tests")).expect("a folder").flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let count: usize = texts.map(|text| text.matches("    def test_").count()).sum();
    let all = format!("Ran {count} tests");
    assert!(output.status.success() && count > 40 && words.contains(&all), "{all}: {words}");
}

#[test]
fn a_killed_rank_of_an_engine_goes_on_from_its_newest_checkpoint() {
    let Some(python) = python(Form::Whole) else { return };
    let settings = ["layout.zero=3", "layout.data=2", "checkpoint.every=5 steps"];
    for engine in ENGINES {
        let env = env();
        let wanted = losses(&env, "dtrain", &python, &settings);
        let mut run = env.dtrain(command(&env, engine, &python, &settings)).spawn().expect("it starts");
        let begun = Instant::now();
        let rank = loop {
            assert!(begun.elapsed() < PATIENCE, "{engine} saves no checkpoint");
            std::thread::sleep(Duration::from_millis(50));
            let Some(trial) = env.find_newest_trial() else { continue };
            let is_saved = trial.join("checkpoints/engine/step-10/.metadata").exists();
            let id = trial.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
            if let (true, Some(rank)) = (is_saved, second_rank(&id)) {
                break rank;
            }
        };
        kill_process(rank, Signal::KILL).expect("it is there");
        assert!(run.wait().expect("it ends").success(), "{engine}");
        assert_near(engine, &wanted, &series(&env, "loss"));
        let history = History::open_read_only(&env.history()).expect("a history");
        let trial = history.find("last").expect("a trial");
        let attempts = history.trial(&trial, &|_| TrialActivity::None).expect("it is there").attempts;
        assert_eq!(attempts.len(), 2, "{engine}: the rank was killed once");
    }
}
