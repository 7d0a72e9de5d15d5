//! The layouts that are compared: models, and the keys of `[layout]` that pin them.

use std::fmt;

/// A model with a layout.
#[derive(Clone, Debug)]
pub(super) struct Case {
    model: &'static str,
    data: &'static str,
    /// Keys of `[layout]` with their values.
    pins: Vec<(&'static str, String)>,
}

/// A decoder of five blocks, so that stages are uneven; GPT-2's family with a tied embedding.
const GPT: &str = r#"
kind = "decoder"
layers = 5
hidden = 32
heads = 4
ffn = 64
context = 16
"#;

/// Llama's family, with fewer key heads than query heads.
const LLAMA: &str = r#"
kind = "decoder"
family = "llama"
layers = 4
hidden = 32
heads = 8
kv_heads = 4
ffn = 64
context = 16
"#;

const MLP: &str = r#"
kind = "mlp"
inputs = 6
hidden = [16, 12, 16, 8]
classes = 3
"#;

/// Eight blocks: two for each chunk of four stages.
const DEEP: &str = r#"
kind = "mlp"
inputs = 6
hidden = [8, 8, 8, 8, 8, 8, 8, 8]
classes = 3
"#;

const CNN: &str = r#"
kind = "cnn"
channels = 1
height = 4
width = 4
stages = [4, 8]
blocks = 2
classes = 3
"#;

const TEXT: &str = r#"train = "text.txt""#;
const TABLE: &str = "train = \"table.csv\"\ntarget = \"class\"";
const IMAGES: &str = "train = \"images.csv\"\ntarget = \"class\"";

const DECODERS: [(&str, &str); 2] = [(GPT, TEXT), (LLAMA, TEXT)];
const CLASSIFIERS: [(&str, &str); 2] = [(MLP, TABLE), (CNN, IMAGES)];

impl Case {
    fn new((model, data): (&'static str, &'static str), pins: &[(&'static str, &str)]) -> Self {
        let pins = pins.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        Self { model, data, pins }
    }

    /// A pipeline of four stages and `micros` micro-batches.
    pub(super) fn of_four_stages(schedule: &str, chunks: u32, micros: u32) -> Self {
        let (schedule, chunks, micro) =
            (format!("\"{schedule}\""), chunks.to_string(), (16 / micros).to_string());
        let mut pins =
            vec![("pipeline", "4"), ("schedule", schedule.as_str()), ("micro_batch", micro.as_str())];
        if chunks != "1" {
            pins.push(("chunks", &chunks));
        }
        Self::new((DEEP, TABLE), &pins)
    }

    /// The same model and micro-batch on one rank.
    pub(super) fn on_one_rank(&self) -> Self {
        Self { pins: Vec::new(), ..self.clone() }
    }

    /// Number of ranks: the product of the axes.
    pub(super) fn ranks(&self) -> u32 {
        let axes = ["data", "tensor", "pipeline", "context", "expert"];
        let degrees = self.pins.iter().filter(|(key, _)| axes.contains(key));
        degrees.map(|(_, value)| value.parse::<u32>().expect("a degree is a number")).product()
    }

    /// The recipe.
    pub(super) fn text(&self) -> String {
        let Self { model, data, pins } = self;
        let axes = ["data", "tensor", "pipeline", "context", "expert"];
        let open = axes.iter().filter(|axis| !pins.iter().any(|(key, _)| key == *axis));
        let ones: String = open.map(|axis| format!("{axis} = 1\n")).collect();
        let micro = if pins.iter().any(|(key, _)| *key == "micro_batch") { "" } else { "micro_batch = 2\n" };
        let pins: String = pins.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        format!(
            "[model]{model}\n[data]\n{data}\nvalid = \"10%\"\n\n[objective]\nstop = {{ steps = 20 }}\n\n\
             [train]\nbatch = 16\nlearning_rate = 1e-3\nwarmup = 4\nprecision = \"f32\"\nseed = 3\n\n\
             [layout]\n{micro}{ones}{pins}\n[cluster]\nranks = {}\ndevices = \"cpu\"\n",
            self.ranks().max(1)
        )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.model {
            GPT => "gpt",
            LLAMA => "llama",
            MLP | DEEP => "mlp",
            _ => "cnn",
        };
        f.write_str(name)?;
        self.pins.iter().try_for_each(|(key, value)| write!(f, ", {key} {value}"))
    }
}

/// Keys that shard the state of the replicas; sharded weights need blocks that are computed again.
const ZEROS: [&[(&str, &str)]; 3] =
    [&[("zero", "1")], &[("zero", "2")], &[("zero", "3"), ("recompute", "\"full\"")]];

/// A few layouts of every kind.
pub(super) fn some() -> Vec<Case> {
    let mut cases = Vec::new();
    for (model, zero) in DECODERS.into_iter().chain(CLASSIFIERS).zip(ZEROS.into_iter().cycle()) {
        cases.push(Case::new(model, &[&[("data", "4"), ("shard", "2")], zero].concat()));
    }
    for zero in ZEROS {
        // A tied embedding on two stages.
        let pipeline = [("pipeline", "2"), ("data", "2"), ("schedule", "\"1f1b\"")];
        cases.push(Case::new(DECODERS[0], &[&pipeline[..], zero].concat()));
    }
    for model in DECODERS.into_iter().chain(CLASSIFIERS) {
        cases.push(Case::new(model, &[("data", "2")]));
        cases.push(Case::new(model, &[("pipeline", "2")]));
        cases.push(Case::new(model, &[("pipeline", "4"), ("schedule", "\"1f1b\"")]));
        cases.push(Case::new(model, &[("pipeline", "2"), ("data", "2"), ("schedule", "\"gpipe\"")]));
        cases.push(Case::new(model, &[("pipeline", "2"), ("schedule", "\"interleaved\""), ("chunks", "2")]));
        let zero_bubble = ("schedule", "\"zero_bubble\"");
        cases.push(Case::new(model, &[("pipeline", "4"), zero_bubble, ("recompute", "\"full\"")]));
        cases.push(Case::new(model, &[("pipeline", "2"), ("data", "2"), zero_bubble]));
    }
    for model in DECODERS {
        for sequence in ["false", "true"] {
            for (tensor, pipeline, data) in [("2", "1", "1"), ("4", "1", "1"), ("2", "2", "2")] {
                let axes = [("tensor", tensor), ("pipeline", pipeline), ("data", data)];
                let mut pins = axes.to_vec();
                pins.push(("sequence", sequence));
                cases.push(Case::new(model, &pins));
            }
        }
        let again = [("tensor", "2"), ("sequence", "true"), ("recompute", "\"full\"")];
        cases.push(Case::new(model, &again));
        cases.push(Case::new(model, &[("context", "2")]));
        cases.push(Case::new(model, &[("context", "4")]));
        cases.push(Case::new(model, &[("context", "2"), ("data", "2")]));
        cases.push(Case::new(model, &[("context", "2"), ("pipeline", "2")]));
    }
    cases
}

/// Tensor-parallel ranks with stages and replicas, of up to eight ranks.
fn tensor() -> Vec<Case> {
    let mut cases = Vec::new();
    for model in DECODERS {
        for (tensor, pipeline, data) in [
            (2, 1, 2),
            (2, 1, 4),
            (2, 2, 1),
            (2, 4, 1),
            (4, 1, 2),
            (4, 2, 1),
            (2, 1, 1),
            (4, 1, 1),
            (2, 2, 2),
        ] {
            let [tensor, pipeline, data] = [tensor, pipeline, data].map(|degree: u32| degree.to_string());
            let axes = [("tensor", tensor.as_str()), ("pipeline", &pipeline), ("data", &data)];
            for sequence in ["false", "true"] {
                let mut pins = axes.to_vec();
                pins.push(("sequence", sequence));
                if pipeline == "2" {
                    for schedule in ["\"gpipe\"", "\"interleaved\"", "\"zero_bubble\""] {
                        let mut pins = pins.clone();
                        pins.push(("schedule", schedule));
                        cases.push(Case::new(model, &pins));
                    }
                }
                pins.push(("recompute", "\"full\""));
                cases.push(Case::new(model, &pins));
            }
        }
    }
    cases
}

/// Every layout of up to eight ranks.
pub(super) fn all() -> Vec<Case> {
    let mut cases = some();
    cases.extend(context());
    for (model, zero) in DECODERS.into_iter().chain(CLASSIFIERS).flat_map(|m| ZEROS.map(|zero| (m, zero))) {
        for (data, shard) in [("2", "2"), ("4", "4"), ("4", "2"), ("8", "2"), ("8", "8")] {
            cases.push(Case::new(model, &[&[("data", data), ("shard", shard)], zero].concat()));
        }
        for (stages, data, schedule) in
            [("2", "2", "gpipe"), ("2", "4", "1f1b"), ("2", "2", "interleaved"), ("4", "2", "1f1b")]
        {
            let schedule = format!("\"{schedule}\"");
            let pipeline = [("pipeline", stages), ("data", data), ("schedule", schedule.as_str())];
            cases.push(Case::new(model, &[&pipeline[..], zero].concat()));
        }
    }
    cases.extend(tensor());
    for model in DECODERS.into_iter().chain(CLASSIFIERS) {
        for (data, pipeline) in (1..=8u32).flat_map(|d| (1..=4u32).map(move |p| (d, p))) {
            if !16u32.is_multiple_of(2 * data) || data * pipeline > 8 || data * pipeline == 1 {
                continue;
            }
            for schedule in ["gpipe", "1f1b", "interleaved", "zero_bubble"] {
                let (data, stages) = (data.to_string(), pipeline.to_string());
                let schedule = format!("\"{schedule}\"");
                let mut pins = vec![("data", data.as_str()), ("pipeline", stages.as_str())];
                if pipeline > 1 {
                    pins.push(("schedule", &schedule));
                }
                if pipeline > 2 && schedule.contains("interleaved") {
                    continue; // five blocks are too few for two chunks of three stages
                }
                cases.push(Case::new(model, &pins));
            }
        }
    }
    cases
}

/// Sequences over up to eight ranks, with replicas and stages.
fn context() -> Vec<Case> {
    let mut cases = Vec::new();
    for model in DECODERS {
        for (context, data, pipeline) in [
            ("8", "1", "1"),
            ("4", "2", "1"),
            ("4", "1", "2"),
            ("2", "4", "1"),
            ("2", "2", "2"),
            ("2", "1", "4"),
        ] {
            let degrees = [("context", context), ("data", data), ("pipeline", pipeline)];
            cases.push(Case::new(model, &degrees));
            cases.push(Case::new(model, &[&degrees[..], &[("recompute", "\"full\"")]].concat()));
        }
        for schedule in ["\"gpipe\"", "\"interleaved\""] {
            cases.push(Case::new(model, &[("context", "2"), ("pipeline", "2"), ("schedule", schedule)]));
        }
    }
    cases
}
