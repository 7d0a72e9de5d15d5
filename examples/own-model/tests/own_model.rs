//! A custom network trains in every layout as on one rank, resumes bit-exactly, and is planned and tuned.

use dtrain_protocol::{Rank, StepId};
use dtrain_runner::ledger::History;
use dtrain_tests::{TestEnv, digest, newest_checkpoint, numbered_lines, root};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// Steps of a training run.
const STEPS: usize = 24;

/// The example's own recipe with a fixed text, in a minimal size.
struct Example {
    house: TestEnv,
    recipe: String,
}

impl Example {
    fn new() -> Self {
        let house = TestEnv::of_program(Path::new(env!("CARGO_BIN_EXE_own-model")));
        house.file("text.txt", numbered_lines());
        let text = std::fs::read_to_string(root().join("examples/own-model/recipe.toml")).expect("a recipe");
        let recipe = house.file("recipe.toml", text).to_str().expect("UTF-8").to_owned();
        Self { house, recipe }
    }

    /// Runs a command on the recipe with more settings; returns its output.
    fn output(&self, code: i32, verb: &[&str], settings: &[&str]) -> Output {
        let stop = format!("objective.stop={{ steps = {STEPS} }}");
        let small =
            ["data.train=\"text.txt\"", "model.settings={ depth = 4, width = 24, kernel = 3 }", &stop];
        let mut arguments = vec![verb[0], &self.recipe, "--quiet"];
        arguments.extend(&verb[1..]);
        arguments.extend(small.iter().chain(settings).flat_map(|setting| ["--set", setting]));
        self.house.expect(code, arguments)
    }

    /// Runs a command; returns its standard output.
    fn run(&self, code: i32, verb: &[&str], settings: &[&str]) -> String {
        String::from_utf8(self.output(code, verb, settings).stdout).expect("text")
    }

    /// Trains, and returns the losses.
    fn train(&self, settings: &[&str]) -> Vec<f64> {
        self.run(0, &["run", "--no-sample"], settings);
        self.losses()
    }

    fn losses(&self) -> Vec<f64> {
        let history = History::open_read_only(&self.house.history()).expect("a history");
        let trial = history.find("last").expect("a trial");
        let losses = history.series(&trial, "loss", Rank(0)).expect("losses");
        losses.iter().map(|point| point.value).collect()
    }
}

#[test]
fn it_trains_in_every_layout_as_on_one_rank() {
    let example = Example::new();
    let rate = "train.learning_rate=1e-2";
    let one = example.train(&["cluster.ranks=1", rate]);
    assert!(one.len() == STEPS && one[STEPS - 1] < 0.8 * one[0], "it learned nothing: {one:?}");
    for layout in [
        &["layout.data=2", "layout.zero=0"][..],
        &["layout.data=2", "layout.zero=1"],
        &["layout.data=2", "layout.zero=2"],
        &["layout.data=2", "layout.zero=3", "layout.recompute=full"],
        &["layout.pipeline=2", "layout.schedule=1f1b"],
        &["layout.pipeline=2", "layout.schedule=zero_bubble", "layout.recompute=full"],
    ] {
        let settings = [&["cluster.ranks=2", "layout.micro_batch=4", rate], layout].concat();
        let losses = example.train(&settings);
        assert_eq!(losses.len(), STEPS, "{layout:?}");
        let worst = one.iter().zip(&losses).map(|(a, b)| ((a - b) / a).abs()).fold(0.0, f64::max);
        println!("{layout:?}: losses differ by at most {worst:.1e}");
        assert!(worst < 1e-4, "{layout:?} parts from one rank by {worst:.1e}");
    }
}

#[test]
fn it_resumes_to_the_same_bits_after_a_stop() {
    let (steps, stop) = (1200, "objective.stop={ steps = 1200 }");
    let settings = ["cluster.ranks=2", "layout.data=2", "layout.zero=1", "layout.micro_batch=8", stop];
    let [whole, halves] = [Example::new(), Example::new()];
    whole.train(&settings);
    let newest = |example: &Example| newest_checkpoint(&example.house.newest_trial());
    halves.run(0, &["run", "--no-sample", "--detach"], &settings);
    halves.house.expect(0, ["stop", "last"]);
    let (stopped, _) = newest(&halves);
    assert!((1..steps).contains(&stopped.0), "it was stopped at step {stopped}");
    halves.house.expect(0, ["resume", "last", "--quiet"]);
    let [(end, wanted), (resumed, found)] = [newest(&whole), newest(&halves)];
    assert_eq!((end, resumed), (StepId(steps), StepId(steps)));
    assert_eq!(digest(&found), digest(&wanted), "weights and moments to the last bit");
    assert!(whole.losses() == halves.losses(), "losses to the last bit");
}

#[test]
fn it_is_planned_with_what_its_parts_are_made_of() {
    let example = Example::new();
    let plan: Value =
        serde_json::from_str(&example.run(0, &["plan", "--json"], &["cluster.ranks=2"])).expect("JSON");
    let model = &plan["plan"]["recipe"]["model"];
    assert_eq!((&model["kind"], &model["network"]), (&"custom".into(), &"gated-convolution".into()));
    let blocks = model["outline"]["blocks"].as_array().expect("a list");
    assert_eq!((blocks.len(), &blocks[3]["output"]), (4, &serde_json::json!([64, 24])));
    assert_eq!(blocks[0]["parameters"][2], serde_json::json!([48, 24, 3]), "a kernel");
    let told = example.run(0, &["plan"], &["cluster.ranks=2"]);
    // Embedding 256 × 24; each block has a norm and a convolution; a norm and 24 × 256 at the end.
    let parameters = 256 * 24 + 4 * (2 * 24 + 48 * 24 * 3 + 48) + 2 * 24 + 24 * 256 + 256;
    assert_eq!(parameters, 26_800);
    assert!(told.contains("a network `gated-convolution` of 26.8 K parameters"), "{told}");
    assert!(told.contains("estimated"), "{told}");
    let cut = example.output(3, &["plan"], &["cluster.ranks=2", "layout.tensor=2"]);
    let said = String::from_utf8_lossy(&cut.stderr).into_owned();
    assert!(said.contains("tensor parallelism needs declared cuts"), "{said}");
}

#[test]
fn it_is_tuned() {
    let example = Example::new();
    let options = ["tune", "--trials", "3", "--steps", "8", "--layouts", "0", "--study", "s", "--json"];
    let told = example.run(0, &options, &["cluster.ranks=1", "train.learning_rate={ log = [1e-4, 1e-1] }"]);
    let study: Value = serde_json::from_str(told.lines().last().expect("a line")).expect("JSON");
    let trials = study["trials"].as_array().expect("a list");
    let rates: Vec<f64> = trials.iter().filter_map(|trial| trial["values"][0].as_f64()).collect();
    assert!(rates.len() == 3 && rates.iter().all(|rate| (1e-4..=1e-1).contains(rate)), "{study}");
}

#[test]
fn a_network_that_is_not_registered_is_told_with_those_that_are() {
    let example = Example::new();
    for verb in ["check", "plan"] {
        let output = example
            .house
            .dtrain([verb, &example.recipe, "--set", "model.network=gated"])
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("no network \"gated\"; it has \"gated-convolution\""), "{said}");
    }
    let said = example.run(0, &["check"], &[]);
    assert!(said.is_empty(), "what is valid is told on standard error: {said}");
}

#[test]
fn the_page_shows_the_program_as_it_is() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("a file of the repository");
    let (page, program) = (read("docs/own-models.md"), read("examples/own-model/src/main.rs"));
    let shown: Vec<&str> =
        page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(shown.len() >= 3);
    for block in shown {
        assert!(program.contains(block), "the page shows lines that the program does not have:\n{block}");
    }
    assert!(program.lines().count() < 100, "an example of a network fits on two screens");
}
