//! Conversations as training data, on every layout and beside TRL. `tests/run interop` installs what the comparison
//! needs; without it that test is skipped.

use crate::interop::series;
use dtrain_tests::{TestEnv, python_with, root};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Writes eight conversations, the tokenizer of `tests/data/chat` with a template, and a recipe for a small Llama.
pub(crate) fn recipe(house: &TestEnv, more: &str) -> String {
    let chat = root().join("tests/data/chat");
    house.file("tokenizer/tokenizer.json", fs::read(chat.join("tokenizer.json")).expect("it is there"));
    let template = fs::read(chat.join("templates/qwen3_training.jinja")).expect("it is there");
    house.file("tokenizer/chat_template.jinja", template);
    house
        .file("tokenizer/tokenizer_config.json", r#"{"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}"#);
    let mut lines = String::new();
    for number in 0..8 {
        let words = ["one", "two", "three", "four", "five", "six", "seven", "eight"];
        let answer = words[..=number].join(" ");
        let record = serde_json::json!({ "messages": [
            { "role": "user", "content": format!("Count to {}.", number + 1) },
            { "role": "assistant", "content": answer },
        ] });
        writeln!(lines, "{record}").expect("a string grows");
    }
    house.file("chats.jsonl", lines);
    let vocab = fs::read_to_string(chat.join("tokenizer.json")).expect("it is there");
    let vocab: serde_json::Value = serde_json::from_str(&vocab).expect("JSON");
    let words = vocab["model"]["vocab"].as_object().expect("a vocabulary").len();
    let added = vocab["added_tokens"].as_array().map_or(0, Vec::len);
    let recipe = format!(
        "[model]\nkind = 'decoder'\nfamily = 'llama'\nlayers = 2\nhidden = 32\nheads = 4\nffn = 48\ncontext = 128\n\
         vocab = {}\n[data]\nformat = 'chat'\ntrain = 'chats.jsonl'\nvalid = ['chats.jsonl']\n\
         tokenizer = 'tokenizer/tokenizer.json'\n{more}\n[objective]\nstop = {{ steps = 4 }}\n[train]\n\
         learning_rate = 1e-3\nschedule = 'constant'\nwarmup = '1 steps'\nclip = 'none'\nseed = 1\n\
         optimizer = {{ kind = 'adamw', weight_decay = 0.0 }}\n",
        words + added
    );
    house.file("chat.toml", recipe).display().to_string()
}

pub(crate) fn losses(house: &TestEnv, recipe: &str, more: &[&str]) -> Vec<f64> {
    let fixed = ["run", recipe, "--quiet", "--no-sample"];
    house.expect(0, fixed.iter().chain(more).copied());
    series(house, "loss")
}

fn assert_close(what: &str, wanted: &[f64], found: &[f64]) {
    assert_eq!(wanted.len(), found.len(), "{what}");
    for (wanted, found) in wanted.iter().zip(found) {
        assert!((wanted - found).abs() < 1e-4 * wanted, "{what}: {found}, not {wanted}");
    }
}

#[test]
fn packed_conversations_train_as_each_alone_on_every_layout() {
    let house = TestEnv::default();
    let alone = recipe(&house, "packing = false");
    // Each step is all conversations, so that only the packing differs.
    let one = losses(&house, &alone, &["--set", "train.batch=8", "--set", "cluster.ranks=1"]);
    assert!(one[3] < one[0], "{one:?}");
    for layout in ["tensor=2", "pipeline=2", "context=2", "zero=2", "zero=3"] {
        let layout = format!("layout.{layout}");
        let more = ["--set", "train.batch=8", "--set", "cluster.ranks=2", "--set", &layout];
        assert_close(&layout, &one, &losses(&house, &alone, &more));
    }
    let more = ["--set", "train.batch=8", "--set", "cluster.ranks=1", "--set", "layout.micro_batch=2"];
    assert_close("micro-batches", &one, &losses(&house, &alone, &more));
    let packed = recipe(&house, "packing = true");
    let shown = house.expect(0, ["data", &packed, "--prepare", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let windows = shown["train_samples"].as_u64().expect("a number");
    assert!(windows < 8, "{windows} sequences of eight conversations");
    let batch = format!("train.batch={windows}");
    for layout in ["tensor=1", "tensor=2", "pipeline=2", "context=2"] {
        let layout = format!("layout.{layout}");
        let ranks = if layout.ends_with('1') { "cluster.ranks=1" } else { "cluster.ranks=2" };
        let more = ["--set", &batch, "--set", ranks, "--set", &layout];
        assert_close(&format!("packed, {layout}"), &one, &losses(&house, &packed, &more));
    }
}

#[test]
fn what_is_wrong_with_a_conversation_is_said_with_its_place() {
    let house = TestEnv::default();
    let file = recipe(&house, "");
    let said = |name: &str, content: &str| {
        house.file(name, content);
        let set = format!("data.train={name}");
        let refused = house.expect(2, ["data", &file, "--prepare", "--set", &set]);
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };
    let good = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let role = said("role.jsonl", &format!("{good}\n{}\n", good.replace("assistant", "robot")));
    assert!(role.contains("role.jsonl, line 2") && role.contains("messages[1].role"), "{role}");
    let form = said("form.jsonl", "{\"text\": \"a\"}\n");
    assert!(form.contains("form.jsonl, line 1") && form.contains("messages"), "{form}");
    house.file("tokenizer/chat_template.jinja", "{% if %}");
    let template = said("good.jsonl", good);
    assert!(template.contains("chat_template.jinja") && template.contains("line 1"), "{template}");
    let missing = house.expect(2, ["check", &file, "--set", "data.tokenizer=bytes"]);
    let missing = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.contains("data.tokenizer"), "{missing}");
}

/// Runs `tests/data/sft.py`.
fn trl(python: &Path, arguments: &[&str]) -> Vec<f64> {
    let output = Command::new(python).arg(root().join("tests/data/sft.py")).args(arguments).output();
    let output = output.expect("python starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let losses = said.lines().filter_map(|line| line.strip_prefix("loss "));
    losses.map(|line| line.parse().expect("a loss")).collect()
}

#[test]
fn a_fine_tuning_of_interop_goes_as_that_of_trl() {
    let python = match python_with("trl") {
        Ok(python) => python,
        Err(missing) => return dtrain_skip::skip_large(missing),
    };
    let house = TestEnv::default();
    let file = recipe(&house, "packing = false");
    let home = house.state().parent().expect("the house").to_owned();
    let at = |name: &str| home.join(name).display().to_string();
    // The model that both begin with.
    let begin = ["--set", "objective.stop={ steps = 2 }", "--set", "train.learning_rate=1e-12"];
    losses(&house, &file, &[&["--set", "train.batch=8", "--set", "cluster.ranks=1"][..], &begin].concat());
    house.expect(0, ["model", "export", "last", "--to", "hf", "--out", "begin"]);
    let wanted = trl(&python, &[&at("begin"), &at("tokenizer"), &at("chats.jsonl"), "30", "1e-3"]);
    let steps = "objective.stop={ steps = 30 }";
    let more = ["--from", &at("begin"), "--set", steps, "--set", "train.batch=8", "--set", "cluster.ranks=1"];
    let found = losses(&house, &file, &more);
    assert_eq!((wanted.len(), found.len()), (30, 30));
    for (step, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
        assert!((wanted - found).abs() < 1e-3, "step {}: {found}, not {wanted}", step + 1);
    }
}
