//! Values of a recipe reach a script: as arguments, variables and JSON, on every rank, and the same ones after a resume.

use dtrain_runner::ledger::{History, TrialActivity, TrialDetails};
use dtrain_tests::TestEnv;
use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const RECIPE: &str = r#"name = "script"
[model]
kind = "command"
argv = [
    "python3", "train.py", "--lr={params.lr}", "--optimizer={params.optimizer}", "--momentum={params.momentum}",
    "--batch", "{train.batch}", "--tp={layout.tensor}", "--dp={layout.data}", "--ranks={cluster.ranks}",
    "--tag={params.tag}", "--braces={{params.lr}}", "--depth={params.depth}",
]
env = { RUN_BATCH = "{train.batch}", RUN_MOMENTUM = "{params.momentum}", RUN_LAYOUT = "{layout}" }
progress = ["step {step} loss {loss}"]
[params]
lr = { log = [1e-5, 1e-2] }
depth = { uniform = [2, 8] }
tag = "it's $HOME"
optimizer = { choices = ["adamw", "sgd"] }
momentum = { uniform = [0.8, 0.99], default = 0.9, when = { optimizer = "sgd" } }
[train]
batch = 64
[layout]
tensor = 2
[objective]
stop = { steps = 2 }
[cluster]
ranks = 4
"#;

/// Writes what it was given into the folder of the run, and fails where the folder of the recipe has no file `ready`.
const SCRIPT: &str = r#"import json, os, sys
names = ["RUN_BATCH", "RUN_MOMENTUM", "RUN_LAYOUT", "DTRAIN_PARAMS"]
given = {"argv": sys.argv[1:], "env": {name: os.environ.get(name) for name in names}}
path = os.path.join(os.environ["DTRAIN_RUN_DIR"], f"{os.environ['RANK']}-{os.environ['DTRAIN_ATTEMPT']}.json")
json.dump(given, open(path, "w"))
if not os.path.exists("ready"):
    raise ValueError("not yet")
print("step 1 loss", json.loads(given["env"]["DTRAIN_PARAMS"])["params"]["lr"], flush=True)
"#;

fn newest(house: &TestEnv) -> TrialDetails {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    history.trial(&id, &|_| TrialActivity::None).expect("a trial")
}

/// What a rank of an attempt was given.
fn given(house: &TestEnv, rank: u32, attempt: u32) -> Value {
    let path = house.newest_trial().join(format!("command/{rank}-{attempt}.json"));
    serde_json::from_slice(&fs::read(path).expect("the rank wrote it")).expect("JSON")
}

fn text(house: &TestEnv, args: &[&str]) -> String {
    String::from_utf8(house.expect(0, args).stdout).expect("text")
}

#[test]
fn params_reach_every_rank_of_a_script_and_a_resume_keeps_them() {
    let house = TestEnv::default();
    house.file("train.py", SCRIPT);
    let recipe = house.file("recipe.toml", RECIPE);
    let recipe = recipe.to_str().expect("UTF-8");
    house.expect(5, ["run", recipe]);
    let argv = json!([
        "--lr=0.000316",
        "--optimizer=adamw",
        "--batch",
        "64",
        "--tp=2",
        "--dp=2",
        "--ranks=4",
        "--tag=it's $HOME",
        "--braces={params.lr}",
        "--depth=5"
    ]);
    let first = given(&house, 3, 1);
    assert_eq!(first["argv"], argv);
    let env = &first["env"];
    assert_eq!((&env["RUN_BATCH"], &env["RUN_MOMENTUM"]), (&json!("64"), &Value::Null));
    let json_of =
        |value: &Value| -> Value { serde_json::from_str(value.as_str().expect("a text")).expect("JSON") };
    let layout = json_of(&env["RUN_LAYOUT"]);
    assert_eq!((&layout["tensor"], &layout["data"], &layout["pipeline"]), (&json!(2), &json!(2), &json!(1)));
    let params = json_of(&env["DTRAIN_PARAMS"]);
    let expected = json!({ "lr": 0.000316, "depth": 5, "tag": "it's $HOME", "optimizer": "adamw" });
    assert_eq!(params["params"], expected);
    assert_eq!((&params["train"]["batch"], &params["layout"]), (&json!(64), &layout));
    assert_eq!(params["cluster"]["ranks"], json!(4));

    // The recipe is another by now; the trial goes on with what it began with.
    house.file("recipe.toml", RECIPE.replace("log = [1e-5, 1e-2]", "log = [1e-3, 1e-2]"));
    house.file("ready", "");
    house.expect(0, ["resume", "last"]);
    let attempt = newest(&house).attempts.len();
    assert!(attempt > 1, "a resume is another attempt");
    for rank in 0..4 {
        assert_eq!(given(&house, rank, u32::try_from(attempt).expect("few")), first, "rank {rank}");
    }
}

#[test]
fn params_are_recorded_shown_compared_and_filtered() {
    let house = TestEnv::default();
    house.file("train.py", SCRIPT);
    house.file("ready", "");
    let recipe = house.file("recipe.toml", RECIPE);
    let recipe = recipe.to_str().expect("UTF-8");
    house.expect(0, ["run", recipe]);
    let output = house
        .dtrain(["run", recipe, "--set", "params.lr=3e-4", "--set", "params.depth.default=7"])
        .env("DTRAIN_PARAMS__OPTIMIZER", "sgd")
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let second = given(&house, 0, 1);
    assert_eq!(second["argv"][2], json!("--momentum=0.9"), "it applies beside sgd: {second}");
    assert_eq!(second["env"]["RUN_MOMENTUM"], json!("0.9"));
    let trial = newest(&house);
    let value = |path: &str| trial.params.iter().find(|param| param.path == path).map(|param| &param.value);
    assert_eq!(value("params.lr"), Some(&json!(3e-4)));
    assert_eq!((value("params.depth"), value("params.optimizer")), (Some(&json!(7)), Some(&json!("sgd"))));
    let shown = text(&house, &["show", "last"]);
    assert!(shown.contains("params.lr") && shown.contains("0.0003") && shown.contains("batch 64"), "{shown}");
    let compared = text(&house, &["compare", "script-1", "script-2"]);
    assert!(compared.contains("params.optimizer") && compared.contains("params.momentum"), "{compared}");
    for (condition, found) in [
        ("params.lr<3.1e-4", "script-2"),
        ("params.optimizer=adamw", "script-1"),
        ("params.optimizer=sgd and params.depth>=7", "script-2"),
    ] {
        let listed = text(&house, &["history", "--csv", "--where", condition]);
        assert!(listed.lines().count() == 2 && listed.contains(found), "{condition}: {listed}");
    }
    let planned = text(&house, &["plan", recipe]);
    assert!(planned.contains("--lr=0.000316") && planned.contains("log = [1e-5, 0.01]"), "{planned}");
}

/// Reports two metrics through the Python file of dtrain, and prints a third one.
const METRICS: &str = r#"import sys, time
sys.path.insert(0, PYTHON)
import dtrain
lr = dtrain.params(lr=1.0, depth=3)
assert lr == {"lr": 0.5, "depth": 3}, lr
for epoch in range(1, 201):
    dtrain.report(step=epoch, **{"val/f1": epoch / 100, "val/loss": float("nan") if epoch == 2 else 1 / epoch})
    print(f"epoch {epoch} accuracy: {epoch / 2}%", flush=True)
    if dtrain.should_prune():
        open("asked", "w").write(str(epoch))
        break
    time.sleep(0.02)
"#;

const METRICS_RECIPE: &str = r#"name = "metrics"
[model]
kind = "command"
argv = ["python3", "train.py"]
progress = ["epoch {step} accuracy: {accuracy}%"]
[params]
lr = 0.5
[objective]
metric = "val/f1"
goal = "max"
stop = { target = 0.3 }
"#;

/// `runner/python`, as Python writes a text.
fn python_folder() -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../runner/python");
    format!("{:?}", folder.canonicalize().expect("it is in the repository"))
}

#[test]
fn a_script_reports_any_metric_and_ends_at_the_target_of_one() {
    let house = TestEnv::default();
    house.file("train.py", METRICS.replace("PYTHON", &python_folder()));
    let recipe = house.file("recipe.toml", METRICS_RECIPE);
    house.expect(0, ["run", recipe.to_str().expect("UTF-8")]);
    let trial = newest(&house);
    let figure = |key: &str| trial.figures.iter().find(|f| f.key == key).unwrap_or_else(|| panic!("{key}"));
    let reached = figure("val/f1").max.expect("reported");
    assert!((0.3..1.0).contains(&reached), "it was ended at its target: {reached}");
    assert_eq!((trial.row.best, trial.row.objective.as_str()), (Some(reached), "val/f1"));
    assert!(
        trial.verdict.as_ref().is_some_and(|v| format!("{v:?}").contains("Target")),
        "{:?}",
        trial.verdict
    );
    assert_eq!((figure("accuracy").min, figure("val/loss").min_step), (Some(0.5), figure("val/f1").max_step));
    let unmeasured = ["valid.accuracy", "tokens_per_second", "learning_rate", "memory_bytes"];
    assert!(trial.figures.iter().all(|f| !unmeasured.contains(&f.key.as_str())), "{:?}", trial.figures);
    assert!(recipe.with_file_name("asked").exists(), "the script ended by itself");

    let list = text(&house, &["history", "--where", "val/f1>=0.3 and accuracy>0", "--by", "best"]);
    assert!(list.contains("metrics-1") && list.contains(&format!("{reached:.4}")), "{list}");
    assert!(!text(&house, &["history", "--where", "accuracy<0"]).contains("metrics-1"));
    let page = text(&house, &["show", "last"]);
    assert!(page.contains("val/f1") && page.contains("val/loss") && page.contains("best"), "{page}");
    house.expect(0, ["run", recipe.to_str().expect("UTF-8"), "--set", "objective.stop.target=0.5"]);
    let compared = text(&house, &["compare", "metrics-1", "metrics-2"]);
    assert!(compared.contains("best val/f1") && compared.contains("time to val/f1"), "{compared}");
}

#[test]
fn a_metric_needs_a_goal_and_a_model_of_dtrain_has_none_of_its_own() {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", METRICS_RECIPE.replace("goal = \"max\"\n", ""));
    let refused = house.expect(2, ["check", recipe.to_str().expect("UTF-8")]);
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("missing `objective.goal`") && refused.contains("goal = \"max\""), "{refused}");
}

/// A script whose metric is best at `x` = 0.3, and depends on `x` and `kind` alone; it prints one line a step.
pub(crate) const STUDIED: &str = r#"import sys, time
x, kind, pause, steps = float(sys.argv[1]), sys.argv[2], float(sys.argv[3]), 9
if kind == "broken":
    raise ValueError("no such kind")
for step in range(1, steps + 1):
    time.sleep(pause)
    print(f"step {step} score {1 - (x - 0.3) ** 2 - 0.5 / step:.6f}", flush=True)
"#;

/// Its recipe.
pub(crate) const STUDY: &str = r#"name = "study"
[model]
kind = "command"
argv = ["python3", "train.py", "{params.x}", "{params.kind}", "{params.pause}"]
progress = ["step {step} score {score}"]
[params]
x = { uniform = [0.0, 1.0] }
kind = { choices = ["plain", "broken"] }
pause = 0.01
[objective]
metric = "score"
goal = "max"
stop = { target = 2.0 }
[cluster]
ranks = 1
"#;

/// A house with the study, and the path of its recipe.
fn studied() -> (TestEnv, String) {
    let house = TestEnv::default();
    house.file("train.py", STUDIED);
    let recipe = house.file("recipe.toml", STUDY);
    (house, recipe.to_str().expect("UTF-8").to_owned())
}

/// What a study of the recipe found, as JSON: its last line.
fn tuned(house: &TestEnv, recipe: &str, more: &[&str]) -> Value {
    let base = ["tune", recipe, "--study", "s", "--quiet", "--json"];
    let output = house.expect(0, base.iter().chain(more).copied());
    let text = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

fn events(house: &TestEnv) -> Vec<Value> {
    let history = History::open_read_only(&house.history()).expect("a history");
    history.study_events("s").expect("readable")
}

#[test]
fn a_study_of_a_script_that_is_killed_goes_on_to_the_same_end() {
    let (house, recipe) = studied();
    let settings = ["--trials", "9", "--sampler", "tpe"];
    let whole = tuned(&house, &recipe, &settings);
    let trials = whole["trials"].as_array().expect("a list");
    assert_eq!(trials.len(), 9, "{whole}");
    let failed = trials.iter().filter(|trial| trial["outcome"]["failed"]["reason"] == "crashed").count();
    assert!((1..=6).contains(&failed), "a script that fails is a result: {whole}");
    let best = whole["recommended"]["values"][1].as_f64().or(whole["recommended"]["values"][0].as_f64());
    assert!((best.expect("a number") - 0.3).abs() < 0.25, "{}", whole["recommended"]);

    let (broken, recipe) = studied();
    for kill in 0..3 {
        let mut study = broken
            .dtrain(["tune", &recipe, "--study", "s", "--quiet"].iter().chain(&settings).copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let wanted = 15 * (kill + 1);
        let begun = Instant::now();
        while broken.history().exists() && events_of(&broken) < wanted || !broken.history().exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "fewer than {wanted} events in a minute");
            thread::sleep(Duration::from_millis(3));
        }
        study.kill().expect("it runs");
        study.wait().expect("it ends");
    }
    let resumed = tuned(&broken, &recipe, &settings);
    assert_eq!(resumed["trials"], whole["trials"], "the same proposals, and the same results");
    assert_eq!(resumed["recommended"], whole["recommended"]);
}

/// Events of the study so far; 0 before it began.
fn events_of(house: &TestEnv) -> usize {
    let history = History::open_read_only(&house.history());
    history.and_then(|history| history.study_events("s")).map_or(0, |events| events.len())
}

#[test]
fn trials_run_side_by_side_and_asha_pauses_and_prunes() {
    let (house, recipe) = studied();
    let settings = ["--trials", "8", "--slots", "4", "--pruner", "asha", "--sampler", "sobol"];
    let set =
        ["--set", "params.pause=0.15", "--set", "params.kind=\"plain\"", "--set", "objective.stop.steps=9"];
    let more: Vec<&str> = settings.iter().chain(&set).copied().collect();
    let found = tuned(&house, &recipe, &more);
    let log = events(&house);
    let kind = |event: &Value| event.as_object().expect("an event").keys().next().expect("a kind").clone();
    let mut running = 0i32;
    let most = log.iter().map(|event| {
        running += match kind(event).as_str() {
            "launched" | "resumed" => 1,
            "paused" => -1,
            "ended" if event["ended"]["outcome"].get("pruned").is_none() => -1,
            _ => 0,
        };
        running
    });
    assert_eq!(most.max(), Some(4), "four trials ran side by side: {log:?}");
    assert!(log.iter().any(|event| kind(event) == "paused"), "{log:?}");
    let pruned = found["trials"].as_array().expect("a list").iter();
    let pruned = pruned.filter(|trial| trial["outcome"].get("pruned").is_some()).count();
    assert!(pruned > 0, "{found}");
    let list = text(&house, &["history", "--where", "study=s and status=pruned"]);
    assert_eq!(list.matches("pruned").count(), pruned, "{list}");
    // More trials of the same study, and a new one that begins with what this one found.
    let more_trials: Vec<&str> = ["--trials", "9"].iter().chain(&more[2..]).copied().collect();
    assert_eq!(tuned(&house, &recipe, &more_trials)["trials"].as_array().map(Vec::len), Some(9));
    let base = ["tune", &recipe, "--study", "t", "--from", "s", "--trials", "1", "--quiet", "--json"];
    let output = house.expect(0, base.iter().chain(&set).copied());
    let last = String::from_utf8(output.stdout).expect("text");
    let second: Value = serde_json::from_str(last.lines().last().expect("a line")).expect("JSON");
    assert!(second["trials"].as_array().map_or(0, Vec::len) > 5, "{second}");
}

#[test]
fn a_study_with_nothing_to_search_or_without_a_metric_says_what_to_do() {
    let (house, recipe) = studied();
    let refused = |args: &[&str], code: i32| {
        let output = house.expect(code, args.iter().copied());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = refused(&["tune", &recipe, "--set", "params.x=0.5", "--set", "params.kind=\"plain\""], 2);
    assert!(error.contains("give a param a range"), "{error}");
    let error = refused(&["tune", &recipe, "--sampler", "magic"], 2);
    assert!(error.contains("tune.sampler") && error.contains("tpe"), "{error}");
    let error = refused(&["tune", &recipe, "--pruner", "threshold"], 2);
    assert!(error.contains("tune.threshold"), "{error}");
    let plain = ["--set", "params.kind=\"plain\"", "--set", "objective.metric=\"f1\""];
    let args: Vec<&str> = ["tune", &recipe].iter().chain(&plain).copied().collect();
    let error = refused(&args, 5);
    assert!(error.contains("without a value of `f1`"), "{error}");
}
