//! The layouts that are compared: models, and the keys of `[layout]` that pin them.

use std::collections::BTreeSet;
use std::fmt;

const AXES: [&str; 5] = ["data", "tensor", "pipeline", "context", "expert"];

/// Samples of a step, and of a micro-batch.
const BATCH: u32 = 16;
const MICRO: u32 = 2;

/// Ranks of the largest layouts.
const MOST_RANKS: u32 = 8;

/// A model with a layout.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    subject: &'static Subject,
    pins: Pins,
}

/// Keys of `[layout]` with their values.
type Pins = Vec<(&'static str, String)>;

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

/// Eight experts a block, of which a token passes two.
const MOE: &str = r#"
kind = "decoder"
family = "llama"
layers = 4
hidden = 32
heads = 4
ffn = 32
context = 16
experts = 8
"#;

/// Experts that take no more than their share, with biases and a tied embedding elsewhere.
const CAPACITY: &str = r#"
kind = "decoder"
layers = 4
hidden = 32
heads = 4
ffn = 32
context = 16
experts = 4
capacity = 1.0
balance = 0.1
"#;

/// Experts that every token passes, so that it is known how many go where.
const EVERYBODY: &str = r#"
kind = "decoder"
layers = 2
hidden = 32
heads = 4
ffn = 32
context = 16
experts = 4
experts_per_token = 4
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

/// What is trained, and how far it can be cut.
#[derive(Debug)]
struct Subject {
    name: &'static str,
    model: &'static str,
    data: &'static str,
    /// Blocks that stages share out.
    blocks: u32,
    /// Largest degree of each axis but the pipeline.
    most: &'static [(&'static str, u32)],
}

const SUBJECTS: [Subject; 6] = [
    Subject {
        name: "gpt",
        model: GPT,
        data: TEXT,
        blocks: 5,
        most: &[("data", 8), ("tensor", 4), ("context", 8)],
    },
    Subject {
        name: "llama",
        model: LLAMA,
        data: TEXT,
        blocks: 4,
        most: &[("data", 8), ("tensor", 4), ("context", 8)],
    },
    Subject {
        name: "moe",
        model: MOE,
        data: TEXT,
        blocks: 4,
        most: &[("data", 8), ("tensor", 4), ("context", 4), ("expert", 8)],
    },
    Subject {
        name: "capacity",
        model: CAPACITY,
        data: TEXT,
        blocks: 4,
        most: &[("data", 4), ("tensor", 2), ("expert", 4)],
    },
    Subject { name: "mlp", model: MLP, data: TABLE, blocks: 4, most: &[("data", 8)] },
    Subject { name: "cnn", model: CNN, data: IMAGES, blocks: 4, most: &[("data", 8)] },
];

/// The model whose tokens are counted.
const COUNTED: Subject = Subject { name: "everybody", model: EVERYBODY, data: TEXT, blocks: 2, most: &[] };

/// The model whose pipelines are timed.
const TIMED: Subject = Subject { name: "deep", model: DEEP, data: TABLE, blocks: 8, most: &[] };

fn owned(pins: &[(&'static str, &str)]) -> Pins {
    pins.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

impl Case {
    fn of(subject: &'static Subject) -> Self {
        Self { subject, pins: Vec::new() }
    }

    /// The layout called by these keys of the model called `name`.
    pub(crate) fn new(name: &str, pins: &[(&'static str, &str)]) -> Self {
        let subject = SUBJECTS.iter().find(|subject| subject.name == name).expect("a known name");
        Self::of(subject).with(owned(pins))
    }

    /// The same with more keys.
    fn with(&self, pins: Pins) -> Self {
        Self { pins: self.pins.iter().cloned().chain(pins).collect(), ..self.clone() }
    }

    /// The value of a key that is a number; 1 where it is left out.
    fn number(&self, key: &str) -> u32 {
        let pin = self.pins.iter().find(|(pinned, _)| *pinned == key);
        pin.map_or(1, |(_, value)| value.parse().expect("a number"))
    }

    fn is(&self, key: &str, value: &str) -> bool {
        self.pins.iter().any(|(pinned, is)| *pinned == key && is == value)
    }

    /// Whether its name begins so: with its model, or with that and some of its layout.
    pub(super) fn begins(&self, name: &str) -> bool {
        self.to_string().starts_with(name)
    }

    /// The layout called by these keys of a model of whose experts every token passes all.
    pub(super) fn with_everybody(pins: &[(&'static str, &str)]) -> Self {
        Self::of(&COUNTED).with(owned(pins))
    }

    /// A pipeline of four stages and `micros` micro-batches.
    pub(super) fn of_four_stages(schedule: &str, chunks: u32, micros: u32) -> Self {
        let mut pins = owned(&[("pipeline", "4"), ("schedule", &format!("\"{schedule}\""))]);
        pins.push(("micro_batch", (BATCH / micros).to_string()));
        if chunks > 1 {
            pins.push(("chunks", chunks.to_string()));
        }
        Self::of(&TIMED).with(pins)
    }

    /// The same model and micro-batch on one rank.
    pub(super) fn on_one_rank(&self) -> Self {
        Self { pins: Vec::new(), ..self.clone() }
    }

    /// Number of ranks: the product of the axes.
    pub(super) fn ranks(&self) -> u32 {
        AXES.iter().map(|axis| self.number(axis)).product()
    }

    /// The recipe.
    pub(super) fn text(&self) -> String {
        let Self { subject: Subject { model, data, .. }, pins } = self;
        let open = AXES.iter().filter(|axis| !pins.iter().any(|(key, _)| key == *axis));
        let ones: String = open.map(|axis| format!("{axis} = 1\n")).collect();
        let is_pinned = pins.iter().any(|(key, _)| *key == "micro_batch");
        let micro = if is_pinned { String::new() } else { format!("micro_batch = {MICRO}\n") };
        let pins: String = pins.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        format!(
            "[model]{model}\n[data]\n{data}\nvalid = \"10%\"\n\n[objective]\nstop = {{ steps = 20 }}\n\n\
             [train]\nbatch = {BATCH}\nlearning_rate = 1e-3\nwarmup = 4\nprecision = \"f32\"\nseed = 3\n\n\
             [layout]\n{micro}{ones}{pins}\n[cluster]\nranks = {}\ndevices = \"cpu\"\n",
            self.ranks()
        )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.subject.name)?;
        self.pins.iter().try_for_each(|(key, value)| write!(f, ", {key} {value}"))
    }
}

/// Every layout of up to eight ranks: each product of degrees with each schedule, each way to share state, each way to
/// compute again, with and without split sequences between matrices.
pub(super) fn all() -> Vec<Case> {
    let choices: [fn(&Case) -> Vec<Pins>; 5] = [degrees, schedules, shards, recomputes, sequences];
    let of = |subject| {
        choices.iter().fold(vec![Case::of(subject)], |cases, choice| {
            let more = |case: &Case| choice(case).into_iter().map(|pins| case.with(pins)).collect::<Vec<_>>();
            cases.iter().flat_map(more).collect()
        })
    };
    let uneven = SUBJECTS.iter().flat_map(|subject| uneven(&Case::of(subject)));
    SUBJECTS.iter().flat_map(of).filter(|case| case.ranks() > 1).chain(uneven).collect()
}

/// Few of them, in which every two values that are somewhere in one layout are in one layout.
pub(super) fn some() -> Vec<Case> {
    let mut waiting: Vec<_> = all().into_iter().map(|case| (pairs(&case), case)).collect();
    let mut chosen = Vec::new();
    loop {
        // The first of those with the most that is new.
        let best = waiting.iter().enumerate().max_by_key(|(index, (new, _))| (new.len(), usize::MAX - index));
        match best {
            Some((index, (new, _))) if !new.is_empty() => {
                let (seen, case) = waiting.swap_remove(index);
                waiting.iter_mut().for_each(|(new, _)| new.retain(|pair| !seen.contains(pair)));
                chosen.push(case);
            }
            _ => return chosen,
        }
    }
}

/// Every two of the model and the keys.
fn pairs(case: &Case) -> BTreeSet<[String; 2]> {
    let named = case.pins.iter().map(|(key, value)| format!("{key} = {value}"));
    let named: Vec<_> = std::iter::once(case.subject.name.to_owned()).chain(named).collect();
    named
        .iter()
        .enumerate()
        .flat_map(|(i, a)| named[i + 1..].iter().map(|b| [a.clone(), b.clone()]))
        .collect()
}

/// One value of each of `values` as the only pin of `key`.
fn each(key: &'static str, values: &[&str]) -> Vec<Pins> {
    values.iter().map(|value| vec![(key, format!("\"{value}\""))]).collect()
}

/// Powers of two along every axis, and three stages.
fn degrees(case: &Case) -> Vec<Pins> {
    let Subject { blocks, most, .. } = case.subject;
    let pipeline = ("pipeline", (*blocks).min(4));
    most.iter().chain([&pipeline]).fold(vec![Vec::new()], |all, (axis, most)| {
        let degrees = [1, 2, 3, 4, 8].into_iter().filter(|n| n <= most && (*n != 3 || *axis == "pipeline"));
        let ranks =
            |pins: &Pins| pins.iter().map(|(_, n)| n.parse::<u32>().expect("a number")).product::<u32>();
        let with = |pins: &Pins, n: u32| {
            let own = (n > 1).then(|| (*axis, n.to_string()));
            pins.iter().cloned().chain(own).collect::<Pins>()
        };
        let all = degrees.flat_map(|n| all.iter().map(move |pins| with(pins, n)).collect::<Vec<_>>());
        all.filter(|pins| ranks(pins) <= MOST_RANKS).collect()
    })
}

fn schedules(case: &Case) -> Vec<Pins> {
    match case.number("pipeline") {
        1 => vec![Vec::new()],
        // Two chunks for each stage.
        stages if 2 * stages <= case.subject.blocks => {
            each("schedule", &["gpipe", "1f1b", "interleaved", "zero_bubble"])
        }
        _ => each("schedule", &["gpipe", "1f1b", "zero_bubble"]),
    }
}

fn shards(case: &Case) -> Vec<Pins> {
    let replicas = case.number("data") * case.number("context") * case.number("expert");
    let mut all = vec![Vec::new()];
    for zero in ["1", "2", "3"] {
        for shard in [2, 8] {
            // Within pairs, and over all.
            if replicas >= shard || (shard == 8 && replicas > 2) {
                all.push(vec![("zero", zero.to_owned()), ("shard", shard.min(replicas).to_string())]);
            }
        }
    }
    all
}

fn recomputes(case: &Case) -> Vec<Pins> {
    let full = || ("recompute", "\"full\"".to_owned());
    if case.is("zero", "3") {
        return vec![vec![full()]];
    }
    vec![Vec::new(), vec![full()], vec![full(), ("recompute_every", "2".to_owned())]]
}

fn sequences(case: &Case) -> Vec<Pins> {
    match case.number("tensor") {
        1 => vec![Vec::new()],
        _ => ["false", "true"].map(|is| vec![("sequence", is.to_owned())]).to_vec(),
    }
}

/// Replicas of which one does three times the work of the other.
fn uneven(case: &Case) -> Vec<Case> {
    let case = case.with(owned(&[("data", "2"), ("shares", "[3, 1]")]));
    let zero = case.with(owned(&[("zero", "1"), ("shard", "2")]));
    let stages = case.with(owned(&[("pipeline", "2"), ("schedule", "\"1f1b\"")]));
    vec![case, zero, stages]
}
