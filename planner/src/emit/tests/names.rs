//! Checks emitted names against the engines' sources: `tests/data/engines.json`, which
//! `tests/data/engines.py` extracts from their releases.

use super::readers::python::PythonModule;
use super::readers::{shell, yaml};
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
    let all: Vec<_> = plans().into_iter().chain(state::plans()).collect();
    let emitted: Vec<_> = all.iter().filter_map(|(_, plan)| emit(plan, format).ok()).collect();
    assert!(emitted.len() >= 3, "{format:?} was refused too often");
    emitted.into_iter().flat_map(|emitted| emitted.files).collect()
}

fn named(format: ConfigFormat, name: &str) -> Vec<String> {
    files(format).into_iter().filter(|file| file.name == name).map(|file| file.text).collect()
}

fn keys(value: &Value) -> impl Iterator<Item = &str> {
    value.as_object().expect("it is an object").keys().map(String::as_str)
}

/// Returns the one document of a YAML text.
fn yaml(text: &str) -> Value {
    let mut documents = yaml::documents(text);
    assert_eq!(documents.len(), 1, "{text}");
    documents.remove(0)
}

#[test]
fn versions_are_those_whose_names_are_known() {
    let engines: Value = serde_json::from_str(ENGINES).expect("it is JSON");
    for (package, version) in [
        ("torchtitan", torchtitan::VERSION),
        ("megatron-core", megatron::VERSION),
        ("deepspeed", deepspeed::VERSION),
        ("accelerate", hf_trainer::VERSION),
        ("transformers", hugging_face::VERSION),
        ("peft", adapters::VERSION),
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
    let commands = shell::commands(text);
    let command = commands.last().expect("the script starts something");
    let program = command.iter().position(|word| word == "pretrain_gpt.py").expect("the program");
    let arguments = command[program..].iter().map(String::as_str).filter(|word| word.starts_with("--"));
    all_known(arguments, &["megatron-core", "arguments"]);
}

/// Every imported name is one of torchtitan's, every call takes the keywords that it is given.
#[test]
fn torchtitan_has_every_name_and_keyword() {
    let mut modules = named(ConfigFormat::Torchtitan, "dtrain_config.py");
    for plan in [llama(), experts()] {
        for scales in [Fp8Recipe::Blockwise, Fp8Recipe::Mxfp8] {
            let plan = newer::in_fp8(plan.clone(), Some(scales));
            modules
                .push(emit(&plan, ConfigFormat::Torchtitan).expect("torchtitan has it").files.remove(0).text);
        }
    }
    let engines: Value = serde_json::from_str(ENGINES).expect("it is JSON");
    let names = engines["torchtitan"]["names"].as_object().expect("names with their keywords");
    for text in modules {
        let module = PythonModule::of(&text);
        for (name, origin) in module.imports.iter().filter(|(_, origin)| origin.starts_with("torchtitan")) {
            let path = format!("{origin}:{name}");
            assert!(names.keys().any(|known| known.split(".Config").next() == Some(&path)), "no {path}");
        }
        let mut count = 0;
        for (called, keywords) in &module.calls {
            let root = called.split(['.', '(']).next().expect("a name");
            let is_own = module.values.contains_key(root)
                || module.functions.contains_key(root)
                || ["range", "converter"].contains(&root);
            let origin = module.imports.get(root).map_or("", String::as_str);
            assert!(is_own || !origin.is_empty(), "`{called}` is not imported:\n{text}");
            if origin.starts_with("torchtitan") {
                let known = names[&format!("{origin}:{called}")].as_array().expect("a list of keywords");
                for keyword in keywords {
                    count += 1;
                    assert!(known.iter().any(|known| known == keyword), "{called} takes no `{keyword}`");
                }
            }
        }
        assert!(count > 40, "only {count} keywords were checked:\n{text}");
    }
}

#[test]
fn deepspeed_has_every_key_and_the_batch_is_the_product() {
    let below = named(ConfigFormat::HfTrainer, "ds_config.json");
    for config in below.iter().map(|text| serde_json::from_str::<Value>(text).expect("it is JSON")) {
        all_known(keys(&config), &["deepspeed", "keys"]);
        all_known(keys(&config["zero_optimization"]), &["deepspeed", "zero_optimization"]);
    }
    for text in named(ConfigFormat::Deepspeed, "ds_config.json") {
        let config: Value = serde_json::from_str(&text).expect("it is JSON");
        all_known(keys(&config), &["deepspeed", "keys"]);
        let zero = &config["zero_optimization"];
        all_known(keys(zero), &["deepspeed", "zero_optimization"]);
        for section in ["offload_optimizer", "offload_param"] {
            if zero.get(section).is_some() {
                all_known(keys(&zero[section]), &["deepspeed", section]);
            }
        }
        let schedule = config["scheduler"]["type"].as_str().expect("a name");
        all_known(keys(&config["scheduler"]["params"]), &["deepspeed", "scheduler", schedule]);
        for (section, list) in [
            ("tensor_parallel", "tensor_parallel"),
            ("expert_parallel", "expert_parallel"),
            ("data_types", "data_types"),
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
    let configs: Vec<_> =
        named(ConfigFormat::HfTrainer, "accelerate.yaml").iter().map(|text| yaml(text)).collect();
    for config in &configs {
        all_known(keys(config), &["accelerate", "keys"]);
    }
    for section in ["fsdp_config", "parallelism_config", "deepspeed_config"] {
        let written = configs.iter().filter_map(|config| config.get(section)).flat_map(keys);
        all_known(written, &["accelerate", section]);
    }
    for text in named(ConfigFormat::HfTrainer, "training_arguments.yaml") {
        all_known(keys(&yaml(&text)), &["transformers", "training_arguments"]);
    }
}

#[test]
fn peft_and_bitsandbytes_have_every_key() {
    for format in [ConfigFormat::Deepspeed, ConfigFormat::HfTrainer] {
        for (file, path) in [
            ("adapter_config.json", ["peft", "adapter_config"]),
            ("quantization_config.json", ["transformers", "quantization_config"]),
        ] {
            let texts = named(format, file);
            assert!(!texts.is_empty(), "{format:?} has no {file}");
            for text in texts {
                all_known(keys(&serde_json::from_str(&text).expect("it is JSON")), &path);
            }
        }
    }
    let optimizers = named(ConfigFormat::HfTrainer, "training_arguments.yaml");
    let optimizers: Vec<_> = optimizers.iter().map(|text| yaml(text)["optim"].clone()).collect();
    all_known(optimizers.iter().map(|name| name.as_str().expect("a name")), &["transformers", "optimizers"]);
}

#[test]
fn maxtext_has_every_key_and_value() {
    let configs: Vec<_> = named(ConfigFormat::Maxtext, "maxtext.yml").iter().map(|text| yaml(text)).collect();
    for config in &configs {
        all_known(keys(config), &["maxtext", "keys"]);
    }
    for (key, list) in [
        ("remat_policy", "RematPolicy"),
        ("lr_schedule_type", "LearningRateScheduleType"),
        ("decoder_block", "DecoderBlockType"),
    ] {
        let written = configs.iter().map(|config| config[key].as_str().expect("a name"));
        all_known(written, &["maxtext", "values", list]);
    }
}

#[test]
fn transformers_have_every_key_of_the_models() {
    let models =
        [named(ConfigFormat::Deepspeed, "config.json"), named(ConfigFormat::HfTrainer, "config.json")]
            .concat();
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
