//! What a new user breaks in the first hour: each ends with a clear word, soon, and loses nothing.

use dtrain_runner::ledger::{History, Trial};
use dtrain_tests::{House, root};
use std::process::Output;

/// What the program printed on standard error, with all white space as one space.
fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn newest(house: &House) -> Trial {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    history.trial(&id, &|_| false).expect("a trial")
}

/// A recipe that runs a Python script with these lines.
fn script(house: &House, lines: &str) -> String {
    house.file("train.py", lines);
    let recipe = "name = \"script\"\n[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\n\
        progress = [\"step {step} loss {loss}\"]\n[objective]\nstop = { steps = 100 }\n[cluster]\nranks = 1\n";
    house.file("recipe.toml", recipe).to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_script_that_raises_is_tried_once_and_its_traceback_is_shown() {
    let house = House::default();
    let lines = "import sys\nfor step in range(1, 100):\n    if step == 7:\n        raise ValueError('bad batch')\n    \
        print('step', step, 'loss', 1 / step, flush=True)\n";
    let recipe = script(&house, lines);
    let output = house.expect(5, ["run", &recipe]);
    let words = words(&output);
    assert!(words.contains("Traceback (most recent call last):"), "{words}");
    assert!(words.contains("line 4, in <module>") && words.contains("ValueError: bad batch"), "{words}");
    let trial = newest(&house);
    assert_eq!((trial.attempts.len(), trial.row.step), (1, 6));
    assert!(trial.figures.iter().all(|figure| figure.key != "valid.accuracy"), "it told no accuracy");
    let shown = String::from_utf8_lossy(&house.expect(0, ["show", "last"]).stdout).into_owned();
    assert!(!shown.contains("accuracy") && !shown.contains("0 samples/s"), "{shown}");
}

#[test]
fn a_program_that_cannot_be_started_is_tried_once() {
    let house = House::default();
    let recipe = script(&house, "");
    let output = house.expect(5, ["run", &recipe, "--set", r#"model.argv=["python4", "train.py"]"#]);
    assert!(words(&output).contains("python4: not found"), "{}", words(&output));
    assert_eq!(newest(&house).attempts.len(), 1);
    let output = house.expect(5, ["run", &recipe, "--set", r#"model.argv=["./train.py"]"#]);
    assert!(words(&output).contains("./train.py: not executable"), "{}", words(&output));
}

#[test]
fn the_same_exit_code_twice_at_the_same_step_is_the_end() {
    let house = House::default();
    let recipe = script(&house, "import sys\nprint('step 1 loss 2', flush=True)\nsys.exit(9)\n");
    let output = house.expect(5, ["run", &recipe]);
    assert_eq!(newest(&house).attempts.len(), 2, "{}", words(&output));
}

#[test]
fn a_loss_that_is_not_a_number_is_recorded_as_such() {
    let house = House::default();
    let recipe = script(
        &house,
        "for step in range(1, 6):\n    print('step', step, 'loss', 'nan' if step == 3 else 1.5)\n",
    );
    house.expect(0, ["run", &recipe]);
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    let losses = history.series(&id, "loss", dtrain_protocol::Rank(0)).expect("losses");
    let losses: Vec<_> = losses.iter().map(|point| (point.step, point.value.is_nan())).collect();
    assert_eq!(losses, [(1, false), (2, false), (3, true), (4, false), (5, false)]);
}

#[test]
fn a_batch_that_the_data_cannot_fill_is_refused_before_a_trial_is_recorded() {
    let house = House::default();
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let recipe = recipe.to_str().expect("UTF-8");
    for batch in ["10000", "400000", "1000000"] {
        let arguments =
            ["run", recipe, "--set", &format!("train.batch={batch}"), "--set", "layout.micro_batch=1"];
        let words = words(&house.expect(2, arguments));
        assert!(words.contains(&format!("train.batch is {batch}, and the data has")), "{words}");
    }
    assert!(!house.state().join("trials").exists(), "nothing was recorded");
}

#[test]
fn a_model_that_cannot_fit_is_refused_before_anything_is_measured() {
    let house = House::default();
    house.file("text.txt", "some text to learn from, again and again\n".repeat(400));
    let recipe = "name = \"large\"\n[model]\nkind = \"decoder\"\nfamily = \"llama\"\nlayers = 80\nhidden = 8192\n\
        heads = 64\ncontext = 128\n[data]\ntrain = \"text.txt\"\n[objective]\nstop = { steps = 10 }\n";
    let recipe = house.file("recipe.toml", recipe);
    let output = house.expect(3, ["plan", recipe.to_str().expect("UTF-8")]);
    let words = words(&output);
    assert!(
        words.contains("no layout fits; the nearest is") && words.contains("GiB are available"),
        "{words}"
    );
    assert!(!words.contains("measuring"), "{words}");
}

#[test]
fn steps_alone_do_not_make_hundreds_of_epochs_and_epochs_are_told() {
    let house = House::default();
    house.file("text.txt", "some text to learn from, again and again\n".repeat(1000));
    let recipe = "name = \"small\"\n[model]\nkind = \"decoder\"\nlayers = 1\nhidden = 32\nheads = 2\ncontext = 128\n\
        [data]\ntrain = \"text.txt\"\n[objective]\nstop = { steps = 600 }\n";
    let recipe = house.file("recipe.toml", recipe);
    let plan = house.expect(0, ["plan", recipe.to_str().expect("UTF-8"), "--json"]);
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).expect("JSON");
    let plan = if plan["batch"].is_null() { &plan["plan"] } else { &plan };
    let seen = 600 * plan["batch"]["value"].as_u64().expect("a batch");
    let samples = plan["train_samples"].as_u64().expect("counted");
    assert!(seen <= 23 * samples, "{seen} of {samples}");
}
