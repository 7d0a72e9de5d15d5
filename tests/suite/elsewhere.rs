//! `dtrain plan --on`: a plan for GPUs that are not here is saved, drawn and written as any other, and not run here.

use dtrain_planner::Plan;
use dtrain_tests::{TestEnv, root};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

/// The recipe of Llama 405B.
fn recipe() -> String {
    root().join("examples/llama-405b/recipe.toml").to_str().expect("UTF-8").to_owned()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the program printed on standard error, with all white space as one space.
fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What the program printed on standard output, with all white space as one space.
fn data_words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_plan_for_gpus_that_are_not_here_is_written_for_another_engine() {
    let house = TestEnv::default();
    let recipe = recipe();
    let plan = |format| house.expect(0, ["plan", &recipe, "--on", "2048x8 H100", "--emit", format]);
    let output = plan("megatron");
    let script = String::from_utf8_lossy(&output.stdout);
    let outlook = house.expect(0, ["plan", &recipe, "--on", "2048x8 H100", "--json"]);
    let outlook: Value = serde_json::from_slice(&outlook.stdout).expect("JSON");
    let layout = &outlook["choice"]["config"]["layout"];
    for (option, key) in
        [("--tensor-model-parallel-size", "tensor"), ("--pipeline-model-parallel-size", "pipeline")]
    {
        let wanted = format!("{option} {}", layout[key].as_u64().expect("a number"));
        assert!(script.contains(&wanted), "{wanted}: {script}");
    }
    assert!(words(&output).contains("an estimate for 2048x8 H100"), "{}", words(&output));
    let slurm = plan("slurm");
    let slurm = String::from_utf8_lossy(&slurm.stdout);
    assert!(slurm.contains("--nodes=2048\n") && slurm.contains("--gpus-per-node=8\n"), "{slurm}");
}

#[test]
fn one_call_saves_draws_and_writes_and_the_plan_is_not_run_here() {
    let house = TestEnv::default();
    let folder = house.file("note", "").parent().expect("a folder").to_owned();
    let at = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let (saved, drawn, emitted) = (at("plan.json"), at("plan.html"), at("titan"));
    let on = ["plan", &recipe(), "--on", "1024x8 H100", "--engine", "torchtitan", "--out", &saved]
        .map(str::to_owned);
    let more = ["--html", &drawn, "--emit", "torchtitan", "--emit-to", &emitted].map(str::to_owned);
    let output = house.expect(0, on.iter().chain(&more));
    assert!(words(&output).contains(&format!("saved as {saved} (digest ")), "{}", words(&output));
    assert!(text(Path::new(&drawn)).contains("<svg"));

    let mut stored: Value = serde_json::from_str(&text(Path::new(&saved))).expect("JSON");
    let plan = Plan::read(&stored["plan"]).expect("a plan");
    assert_eq!(plan.engine.as_deref(), Some("torchtitan"));
    assert_eq!((plan.host.hosts.get(), plan.host.gpus.len()), (1024, 8));
    assert!(plan.choices.len() > 1, "the next layouts are choices too");
    assert!(plan.choices.iter().all(|choice| choice.candidate.arrangement.layout.world() == 8192));
    let written = fs::read_dir(&emitted).expect("a folder").flatten();
    let written: String = written.map(|entry| text(&entry.path())).collect();
    assert!(written.contains(&plan.digest()[..12]), "the files are those of the saved plan");

    let refused = words(&house.expect(2, ["run", &saved]));
    for wanted in [
        "is a plan for torchtitan on 1024x8 H100 SXM5 80GB, and `dtrain run` trains with dtrain's own worker",
        "--on \"1024x8 H100 SXM5 80GB\" --emit torchtitan --emit-to FOLDER",
        "cd FOLDER && ",
    ] {
        assert!(refused.contains(wanted), "{wanted}: {refused}");
    }

    // The same for dtrain's own worker: the hosts here are not those of the plan.
    let own = Plan { engine: None, ..plan };
    stored["digest"] = own.digest().into();
    stored["plan"] = serde_json::to_value(&own).expect("JSON");
    fs::write(&saved, stored.to_string()).expect("room on disk");
    let refused = words(&house.expect(8, ["run", &saved]));
    assert!(refused.contains("there is 1 host, the plan was made for 1024"), "{refused}");
    assert!(!refused.contains("cores"), "cores were not planned for: {refused}");
}

/// A model of 1.5 billion parameters that dtrain's own worker trains.
const OWN: &str = r#"
name = "own"

[model]
kind = "decoder"
family = "llama"
layers = 24
hidden = 2048
heads = 16
kv_heads = 8
ffn = 8192
vocab = 32000
context = 2048

[data]
train = "tokens/*.bin"
valid = "1%"

[objective]
stop = { steps = 1000 }

[train]
batch = 256
"#;

#[test]
fn the_worker_is_planned_for_gpus_that_nobody_measured() {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", OWN);
    let recipe = recipe.to_str().expect("UTF-8");
    let saved = recipe.replace("recipe.toml", "plan.json");
    let on = ["plan", recipe, "--on", "8x8 H100", "--engine", "dtrain"];
    let output = house.expect(0, [&on[..], &["--out", &saved]].concat());
    let said = data_words(&output);
    assert!(said.contains("engine dtrain") && said.contains("engine never measured on a GPU"), "{said}");
    let refused = words(&house.expect(8, ["run", &saved]));
    assert!(refused.contains("there is 1 host, the plan was made for 8"), "{refused}");

    let refused = words(&house.expect(3, [&on[..], &["--set", "train.precision=fp8"]].concat()));
    assert!(refused.contains("dtrain can run no layout of 64 devices: it does not support fp8"), "{refused}");
}

/// No files are written for it, and its version does not tell a plan of before, for Hugging Face's Trainer, from it.
#[test]
fn a_plan_for_the_program_for_fsdp2_is_run_from_its_recipe() {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", OWN);
    let recipe = recipe.to_str().expect("UTF-8");
    let saved = recipe.replace("recipe.toml", "plan.json");
    let output = house.expect(0, ["plan", recipe, "--on", "8x8 H100", "--engine", "fsdp", "--out", &saved]);
    let said = data_words(&output);
    assert!(said.contains("engine fsdp") && said.contains("engine never measured on a GPU"), "{said}");
    let refused = words(&house.expect(2, ["run", &saved]));
    for wanted in ["is a plan for fsdp on 8x8 H100", "dtrain run RECIPE --engine fsdp", "--emit hf-trainer"] {
        assert!(refused.contains(wanted), "{wanted}: {refused}");
    }
}

#[test]
fn a_power_limit_may_be_named() {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", OWN);
    let recipe = recipe.to_str().expect("UTF-8");
    let step = |on: &str| {
        let output = house.expect(0, ["plan", recipe, "--on", on, "--json"]);
        let outlook: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        outlook["choice"]["step_seconds"].as_f64().expect("a number")
    };
    assert!(step("4x8 H100 500W") > 1.03 * step("4x8 H100"));
    let refused = words(&house.expect(2, ["plan", recipe, "--on", "4x8 L40S 20W"]));
    assert!(refused.contains("`L40S 20W` cannot run with a power limit of 20 W"), "{refused}");
}

#[test]
fn as_many_layouts_are_shown_as_asked_for() {
    let house = TestEnv::default();
    let recipe = recipe();
    let shown = |more: &[&str]| {
        let arguments = [&["plan", &recipe, "--on", "1024x8 H100"], more].concat();
        String::from_utf8_lossy(&house.expect(0, arguments).stdout).into_owned()
    };
    let layouts = |text: &str| text.lines().filter(|line| line.contains("iB  ")).count();
    let all = layouts(&shown(&[]));
    assert!((2..=5).contains(&all), "{all}");
    assert_eq!(layouts(&shown(&["--top", "2"])), 2);
    assert_eq!(layouts(&shown(&["--top", "0"])), 0);
    let many = shown(&["--top", "9"]);
    assert!(layouts(&many) == 9 && many.lines().count() > 24, "{many}");
    // The full explanation has the layouts that tie with the choice and the next.
    let full = shown(&["--explain", "--top", "12"]);
    assert!(full.lines().filter(|line| line.contains(" a step, ")).count() > 12, "{full}");
}

#[test]
fn hosts_that_differ_are_told_about_and_nothing_is_written() {
    let house = TestEnv::default();
    let recipe = recipe();
    let flags: [&[&str]; 4] =
        [&["--out", "plan.json"], &["--html", "plan.html"], &["--emit", "megatron"], &["--top", "1"]];
    for flag in flags {
        let output = house.expect(2, [&["plan", &recipe, "--on", "64x8 H100 + 64x8 A100"], flag].concat());
        assert!(
            words(&output).contains(&format!("`{}` needs identical hosts", flag[0])),
            "{}",
            words(&output)
        );
    }
    let explained = house.expect(0, ["plan", &recipe, "--on", "64x8 H100 + 64x8 A100", "--explain"]);
    let words = data_words(&explained);
    assert!(words.contains("slowest memory of the heaviest GPU") && words.contains(" searched "), "{words}");
    let at = |name: &str| house.state().with_file_name(name);
    assert!(!at("plan.json").exists() && !at("plan.html").exists());
}
