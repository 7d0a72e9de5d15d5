//! Asks `dtrain plan --on`. Names of keys of its answer stand here and nowhere else in this suite.

use dtrain_tests::TestEnv;
use serde_json::Value;
use std::fmt;
use std::process::Output;

/// Engines as `--engine` takes them, and as `--emit` does.
pub(super) const ENGINES: [(&str, &str); 5] = [
    ("megatron", "megatron"),
    ("deepspeed", "deepspeed"),
    ("hf-trainer", "hf-trainer"),
    ("torchtitan", "torchtitan"),
    ("jax", "maxtext"),
];

/// A training, and the GPUs that it is planned for.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// A recipe without a layout.
    pub(super) recipe: toml::Table,
    /// Hosts × GPUs and the part.
    pub(super) on: String,
    /// Gbit/s of a GPU between hosts, where it is not the usual one.
    pub(super) network: Option<f64>,
    /// As `--engine` takes it.
    pub(super) engine: String,
}

/// A layout with its price.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    /// Keys of `[layout]` with whole values.
    pub(super) degrees: Vec<(&'static str, f64)>,
    /// Its schedule, sharding and recompute.
    words: String,
    /// Of a step.
    pub(super) seconds: f64,
    /// 80 % interval of the seconds.
    pub(super) interval: (f64, f64),
    /// Of the heaviest GPU.
    pub(super) bytes: f64,
    /// Model FLOPs utilization.
    pub(super) utilization: f64,
}

/// What the planner answers.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The layout to train with.
    pub(super) choice: Priced,
    /// Seconds, seconds that one step in ten exceeds, and bytes of all rows that are shown beside it. Rows of the front have no
    /// interval; theirs is as wide as that of the choice.
    pub(super) shown: Vec<(f64, f64, f64)>,
}

impl Question {
    /// With these keys of `[layout]`.
    pub(super) fn pinned(&self, layout: &toml::Table) -> Self {
        let mut pinned = self.clone();
        pinned.recipe.insert("layout".into(), layout.clone().into());
        pinned
    }

    /// The planner's answer; `Err` is why there is none.
    pub(super) fn ask(&self) -> Result<Answer, String> {
        let text = succeeded(&self.run(&["--json"]))?;
        let answer: Value = serde_json::from_str(&text).expect("it is JSON");
        let shown = ["ties", "next"].into_iter().flat_map(|key| list(&answer[key]));
        let choice = Priced::of(&answer["choice"]);
        let of =
            |row: &Value| ["step_seconds", "step_seconds_high", "peak_bytes"].map(|key| number(&row[key]));
        let mut shown: Vec<_> = shown.map(of).map(|[seconds, high, bytes]| (seconds, high, bytes)).collect();
        let wide = choice.interval.1 / choice.interval.0;
        let front = list(&answer["tradeoffs"]["pareto_front"]);
        shown.extend(front.map(|row| {
            let seconds = number(&row["cost"]["step_seconds"]);
            (seconds, seconds * wide, number(&row["memory_peak"]))
        }));
        Ok(Answer { choice, shown })
    }

    /// What a person reads.
    pub(super) fn read(&self) -> Result<String, String> {
        succeeded(&self.run(&[]))
    }

    /// Writes the choice for the engine; `Err` is why it cannot be.
    pub(super) fn emit(&self) -> Result<(), String> {
        let (_, format) = ENGINES.iter().find(|(name, _)| *name == self.engine).expect("a known engine");
        succeeded(&self.run(&["--emit", format, "--emit-to", "emitted"])).map(drop)
    }

    fn run(&self, more: &[&str]) -> Output {
        let house = TestEnv::default();
        let recipe = toml::to_string(&self.recipe).expect("a recipe is TOML");
        house.file("recipe.toml", recipe);
        let mut command = house.dtrain(["plan", "recipe.toml", "--on", &self.on, "--engine", &self.engine]);
        if let Some(network) = self.network {
            command.args(["--network", &network.to_string()]);
        }
        command.args(more).output().expect("the program starts")
    }
}

/// On one line, so that it can be asked again.
impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recipe, on, engine, .. } = self;
        let section = |key: &str| recipe.get(key).map_or(String::new(), |value| format!(", {key} = {value}"));
        write!(f, "{engine} on {on}{}{}", section("model"), section("train"))
    }
}

impl Priced {
    fn of(row: &Value) -> Self {
        let config = &row["config"];
        let layout = |axis: &str| number(&config["layout"][axis]);
        let degrees = [
            ("tensor", layout("tensor")),
            ("pipeline", layout("pipeline")),
            ("context", layout("context")),
            // Of all ranks that experts are spread over.
            ("expert", layout("expert") * config["expert_fold"].as_f64().unwrap_or(1.0)),
            ("chunks", number(&config["chunks"])),
            ("micro_batch", number(&config["micro_batch"])),
        ];
        let words = [("", "schedule"), ("zero ", "zero"), ("recompute ", "recompute")];
        Self {
            degrees: degrees.to_vec(),
            words: words
                .map(|(word, key)| format!("{word}{}", config[key].as_str().unwrap_or("?")))
                .join(", "),
            seconds: number(&row["step_seconds"]),
            interval: (number(&row["step_seconds_low"]), number(&row["step_seconds_high"])),
            bytes: number(&row["peak_bytes"]),
            utilization: number(&row["model_flops_utilization"]),
        }
    }

    /// A degree, by its key of `[layout]`.
    pub(super) fn degree(&self, key: &str) -> Option<f64> {
        self.degrees.iter().find(|(name, _)| *name == key).map(|(_, degree)| *degree)
    }

    /// The layout in words.
    pub(super) fn layout(&self) -> String {
        let degrees = self.degrees.iter().filter(|(_, degree)| *degree > 1.0);
        let degrees: Vec<_> = degrees.map(|(key, degree)| format!("{key} {degree}")).collect();
        format!("{} {}", degrees.join(" × "), self.words)
    }
}

/// Standard output; `Err` with what was refused.
fn succeeded(output: &Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = text(&output.stderr);
    match serde_json::from_str::<Value>(&said) {
        Ok(error) => {
            let causes = list(&error["causes"]).chain(list(&error["problems"])).map(ToString::to_string);
            let causes: Vec<_> = causes.collect();
            Err(format!("{} {}", error["message"].as_str().unwrap_or("no message"), causes.join(" ")))
        }
        Err(_) => Err(said.lines().take(3).collect::<Vec<_>>().join(" ")),
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} stands where a number should"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
