//! Low-rank adapters: trained on every layout, resumed on another one, and merged into the weights on export.
//! `tests/run interop` installs what the comparison with peft needs; without it that test is skipped.

use crate::interop::{fixture, losses, recipe, script, series, train};
use dtrain_protocol::TensorKind;
use dtrain_tests::{TestEnv, newest_checkpoint, python_with, tensors};
use std::collections::BTreeMap;
use std::fs;

const RANK: &str = "model.lora.rank=4";

/// Weights of the newest checkpoint by name.
fn weights(house: &TestEnv) -> BTreeMap<String, Vec<u8>> {
    let (_, checkpoint) = newest_checkpoint(&house.newest_trial());
    let weights = tensors(&checkpoint).into_iter().filter(|((_, kind), _)| *kind == TensorKind::Parameter);
    weights.map(|((name, _), bytes)| (name, bytes)).collect()
}

#[test]
fn adapters_train_alike_on_every_layout() {
    for name in ["llama", "gpt2"] {
        let house = TestEnv::default();
        recipe(&house, name);
        let one = train(&house, name, 4, &["--set", RANK, "--set", "cluster.ranks=1"]);
        assert!(one[3] < one[0], "{one:?}");
        for layout in [
            "layout={ tensor = 2 }",
            "layout={ tensor = 2, sequence = true }",
            "layout={ pipeline = 2 }",
            "layout={ pipeline = 2, schedule = \"zero_bubble\" }",
            "layout={ context = 2 }",
            "layout={ zero = 1 }",
            "layout={ zero = 2 }",
            "layout={ zero = 3 }",
            "layout.recompute=full",
        ] {
            let other = train(&house, name, 4, &["--set", RANK, "--set", layout, "--set", "cluster.ranks=2"]);
            for (wanted, found) in one.iter().zip(&other) {
                assert!((wanted - found).abs() < 1e-4 * wanted, "{name}, {layout}: {other:?} for {one:?}");
            }
        }
    }
}

#[test]
fn frozen_weights_stay_and_other_layouts_go_on() {
    let house = TestEnv::default();
    recipe(&house, "llama");
    let all = ["--set", RANK, "--set", "cluster.ranks=2"];
    let whole = train(&house, "llama", 6, &[&all[..], &["--set", "layout.tensor=2"]].concat());
    train(&house, "llama", 3, &[&all[..], &["--set", "layout.tensor=2"]].concat());
    let before = weights(&house);
    let stop = "objective.stop={ steps = 6 }";
    house.expect(
        0,
        ["resume", "last", "--quiet", "--set", stop, "--set", "layout.tensor=1", "--set", "layout.zero=2"],
    );
    let more = losses(&house);
    for (wanted, found) in whole[3..].iter().zip(&more) {
        assert!((wanted - found).abs() < 1e-4 * wanted, "{more:?} for {whole:?}");
    }
    let after = weights(&house);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    let adapters = before.keys().filter(|name| name.contains("lora_")).count();
    // Seven layers of two blocks, with two matrices each.
    assert_eq!(adapters, 2 * 7 * 2);
    for (name, values) in &before {
        assert_eq!(*values == after[name], !name.contains("lora_"), "{name}");
    }
}

#[test]
fn merged_weights_have_the_loss_of_the_adapters() {
    for name in ["qwen2", "gpt2"] {
        let house = TestEnv::default();
        recipe(&house, name);
        train(&house, name, 8, &["--set", RANK, "--set", "train.learning_rate=1e-2"]);
        let own = *series(&house, "valid.loss").last().expect("it was validated");
        house.expect(0, ["model", "export", "last", "--to", "hf", "--out", "merged"]);
        house.expect(0, ["init", "merged.toml", "--from", "merged", "--data", "tokens.bin"]);
        let stop = "objective.stop={ steps = 1 }";
        house.expect(
            0,
            [
                "run",
                "merged.toml",
                "--from",
                "merged",
                "--quiet",
                "--no-sample",
                "--set",
                stop,
                "--set",
                "data.valid=tokens.bin",
                "--set",
                "train.batch=8",
            ],
        );
        let merged = losses(&house)[0];
        assert!((own - merged).abs() < 1e-5 * own, "{name}: {own} with adapters, {merged} merged");
    }
}

#[test]
fn what_adapters_cannot_be_is_refused_with_the_key() {
    let house = TestEnv::default();
    let recipe = recipe(&house, "llama").display().to_string();
    for (settings, words) in [
        (vec!["model.lora.alpha=4"], "model.lora.rank"),
        (vec![RANK, "model.experts=4", "model.lora.layers=all"], "model.lora.layers"),
    ] {
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        let refused = house.expect(2, ["check", &recipe].into_iter().chain(set));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(words), "{said}");
    }
    let elsewhere = ["--set", "train.batch=8", "--on", "1x8 H100", "--engine", "megatron"];
    let refused = house.expect(3, ["plan", &recipe, "--set", RANK].into_iter().chain(elsewhere));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("model.lora"), "{said}");
    house.expect(
        0,
        ["init", "adapters.toml", "--from", &fixture("llama").display().to_string(), "--lora", "8"],
    );
    let written = house.state().parent().expect("the house").join("adapters.toml");
    assert!(fs::read_to_string(written).expect("a recipe").contains("lora = { rank = 8 }"));
}

#[test]
fn adapters_of_interop_with_peft_train_as_there() {
    let python = match python_with("peft") {
        Ok(python) => python,
        Err(missing) => return dtrain_skip::skip_large(missing),
    };
    for name in ["llama", "qwen2"] {
        let house = TestEnv::default();
        let recipe = recipe(&house, name).display().to_string();
        // Adapters that are not zero, to begin with on both sides.
        train(&house, name, 5, &["--set", RANK, "--set", "train.learning_rate=1e-2"]);
        house.expect(0, ["model", "export", "last", "--to", "peft", "--out", "adapters"]);
        let folder = house.state().parent().expect("the house").to_owned();
        let [data, adapters] = ["tokens.bin", "adapters"].map(|file| folder.join(file).display().to_string());
        let trial = "last";
        let settings = [
            RANK,
            "objective.stop={ steps = 50 }",
            "data.valid=tokens.bin",
            "train.batch=8",
            "train.learning_rate=1e-3",
            "train.schedule=constant",
            "train.warmup=1 steps",
            "train.clip=none",
            "train.optimizer={ kind = \"adamw\", weight_decay = 0.0 }",
        ];
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        house.expect(0, ["run", &recipe, "--from", trial, "--quiet", "--no-sample"].into_iter().chain(set));
        let found = losses(&house);
        let from = fixture(name).display().to_string();
        let said = script(&python, &["tune", &from, &data, "50", "1e-3", &adapters]);
        let wanted: Vec<f64> = said.lines().map(|line| line.parse().expect("a loss")).collect();
        assert_eq!((wanted.len(), found.len()), (50, 50));
        for (step, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
            assert!((wanted - found).abs() < 1e-3, "{name}, step {}: {found}, not {wanted}", step + 1);
        }
        house.expect(0, ["model", "export", "last", "--to", "hf", "--out", "merged"]);
        let merged = folder.join("merged").display().to_string();
        let said: f64 = script(&python, &["loss", &merged, &data]).trim().parse().expect("a loss");
        let own = *series(&house, "valid.loss").last().expect("it was validated");
        assert!((said - own).abs() < 1e-4, "{name}: {own} here, {said} in transformers");
    }
}
