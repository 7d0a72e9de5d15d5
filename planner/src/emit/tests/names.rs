//! Checks emitted names against the engines' sources: `tests/data/engines.json`, which
//! `tests/data/engines.py` extracts from their releases. `tests/data/emit_check.py` checks those of
//! torchtitan.

use super::*;
use serde_json::Value;

const ENGINES: &str = include_str!("../../../../tests/data/engines.json");

fn known(path: &[&str]) -> Vec<String> {
    let engines: Value = serde_json::from_str(ENGINES).expect("it is JSON");
    let found = path.iter().fold(&engines, |value, key| &value[key]);
    let list = found.as_array().unwrap_or_else(|| panic!("engines.json has no list {path:?}"));
    list.iter().map(|name| name.as_str().expect("names are text").to_owned()).collect()
}

#[track_caller]
fn all_known<'a>(names: impl IntoIterator<Item = &'a str>, path: &[&str]) {
    let known = known(path);
    let mut count = 0;
    for name in names {
        count += 1;
        assert!(known.iter().any(|one| one == name), "{path:?} has no `{name}`");
    }
    assert!(count > 0, "nothing of {path:?} was written");
}

/// Returns all files of a format over the sample plans.
fn files(format: ConfigFormat) -> Vec<ConfigFile> {
    let emitted: Vec<_> = plans().iter().filter_map(|(_, plan)| emit(plan, format).ok()).collect();
    assert!(emitted.len() >= 3, "{format:?} was refused too often");
    emitted.into_iter().flat_map(|emitted| emitted.files).collect()
}

fn named(format: ConfigFormat, name: &str) -> Vec<String> {
    files(format).into_iter().filter(|file| file.name == name).map(|file| file.text).collect()
}

fn keys(value: &Value) -> impl Iterator<Item = &str> {
    value.as_object().expect("it is an object").keys().map(String::as_str)
}

/// Returns the keys of a YAML text without lists: the top-level ones, or those below one of them.
fn yaml_keys<'a>(text: &'a str, below: Option<&str>) -> Vec<&'a str> {
    let mut section = None;
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let key = line.split(':').next().expect("a line has a first part");
        let is_inner = key.starts_with(' ');
        if !is_inner {
            section = Some(key);
        }
        if is_inner == below.is_some() && (below.is_none() || section == below) {
            found.push(key.trim());
        }
    }
    found
}

#[test]
fn versions_are_those_whose_names_are_known() {
    let engines: Value = serde_json::from_str(ENGINES).expect("it is JSON");
    for (package, version) in [
        ("torchtitan", torchtitan::VERSION),
        ("megatron-core", megatron::VERSION),
        ("deepspeed", deepspeed::VERSION),
        ("accelerate", fsdp::VERSION),
        ("transformers", hugging_face::VERSION),
        ("maxtext", maxtext::VERSION),
    ] {
        assert_eq!(engines[package]["version"], version, "{package}");
    }
}

#[test]
fn megatron_has_every_argument() {
    for text in named(ConfigFormat::Megatron, "megatron.sh") {
        megatron_has_the_arguments_of(&text);
    }
}

#[track_caller]
pub(super) fn megatron_has_the_arguments_of(text: &str) {
    let arguments = text.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let arguments: Vec<String> =
        arguments.map(|rest| format!("--{}", rest.split(' ').next().expect("a word"))).collect();
    all_known(arguments.iter().map(String::as_str), &["megatron-core", "arguments"]);
}

#[test]
fn deepspeed_has_every_key_and_the_batch_is_the_product() {
    for text in named(ConfigFormat::Deepspeed, "ds_config.json") {
        let config: Value = serde_json::from_str(&text).expect("it is JSON");
        all_known(keys(&config), &["deepspeed", "keys"]);
        all_known(keys(&config["zero_optimization"]), &["deepspeed", "zero_optimization"]);
        let schedule = config["scheduler"]["type"].as_str().expect("a name");
        all_known(keys(&config["scheduler"]["params"]), &["deepspeed", "scheduler", schedule]);
        for (section, list) in [
            ("tensor_parallel", "tensor_parallel"),
            ("expert_parallel", "expert_parallel"),
            ("bf16", "precision"),
            ("fp16", "precision"),
        ] {
            if config.get(section).is_some() {
                all_known(keys(&config[section]), &["deepspeed", list]);
            }
        }
    }
    for (_, plan) in plans() {
        let Ok(emitted) = emit(&plan, ConfigFormat::Deepspeed) else { continue };
        let config: Value = serde_json::from_str(&emitted.files[0].text).expect("it is JSON");
        let number = |key: &str| config[key].as_u64().expect("a count");
        let readers = u64::from(plan.best().candidate.arrangement.layout.readers());
        let product =
            number("train_micro_batch_size_per_gpu") * number("gradient_accumulation_steps") * readers;
        assert_eq!(product, number("train_batch_size"));
    }
}

#[test]
fn accelerate_and_transformers_have_every_key() {
    let configs = named(ConfigFormat::Fsdp, "accelerate.yaml");
    for text in &configs {
        all_known(yaml_keys(text, None), &["accelerate", "keys"]);
    }
    for section in ["fsdp_config", "parallelism_config"] {
        let written: Vec<_> = configs.iter().flat_map(|text| yaml_keys(text, Some(section))).collect();
        all_known(written, &["accelerate", section]);
    }
    for text in named(ConfigFormat::Fsdp, "training_arguments.yaml") {
        all_known(yaml_keys(&text, None), &["transformers", "training_arguments"]);
    }
}

#[test]
fn maxtext_has_every_key_and_value() {
    let configs = named(ConfigFormat::Maxtext, "maxtext.yml");
    for text in &configs {
        all_known(yaml_keys(text, None), &["maxtext", "keys"]);
    }
    for (key, list) in [
        ("remat_policy: ", "RematPolicy"),
        ("lr_schedule_type: ", "LearningRateScheduleType"),
        ("decoder_block: ", "DecoderBlockType"),
    ] {
        let written = configs.iter().flat_map(|text| text.lines().filter_map(|line| line.strip_prefix(key)));
        all_known(written, &["maxtext", "values", list]);
    }
}

#[test]
fn transformers_have_every_key_of_the_models() {
    let models =
        [named(ConfigFormat::Deepspeed, "config.json"), named(ConfigFormat::Fsdp, "config.json")].concat();
    let mut families = Vec::new();
    for text in models {
        let config: Value = serde_json::from_str(&text).expect("it is JSON");
        let family = config["model_type"].as_str().expect("a name").to_owned();
        all_known(keys(&config), &["transformers", &family]);
        families.push(family);
    }
    families.sort();
    families.dedup();
    assert_eq!(families, ["gpt2", "llama", "mixtral"]);
}
