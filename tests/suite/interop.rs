//! Models of Hugging Face transformers, in and out. `tests/run interop` installs what the comparison with them needs; without it
//! that test is skipped. `tests/data/interop.py` made the fixtures.

use dtrain_protocol::{Rank, TensorKind};
use dtrain_runner::ledger::History;
use dtrain_tests::{TestEnv, newest_checkpoint, python_with, root, tensors};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn fixture(name: &str) -> PathBuf {
    root().join("tests/data/interop").join(name)
}

/// Eight windows of 16 tokens each, and the token behind the last.
pub(crate) fn tokens() -> Vec<u8> {
    (0..129u32)
        .flat_map(|place| u16::try_from(place * place * 7 % 96).expect("small").to_le_bytes())
        .collect()
}

/// A recipe for a fixture, as `init` writes it.
pub(crate) fn recipe(house: &TestEnv, name: &str) -> PathBuf {
    recipe_from(house, &fixture(name))
}

/// A recipe for the model in a folder, whose name it has.
pub(crate) fn recipe_from(house: &TestEnv, from: &Path) -> PathBuf {
    house.file("tokens.bin", tokens());
    let file = format!("{}.toml", from.file_name().expect("a folder").display());
    house.expect(0, ["init", &file, "--from", from.to_str().expect("UTF-8"), "--data", "tokens.bin"]);
    house.state().parent().expect("the house").join(file)
}

/// Trains a fixture for some steps, each on all windows.
pub(crate) fn train(house: &TestEnv, name: &str, steps: u32, more: &[&str]) -> Vec<f64> {
    train_from(house, &fixture(name), steps, more)
}

/// Trains the model in a folder, of which there is a recipe.
pub(crate) fn train_from(house: &TestEnv, from: &Path, steps: u32, more: &[&str]) -> Vec<f64> {
    let name = from.file_name().expect("a folder").display();
    let recipe = house.state().parent().expect("the house").join(format!("{name}.toml"));
    let (recipe, from) = (recipe.display().to_string(), from.display().to_string());
    let stop = format!("objective.stop={{ steps = {steps} }}");
    let fixed = [
        "run",
        &recipe,
        "--from",
        &from,
        "--quiet",
        "--no-sample",
        "--set",
        &stop,
        "--set",
        "data.valid=tokens.bin",
        "--set",
        "train.batch=8",
        "--set",
        "train.learning_rate=1e-3",
        "--set",
        "train.schedule=constant",
        "--set",
        "train.warmup=1 steps",
        "--set",
        "train.clip=none",
        "--set",
        "train.optimizer={ kind = \"adamw\", weight_decay = 0.0 }",
    ];
    house.expect(0, fixed.iter().chain(more).copied());
    losses(house)
}

pub(crate) fn losses(house: &TestEnv) -> Vec<f64> {
    series(house, "loss")
}

pub(crate) fn series(house: &TestEnv, key: &str) -> Vec<f64> {
    let history = History::open_read_only(&house.history()).expect("a history");
    let trial = history.find("last").expect("a trial");
    history.series(&trial, key, Rank(0)).expect("a series").iter().map(|point| point.value).collect()
}

#[test]
fn training_begins_with_a_folder_on_every_layout() {
    for name in ["llama", "qwen2", "gpt2"] {
        let house = TestEnv::default();
        recipe(&house, name);
        let one = train(&house, name, 3, &["--set", "cluster.ranks=1"]);
        for layout in ["layout.tensor=2", "layout.pipeline=2", "layout.zero=3"] {
            let other = train(&house, name, 3, &["--set", layout, "--set", "cluster.ranks=2"]);
            for (wanted, found) in one.iter().zip(&other) {
                assert!((wanted - found).abs() < 1e-4 * wanted, "{name}, {layout}: {other:?} for {one:?}");
            }
        }
    }
}

#[test]
fn a_trial_says_which_folder_it_begins_with_and_resumes_without_it() {
    let house = TestEnv::default();
    recipe(&house, "qwen2");
    train(&house, "qwen2", 3, &["--set", "cluster.ranks=1"]);
    let shown = String::from_utf8(house.expect(0, ["show", "last"]).stdout).expect("UTF-8");
    assert!(shown.contains("begins with the weights in ") && shown.contains("interop/qwen2"), "{shown}");
    let first = losses(&house);
    house.expect(0, ["resume", "last", "--quiet", "--set", "objective.stop={ steps = 6 }"]);
    let more = losses(&house);
    assert_eq!(more.len(), 3, "steps 4 to 6");
    assert!(more[2] < first[0], "{more:?} after {first:?}");
}

#[test]
fn another_model_is_refused_with_the_key_to_change() {
    let house = TestEnv::default();
    let recipe = recipe(&house, "llama");
    let (recipe, from) = (recipe.display().to_string(), fixture("llama").display().to_string());
    let refused = house.expect(2, ["run", &recipe, "--from", &from, "--set", "model.ffn=64"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("model.ffn = 64 (was 48)"), "{words}");
    let refused = house.expect(2, ["run", &recipe, "--from", "no/such/folder"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("config.json"));
}

#[test]
fn a_model_that_dtrain_does_not_train_is_refused_with_every_reason() {
    let house = TestEnv::default();
    let text = fs::read_to_string(fixture("mistral").join("config.json")).expect("it is there");
    let scaled = "\"rope_scaling\": { \"rope_type\": \"yarn\", \"factor\": 2.0 }";
    let text = text.replace("\"sliding_window\": null", scaled).replace("silu", "gelu");
    let config = house.file("windows/config.json", text);
    let from = config.parent().expect("a folder").display().to_string();
    let refused = house.expect(2, ["init", "new.toml", "--from", &from]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("`rope_type` = yarn") && words.contains("`hidden_act` is gelu"), "{words}");
}

#[test]
fn a_checkpoint_of_two_ranks_goes_out() {
    let house = TestEnv::default();
    recipe(&house, "gpt2");
    train(&house, "gpt2", 2, &["--set", "layout.tensor=2", "--set", "cluster.ranks=2"]);
    let (_, checkpoint) = newest_checkpoint(&house.newest_trial());
    let trained = tensors(&checkpoint);
    house.expect(0, ["model", "export", "last", "--to", "safetensors", "--out", "weights"]);
    let file = house.state().parent().expect("the house").join("weights/model.safetensors");
    let bytes = fs::read(file).expect("it was written");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let weights = trained.iter().filter(|((_, kind), _)| *kind == TensorKind::Parameter);
    assert_eq!(weights.clone().count(), file.len());
    for ((name, _), wanted) in weights {
        assert_eq!(file.tensor(name).expect("it is there").data(), wanted, "{name}");
    }
    house.expect(2, ["model", "export", "last", "--to", "hf", "--out", "weights"]);
    let said =
        house.expect(0, ["model", "export", "last", "--to", "hf", "--out", "weights", "--force", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert!(said.to_string().contains("config.json"), "{said}");
}

/// The program of `docs/checkpoint-format.md`.
#[test]
fn the_program_of_the_documentation_reads_a_checkpoint() {
    let house = TestEnv::default();
    recipe(&house, "llama");
    train(&house, "llama", 2, &["--set", "layout.tensor=2", "--set", "cluster.ranks=2"]);
    let (_, checkpoint) = newest_checkpoint(&house.newest_trial());
    let page = fs::read_to_string(root().join("docs/checkpoint-format.md")).expect("a page");
    let program =
        page.split("```python read_checkpoint.py\n").nth(1).and_then(|rest| rest.split("```").next());
    let program = house.file("read_checkpoint.py", program.expect("the page has a program"));
    let output = Command::new("python3").arg(program).arg(&checkpoint).output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let weights: Vec<_> =
        tensors(&checkpoint).into_iter().filter(|((_, kind), _)| *kind == TensorKind::Parameter).collect();
    assert_eq!(said.lines().count(), weights.len(), "{said}");
    for (line, ((name, _), bytes)) in said.lines().zip(weights) {
        let values: Vec<f64> =
            bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |place: usize| words[place].parse::<f64>().expect("a number");
        assert_eq!(words[0], name);
        assert_eq!((number(2), number(3)), (values[0], values[values.len() - 1]), "{name}");
        assert!((number(4) - values.iter().sum::<f64>()).abs() < 1e-6, "{name}");
    }
}

/// Runs `tests/data/interop.py`.
pub(crate) fn script(python: &Path, arguments: &[&str]) -> String {
    let script = root().join("tests/data/interop.py");
    let output = Command::new(python).arg(script).args(arguments).output().expect("python starts");
    let mut said = String::from_utf8(output.stdout).expect("UTF-8");
    if !output.status.success() {
        write!(said, "{}", String::from_utf8_lossy(&output.stderr)).expect("a string grows");
        panic!("{arguments:?}: {said}");
    }
    said
}

#[test]
fn fifty_steps_are_those_of_transformers() {
    let python = match python_with("transformers") {
        Ok(python) => python,
        Err(missing) => return dtrain_skip::skip_large(missing),
    };
    for name in ["llama", "mistral", "qwen2", "gpt2"] {
        let house = TestEnv::default();
        recipe(&house, name);
        let found = train(&house, name, 50, &["--set", "cluster.ranks=1"]);
        let data = house.state().parent().expect("the house").join("tokens.bin").display().to_string();
        let from = fixture(name).display().to_string();
        let said = script(&python, &["train", &from, &data, "50", "1e-3"]);
        let wanted: Vec<f64> = said.lines().map(|line| line.parse().expect("a loss")).collect();
        assert_eq!((wanted.len(), found.len()), (50, 50));
        for (step, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
            assert!((wanted - found).abs() < 1e-3, "{name}, step {}: {found}, not {wanted}", step + 1);
        }
        house.expect(0, ["model", "export", "last", "--to", "hf", "--out", "trained"]);
        let trained = house.state().parent().expect("the house").join("trained").display().to_string();
        let said: f64 = script(&python, &["loss", &trained, &data]).trim().parse().expect("a loss");
        let own = *series(&house, "valid.loss").last().expect("it was validated");
        assert!((said - own).abs() < 1e-4, "{name}: {own} here, {said} in transformers");
    }
}
