//! `dtrain plan --emit`: what it writes, read by those who read it.

use crate::fences::command_with;
use dtrain_skip::{skip, skip_part};
use dtrain_tests::{TestEnv, root};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const RECIPE: &str = r#"
name = "two-replicas"

[model]
kind = "decoder"
layers = 2
hidden = 32
heads = 2
context = 32

[data]
train = "text.txt"
valid = "10%"

[objective]
stop = { steps = 20 }

[train]
batch = 8
learning_rate = 1e-3

[layout]
data = 2
zero = 2

[cluster]
ranks = 2
"#;

/// A house with a recipe of two replicas and its text.
fn house() -> (TestEnv, PathBuf) {
    let house = TestEnv::default();
    house.file("text.txt", "all work and no play makes a dull day; ".repeat(400));
    let recipe = house.file("recipe.toml", RECIPE);
    (house, recipe)
}

/// What `tests/data/emit_check.py` prints about these. The parsers of engines come with gigabytes of packages; where they are not
/// installed, their part of the check is skipped.
fn checked(paths: &[&Path]) -> String {
    let script = root().join("tests/data/emit_check.py");
    // `tests/run parsers` puts the engines into the first, `tests/run` PyYAML into the second.
    let own =
        ["target/parsers", "target/test-data/python"].map(|folder| root().join(folder).join("bin/python"));
    let python = own.into_iter().find(|path| path.exists()).unwrap_or_else(|| "python3".into());
    let output = match Command::new(&python).arg(script).args(paths).output() {
        Ok(output) => output,
        Err(error) => {
            skip(format_args!("{}: {error}", python.display()));
            return String::new();
        }
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for reason in said.lines().filter_map(|line| line.strip_prefix("left out: ")) {
        match reason.split(' ').next() {
            Some("yaml") => skip(format_args!("{reason}; `tests/run` installs PyYAML")),
            engine => skip_part(&format!("the parser of {}", engine.unwrap_or("an engine")), reason),
        }
    }
    said
}

#[test]
fn a_plan_is_written_for_every_engine_that_can_train_it() {
    let (house, recipe) = house();
    let recipe = recipe.to_str().expect("the path is UTF-8");
    let folder = |name: &str| recipe.replace("recipe.toml", name);
    for (name, files) in [
        ("megatron", &["megatron.sh"][..]),
        ("deepspeed", &["config.json", "deepspeed.sh", "ds_config.json"]),
        ("hf-trainer", &["accelerate.yaml", "config.json", "training_arguments.yaml"]),
        ("slurm", &["slurm.sh"]),
        ("kubernetes", &["kubernetes.yaml"]),
    ] {
        let folder = folder(name);
        house.expect(0, ["plan", recipe, "--emit", name, "--emit-to", &folder]);
        let entries = fs::read_dir(&folder).expect("the folder was made");
        let mut written: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        written.sort();
        assert_eq!(written, files, "{name}");
        println!("{}", checked(&[Path::new(&folder)]));
        house.expect(2, ["plan", recipe, "--emit", name, "--emit-to", &folder]);
    }
}

/// A Llama of these sizes, with rows of its table `[train.state]`, and adapters if there are any.
fn llama(
    name: &str,
    [layers, hidden, heads, kv_heads, ffn, vocab]: [u32; 6],
    lora: &str,
    state: &str,
) -> String {
    format!(
        r#"
name = "{name}"

[model]
kind = "decoder"
family = "llama"
layers = {layers}
hidden = {hidden}
heads = {heads}
kv_heads = {kv_heads}
ffn = {ffn}
vocab = {vocab}
context = 2048
{lora}

[data]
train = "tokens/*.bin"
valid = "1%"

[objective]
stop = {{ steps = 20 }}

[train]
batch = 8
learning_rate = 1e-4
precision = "bf16"
{state}
"#
    )
}

/// Trainings of common sizes: what is pinned about their state is in the files, which the parsers of the engines
/// read where they are installed.
#[test]
fn parsers_of_engines_read_the_state_of_common_trainings() {
    const LLAMA_8B: [u32; 6] = [32, 4096, 32, 8, 14_336, 128_256];
    const LLAMA_7B: [u32; 6] = [32, 4096, 32, 32, 11_008, 32_000];
    const LLAMA_13B: [u32; 6] = [40, 5120, 40, 40, 13_824, 32_000];
    let house = TestEnv::default();
    let host = |offload| format!("state = {{ moments = \"int8\", offload = \"{offload}\" }}");
    for (name, recipe, machine, said) in [
        (
            "lora-8b",
            llama("lora-8b", LLAMA_8B, "lora = { rank = 16 }", ""),
            "1x1 RTX 4090",
            &[("adapter_config.json", "\"r\": 16"), ("config.json", "\"dtype\": \"bfloat16\"")][..],
        ),
        (
            "qlora-8b",
            llama("qlora-8b", LLAMA_8B, "lora = { rank = 16, base = \"nf4\" }", ""),
            "1x1 RTX 4090",
            &[("quantization_config.json", "\"bnb_4bit_quant_type\": \"nf4\"")],
        ),
        (
            "optimizer-7b",
            llama("optimizer-7b", LLAMA_7B, "", &host("optimizer")),
            "1x1 RTX 4090",
            &[
                ("training_arguments.yaml", "optim: adamw_bnb_8bit"),
                ("ds_config.json", "\"offload_optimizer\""),
            ],
        ),
        (
            "all-7b",
            llama("all-7b", LLAMA_7B, "", &host("all")),
            "1x1 RTX 4090",
            &[("training_arguments.yaml", "optim: adamw_bnb_8bit"), ("ds_config.json", "\"offload_param\"")],
        ),
        (
            "full-13b",
            llama("full-13b", LLAMA_13B, "", "") + "\n[layout]\ndata = 4\nzero = 3\n",
            "1x4 H100",
            &[("accelerate.yaml", "fsdp_reshard_after_forward: true")],
        ),
    ] {
        let recipe = house.file(&format!("{name}.toml"), recipe);
        let recipe = recipe.to_str().expect("the path is UTF-8");
        let folder = recipe.replace(".toml", "");
        house.expect(0, ["plan", recipe, "--on", machine, "--emit", "hf-trainer", "--emit-to", &folder]);
        for (file, words) in said {
            let text = fs::read_to_string(Path::new(&folder).join(file)).unwrap_or_default();
            assert!(text.contains(words), "{name}: {file} has no {words}: {text}");
        }
        println!("{}", checked(&[Path::new(&folder)]));
    }
}

/// MaxText has Llamas only, and computes blocks again.
#[test]
fn a_plan_is_written_for_maxtext() {
    let (house, _) = house();
    let recipe = RECIPE.replace("[data]", "family = \"llama\"\n\n[data]");
    let recipe = house.file(
        "llama.toml",
        recipe.replace("zero = 2", "zero = 3\nrecompute = \"full\"\nrecompute_every = 1"),
    );
    let recipe = recipe.to_str().expect("the path is UTF-8");
    let folder = recipe.replace("llama.toml", "maxtext");
    house.expect(0, ["plan", recipe, "--emit", "maxtext", "--emit-to", &folder]);
    let config = fs::read_to_string(Path::new(&folder).join("maxtext.yml")).expect("it was written");
    assert!(config.contains("\nici_fsdp_parallelism: 2\n"), "{config}");
    println!("{}", checked(&[Path::new(&folder)]));
}

#[test]
fn an_engine_that_nothing_is_written_for_is_not_planned_for() {
    let recipe = root().join("examples/llama-405b/recipe.toml");
    let recipe = recipe.to_str().expect("the path is UTF-8");
    let house = TestEnv::default();
    let refused = house.expect(2, ["plan", recipe, "--on", "2048x8 H100", "--engine", "megatron-deepspeed"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("name megatron or deepspeed"), "{said}");
}

/// FSDP2, under Hugging Face's Trainer too, shards gradients with moments, and torchtitan has no other: the fastest layout for the worker is none of theirs.
#[test]
fn what_is_planned_for_an_engine_is_within_its_abilities() {
    let (house, _) = house();
    let recipe = RECIPE
        .replace("[data]", "family = \"llama\"\n\n[data]")
        .replace("data = 2\nzero = 2", "")
        .replace("ranks = 2", "ranks = 4");
    let recipe = house.file("open.toml", recipe);
    let recipe = recipe.to_str().expect("the path is UTF-8");
    for name in ["torchtitan", "deepspeed", "hf-trainer", "maxtext", "megatron"] {
        let folder = recipe.replace("open.toml", name);
        house.expect(0, ["plan", recipe, "--emit", name, "--emit-to", &folder]);
        println!("{}", checked(&[Path::new(&folder)]));
    }
}

/// dtrain has a program of its own for FSDP2, and files of this name were those for Hugging Face's Trainer.
#[test]
fn the_format_fsdp_is_refused_with_the_name_of_today() {
    let (house, recipe) = house();
    let refused = house.expect(2, ["plan", recipe.to_str().expect("UTF-8"), "--emit", "fsdp"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    for words in ["dtrain run --engine fsdp", "are `hf-trainer` now"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn one_file_goes_to_stdout_and_several_want_a_folder() {
    let (house, recipe) = house();
    let recipe = recipe.to_str().expect("the path is UTF-8");
    let slurm = house.expect(0, ["plan", recipe, "--emit", "slurm"]);
    assert!(slurm.stdout.starts_with(b"#!/usr/bin/env bash\n#SBATCH --job-name=two-replicas\n"));
    let refused = house.expect(2, ["plan", recipe, "--emit", "deepspeed"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--emit-to FOLDER"));
    assert!(refused.stdout.is_empty());
    let json = house.expect(0, ["plan", recipe, "--emit", "deepspeed", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    assert_eq!(json["format"], "dtrain.emitted/2");
    let names: Vec<_> = json["files"].as_array().expect("files").iter().map(|file| &file["name"]).collect();
    assert_eq!(names, ["ds_config.json", "config.json", "deepspeed.sh"]);
    assert!(!json["notes"].as_array().expect("notes").is_empty());
}

#[test]
fn a_model_that_an_engine_has_not_is_refused() {
    let (house, recipe) = house();
    let refused = house.expect(3, ["plan", recipe.to_str().expect("UTF-8"), "--emit", "torchtitan"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("1 thread each: torchtitan does not support a decoder that is not of the Llama family"),
        "{said}"
    );
}

/// The command of `docs/other-engines.md`, in a house where its model was measured; what is said of the files.
pub(super) fn the_page_s_command_writes_a_config_of_torchtitan(house: &TestEnv) -> String {
    let mut words = command_with("docs/other-engines.md", "torchtitan");
    words[1] = root().join(&words[1]).to_str().expect("UTF-8").to_owned();
    house.expect(0, words);
    checked(&[&house.state().with_file_name("titan")])
}

/// The script starts `pretrain_gpt.py`, which lies in the root of Megatron-LM.
#[test]
fn a_script_for_megatron_is_started_in_the_repository_of_megatron() {
    let (house, recipe) = house();
    let recipe = recipe.to_str().expect("the path is UTF-8");
    let folder = recipe.replace("recipe.toml", "out");
    let written = house.expect(0, ["plan", recipe, "--emit", "megatron", "--emit-to", &folder]);
    let said = String::from_utf8_lossy(&written.stderr).into_owned();
    let next: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("next: ")).collect();
    let [clone, data, start] = next[..] else { panic!("three lines: {said}") };
    assert!(
        clone.starts_with("git clone --depth 1 --branch core_v") && clone.ends_with(" MEGATRON-LM"),
        "{said}"
    );
    assert_eq!(data, format!("cd MEGATRON-LM && bash {folder}/megatron.sh data"));
    assert_eq!(start, format!("cd MEGATRON-LM && bash {folder}/megatron.sh"));
}
