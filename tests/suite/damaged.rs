//! The newest checkpoint is damaged: every command takes the newest intact one, and says so.

use dtrain_runner::ledger::{History, TrialActivity, TrialDetails, TrialStatus};
use dtrain_tests::{TestEnv, root};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A trial of a table, with checkpoints of steps 21, 28 and 30.
fn trained() -> TestEnv {
    let house = TestEnv::default();
    let recipe = root().join("examples/table-mlp/recipe.toml").display().to_string();
    let settings = [
        "--set",
        "checkpoint.every=\"7 steps\"",
        "--set",
        "checkpoint.keep=3",
        "--set",
        "objective.stop={ steps = 30 }",
    ];
    house.expect(0, ["run", &recipe, "--quiet"].into_iter().chain(settings));
    house
}

/// The folder of the checkpoint at a step of the trial whose folder this is.
fn checkpoint(trial: &Path, step: u64) -> PathBuf {
    let prefix = format!("step-{step:09}.a");
    let entries = fs::read_dir(trial.join("checkpoints")).expect("checkpoints were made").flatten();
    let folder = entries.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(&prefix));
    folder.unwrap_or_else(|| panic!("there is a checkpoint at step {step}"))
}

/// Flips a bit in the middle of the tensors of a checkpoint.
fn damage(folder: &Path) {
    let path = folder.join("rank-00000.safetensors");
    let file = fs::File::options().read(true).write(true).open(path).expect("it is there");
    let middle = file.metadata().expect("a length").len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).expect("it is as long");
    file.write_all_at(&[byte[0] ^ 1], middle).expect("room on disk");
}

fn trials(house: &TestEnv) -> usize {
    fs::read_dir(house.state().join("trials")).expect("trials were made").count()
}

fn newest(house: &TestEnv) -> TrialDetails {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    history.trial(&id, &|_| TrialActivity::None).expect("a trial")
}

/// What a command that succeeds prints on standard error, without line breaks.
fn words(house: &TestEnv, code: i32, arguments: &[&str]) -> String {
    let output = house.expect(code, arguments);
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

const GOES_BACK: [&str; 3] = [
    "the checkpoint at step 30 of table-mlp-1 is damaged (",
    "rank-00000.safetensors",
    "going back to step 28",
];

fn assert_goes_back(said: &str) {
    for part in GOES_BACK {
        assert!(said.contains(part), "expected `{part}` in: {said}");
    }
}

#[test]
fn a_new_trial_begins_with_the_newest_intact_checkpoint() {
    let house = trained();
    damage(&checkpoint(&house.newest_trial(), 30));
    let said = words(&house, 0, &["resume", "table-mlp-1", "--set", "objective.stop.steps=40"]);
    assert_goes_back(&said);
    let child = newest(&house);
    let parent = child.parent.expect("it continues another");
    assert_eq!((parent.step.0, child.row.status, child.row.step), (28, TrialStatus::Completed, 40));

    let recipe = root().join("examples/table-mlp/recipe.toml").display().to_string();
    let from = ["run", &recipe, "--from", "table-mlp-1", "--set", "objective.stop={ steps = 2 }"];
    assert_goes_back(&words(&house, 0, &from));
    assert_eq!(newest(&house).parent.expect("it has one").step.0, 28);
}

#[test]
fn a_trained_model_is_read_from_the_newest_intact_checkpoint() {
    let house = trained();
    damage(&checkpoint(&house.newest_trial(), 30));
    let table = root().join("examples/table-mlp/rings.csv").display().to_string();
    for command in [
        &["model", "evaluate", "last"][..],
        &["model", "predict", "last", &table],
        &["model", "export", "last", "--to", "safetensors", "--out", "out"],
        &["checkpoint", "pull", "last", "--to", "pulled"],
    ] {
        assert_goes_back(&words(&house, 0, command));
    }
    let manifest = fs::read_to_string(house.state().with_file_name("pulled").join("manifest.json"));
    assert!(manifest.expect("it was copied").contains("\"step\":28"));
    assert!(!house.state().with_file_name("pulled.partial").exists());
}

#[test]
fn a_damaged_checkpoint_that_is_named_is_refused_before_a_trial_is_made() {
    let house = trained();
    let trial = house.newest_trial();
    damage(&checkpoint(&trial, 30));
    for command in [
        &["resume", "last@30", "--set", "objective.stop.steps=40"][..],
        &["model", "evaluate", "last", "--step", "30"],
        &["checkpoint", "pull", "last", "30", "--to", "pulled"],
    ] {
        let said = words(&house, 6, command);
        for part in ["rank-00000.safetensors", "table-mlp-1@28"] {
            assert!(said.contains(part), "expected `{part}` in: {said}");
        }
    }
    for step in [21, 28] {
        damage(&checkpoint(&trial, step));
    }
    let said = words(&house, 6, &["resume", "last", "--set", "objective.stop.steps=40"]);
    for part in ["table-mlp-1 has no intact checkpoint", "step 28:", "step 21:"] {
        assert!(said.contains(part), "expected `{part}` in: {said}");
    }
    assert_eq!(trials(&house), 1, "no trial is made that could not begin");
}

#[test]
fn a_trial_whose_first_checkpoint_is_damaged_takes_it_over_from_its_parent_again() {
    let house = trained();
    // It diverges before it saves anything of its own.
    let wild = [
        "objective.stop.steps=90",
        "train.learning_rate=999",
        "train.optimizer.weight_decay=99",
        "train.schedule=constant",
        "checkpoint.every=\"100 steps\"",
    ];
    let wild: Vec<&str> = wild.iter().flat_map(|setting| ["--set", setting]).collect();
    let child = |code: i32, more: &[&str]| words(&house, code, &[&["resume", "last"][..], more].concat());
    child(5, &wild);
    let diverged = newest(&house);
    assert_eq!((diverged.row.status, diverged.attempts.len()), (TrialStatus::Diverged, 1));
    // Parent and child have the same file.
    damage(&diverged.checkpoints[0].folder);
    let said = child(5, &[]);
    assert!(said.contains("begins with is damaged"), "{said}");
    assert_goes_back(&said);
    let again = newest(&house);
    assert_eq!(again.row.id, diverged.row.id);
    let from = again.attempts.iter().map(|attempt| attempt.from.map(|step| step.0)).collect::<Vec<_>>();
    assert_eq!(from, [Some(30), Some(28)]);
}

#[test]
fn checkpoints_that_were_removed_are_not_shown() {
    let house = trained();
    let shown: Value =
        serde_json::from_slice(&house.expect(0, ["show", "last", "--json"]).stdout).expect("JSON");
    let saved = shown["trial"]["checkpoints"].as_array().expect("a list");
    let steps: Vec<_> = saved.iter().filter_map(|saved| saved["step"].as_u64()).collect();
    assert_eq!(steps, [21, 28, 30], "those of step 7 and 14 made room");
    let page = String::from_utf8(house.expect(0, ["show", "last"]).stdout).expect("UTF-8");
    assert!(page.contains("samples/s") && !page.contains("tokens/s"), "{page}");
}

#[test]
fn a_trial_without_an_intact_checkpoint_is_not_trained_from_its_first_step() {
    let house = TestEnv::default();
    let recipe = root().join("examples/table-mlp/recipe.toml").display().to_string();
    let settings = ["checkpoint.every=\"7 steps\"", "checkpoint.keep=3", "objective.stop={ steps = 100000 }"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let mut run = house.dtrain(["run", &recipe].into_iter().chain(settings)).spawn().expect("it starts");
    let committed = |house: &TestEnv| -> Vec<PathBuf> {
        let trials = fs::read_dir(house.state().join("trials")).into_iter().flatten().flatten();
        let folders =
            trials.flat_map(|trial| fs::read_dir(trial.path().join("checkpoints"))).flatten().flatten();
        folders.map(|entry| entry.path()).filter(|path| path.join("COMMIT").exists()).collect()
    };
    while committed(&house).len() < 3 {
        assert!(run.try_wait().expect("it can be asked").is_none(), "it ended before its checkpoints");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    house.expect(0, ["stop", "table-mlp-1"]);
    run.wait().expect("it ends");
    let before = newest(&house);
    for folder in committed(&house) {
        damage(&folder);
    }
    let said = words(&house, 6, &["resume", "last"]);
    for part in ["table-mlp-1 has no intact checkpoint", "rank-00000.safetensors", "dtrain run RECIPE"] {
        assert!(said.contains(part), "expected `{part}` in: {said}");
    }
    for folder in committed(&house) {
        fs::remove_dir_all(folder).expect("removed");
    }
    let said = words(&house, 6, &["resume", "last"]);
    assert!(said.contains("its folder is missing"), "{said}");
    assert_eq!(newest(&house).attempts.len(), before.attempts.len(), "no attempt is made");
}

#[test]
fn a_copy_names_every_newer_checkpoint_that_it_passes_over() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("is damaged (", |folder| fs::remove_file(folder.join("COMMIT")).expect("removed")),
        ("is damaged (", |folder| fs::remove_file(folder.join("manifest.json")).expect("removed")),
        ("is damaged (", |folder| {
            let tensors = fs::File::options().append(true).open(folder.join("rank-00000.safetensors"));
            std::io::Write::write_all(&mut tensors.expect("it is there"), b"more").expect("room on disk");
        }),
        ("is missing", |folder| fs::remove_dir_all(folder).expect("removed")),
    ];
    for (said, harm) in harms {
        let house = trained();
        harm(&checkpoint(&house.newest_trial(), 30));
        let words = words(&house, 0, &["checkpoint", "pull", "last", "--to", "pulled"]);
        let expected = format!("the checkpoint at step 30 of table-mlp-1 {said}");
        assert!(words.contains(&expected) && words.contains("going back to step 28"), "{expected}: {words}");
    }
}
