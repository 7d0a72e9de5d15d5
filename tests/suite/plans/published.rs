//! The published trainings of `tests/data/tuned_runs.toml` and `tests/data/small_runs.toml`.

use super::planner::{Priced, Question};
use dtrain_tests::root;
use serde::Deserialize;
use std::fs;

/// A training whose layout was tuned by those who ran it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    pub(super) name: String,
    /// Where it is published.
    pub(super) source: String,
    /// What the keys do not say.
    #[serde(default)]
    #[expect(dead_code, reason = "for those who read the file")]
    note: Option<String>,
    pub(super) on: String,
    network: Option<f64>,
    engine: String,
    batch: u32,
    precision: String,
    /// How values are scaled into fp8, where not by tensor.
    fp8_recipe: Option<String>,
    /// Of attention, where it is not a fused one.
    kernel: Option<String>,
    step_seconds: Option<f64>,
    tokens_per_second_per_gpu: Option<f64>,
    mfu: Option<f64>,
    /// Peak memory of a GPU as published, in GiB.
    memory_gib: Option<f64>,
    /// Precision of weights and optimizer state, where they are not those of mixed precision.
    state: Option<String>,
    /// "fused", where the program never holds all logits.
    pub(super) loss: Option<String>,
    model: toml::Table,
    /// Keys of `[layout]`.
    pub(super) layout: toml::Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Runs {
    run: Vec<Run>,
}

/// The runs of both files.
pub(super) fn runs() -> Vec<Run> {
    [tuned_runs(), small_runs()].concat()
}

/// Trainings that were tuned, most of them on many GPUs.
pub(super) fn tuned_runs() -> Vec<Run> {
    read("tuned_runs.toml")
}

/// Trainings on one to sixteen GPUs.
pub(super) fn small_runs() -> Vec<Run> {
    read("small_runs.toml")
}

fn read(file: &str) -> Vec<Run> {
    let text = fs::read_to_string(root().join("tests/data").join(file)).expect("the file is there");
    toml::from_str::<Runs>(&text).expect("it has the keys that its head explains").run
}

impl Run {
    /// Whether the published layout uses all GPUs, where it says how many replicas there are.
    pub(super) fn uses_all_gpus(&self) -> bool {
        let degrees = ["tensor", "pipeline", "context", "data"].map(|key| self.layout.get(key));
        let ranks: i64 = degrees.iter().flatten().filter_map(|degree| degree.as_integer()).product();
        !self.layout.contains_key("data") || ranks as f64 == self.gpus()
    }

    /// Whether all tokens go through the same weights.
    pub(super) fn is_dense(&self) -> bool {
        !self.model.contains_key("experts")
    }

    /// GPUs in all.
    pub(super) fn gpus(&self) -> f64 {
        let shape = self.on.split(' ').next().expect("hosts and GPUs");
        let (hosts, gpus) = shape.split_once('x').expect("hosts × GPUs");
        [hosts, gpus].map(|count| count.parse::<f64>().expect("a number")).iter().product()
    }

    /// What to train on what, every axis of the layout open.
    pub(super) fn open(&self) -> Question {
        let mut recipe = recipe(&self.model, self.batch, &self.precision);
        if let Some(scales) = &self.fp8_recipe {
            let train = recipe["train"].as_table_mut().expect("a section");
            train.insert("fp8_recipe".into(), scales.clone().into());
        }
        Question { recipe, on: self.on.clone(), network: self.network, engine: self.engine.clone() }
    }

    /// The same with the published layout.
    pub(super) fn published(&self) -> Question {
        self.open().pinned(&self.layout)
    }

    /// The measured peak memory of a GPU in bytes, where it was published for state as the planner counts it.
    pub(super) fn measured_bytes(&self) -> Option<f64> {
        self.memory_gib.filter(|_| self.state.is_none()).map(|gib| gib * 1024f64.powi(3))
    }

    /// Where a priced layout differs from the published one.
    pub(super) fn differences(&self, priced: &Priced) -> Vec<String> {
        let differs = |(key, value): (&String, &toml::Value)| {
            let (wanted, found) = (value.as_integer()?, priced.degree(key)?);
            (wanted as f64 != found).then(|| format!("{key} {found} instead of {wanted}"))
        };
        self.layout.iter().filter_map(differs).collect()
    }

    /// The measured seconds of a step, where they were published for attention as the planner prices it. `priced` is the
    /// published layout: its utilization says which operations are counted.
    pub(super) fn measured(&self, priced: &Priced) -> Option<f64> {
        if self.kernel.is_some() {
            return None;
        }
        let context = self.model["context"].as_integer().expect("tokens") as f64;
        let tokens = f64::from(self.batch) * context;
        let of_rate = self.tokens_per_second_per_gpu.map(|rate| tokens / (rate * self.gpus()));
        let of_mfu = self.mfu.map(|mfu| priced.seconds * priced.utilization / mfu);
        self.step_seconds.or(of_rate).or(of_mfu)
    }
}

/// A recipe with this model, batch and precision.
pub(super) fn recipe(model: &toml::Table, batch: u32, precision: &str) -> toml::Table {
    let mut recipe: toml::Table = toml::from_str(
        "name = \"gate\"\ndata = { train = \"tokens/*.bin\" }\nobjective = { stop = { steps = 1000 } }",
    )
    .expect("TOML");
    let mut model = model.clone();
    model.insert("kind".into(), "decoder".into());
    recipe.insert("model".into(), model.into());
    let train = [("batch", i64::from(batch).into()), ("precision", precision.into())];
    let train = train.map(|(key, value): (&str, toml::Value)| (key.to_owned(), value));
    recipe.insert("train".into(), toml::Table::from_iter(train).into());
    recipe
}
