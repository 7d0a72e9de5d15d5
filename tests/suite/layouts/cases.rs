//! The layouts that are compared: models, and the keys of `[layout]` that pin them.

use super::subjects::{COUNTED, SUBJECTS, Subject, subject};
use dtrain_protocol::{Arrangement, Layout};
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;

const AXES: [&str; 5] = ["data", "tensor", "pipeline", "context", "expert"];

/// Samples of a step, where that many divide, and of a micro-batch.
const BATCH: u32 = 16;
const MICRO: u32 = 2;

/// A model with a layout.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    subject: &'static Subject,
    pins: Pins,
    /// Samples of a step where they do not follow from the layout.
    batch: Option<u32>,
    /// Whether every rank computes on a GPU, Mesa's software device, instead of the CPU.
    pub(super) is_on_gpu: bool,
}

/// Keys of `[layout]` with their values.
type Pins = Vec<(&'static str, String)>;

fn owned(pins: &[(&'static str, &str)]) -> Pins {
    pins.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

impl Case {
    fn of(subject: &'static Subject) -> Self {
        Self { subject, pins: Vec::new(), batch: None, is_on_gpu: false }
    }

    /// The layout called by these keys of the model called `name`.
    pub(crate) fn new(name: &str, pins: &[(&'static str, &str)]) -> Self {
        Self::of(subject(name)).with(owned(pins))
    }

    /// The same on a GPU.
    pub(super) fn on_gpu(&self) -> Self {
        Self { is_on_gpu: true, ..self.clone() }
    }

    /// The same with more keys.
    fn with(&self, pins: Pins) -> Self {
        Self { pins: self.pins.iter().cloned().chain(pins).collect(), ..self.clone() }
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.pins.iter().find(|(pinned, _)| *pinned == key).map(|(_, value)| value.as_str())
    }

    /// The value of a key that is a number; 1 where it is left out.
    fn number(&self, key: &str) -> u32 {
        self.value(key).map_or(1, |value| value.parse().expect("a number"))
    }

    fn is(&self, key: &str, value: &str) -> bool {
        self.value(key) == Some(value)
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
        Self::of(subject("deep")).with(pins)
    }

    /// The same model, batch and micro-batch on one rank.
    pub(super) fn on_one_rank(&self) -> Self {
        Self { batch: Some(self.batch()), ..Self::of(self.subject) }
    }

    /// Number of ranks: the product of the axes.
    pub(super) fn ranks(&self) -> u32 {
        AXES.iter().map(|axis| self.number(axis)).product()
    }

    /// Samples of a step: [`BATCH`], or the next number that the layout divides into whole micro-batches, and into whole
    /// rounds of them where chunks are interleaved.
    fn batch(&self) -> u32 {
        let readers = match self.value("shares") {
            Some(shares) => sum(shares),
            None => self.number("data"),
        };
        let micro = self.value("micro_batch").map_or(MICRO, |_| self.number("micro_batch"));
        let round = if self.is("schedule", "\"interleaved\"") { self.number("pipeline") } else { 1 };
        self.batch.unwrap_or_else(|| BATCH.next_multiple_of(readers * self.number("expert") * micro * round))
    }

    /// How its ranks shard state in groups of `shard`.
    fn sharded(&self, shard: u32) -> Arrangement {
        let degree = |axis| NonZeroU32::new(self.number(axis)).expect("degrees start at one");
        let [data, context, expert] = ["data", "context", "expert"].map(degree);
        let layout = Layout { data, context, expert, ..Layout::SINGLE };
        Arrangement { layout, shard, ..Arrangement::SINGLE }
    }

    /// The recipe.
    pub(super) fn text(&self) -> String {
        let Self { subject: Subject { model, data, train, .. }, pins, .. } = self;
        let open = AXES.iter().filter(|axis| self.value(axis).is_none());
        let ones: String = open.map(|axis| format!("{axis} = 1\n")).collect();
        let is_pinned = self.value("micro_batch").is_some();
        let micro = if is_pinned { String::new() } else { format!("micro_batch = {MICRO}\n") };
        let pins: String = pins.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        format!(
            "[model]{model}\n[data]\n{data}\nvalid = \"10%\"\n\n[objective]\nstop = {{ steps = 20 }}\n\n\
             [train]\nbatch = {}\nlearning_rate = 1e-3\nwarmup = 4\nprecision = \"f32\"\nseed = 3\n{train}\n\
             [layout]\n{micro}{ones}{pins}\n[cluster]\nranks = {}\ndevices = \"{}\"\n",
            self.batch(),
            self.ranks(),
            if self.is_on_gpu { "gpu" } else { "cpu" }
        )
    }
}

/// The sum of a list such as `[3, 1]`.
fn sum(list: &str) -> u32 {
    let numbers = list.trim_matches(['[', ']']).split(',');
    numbers.map(|number| number.trim().parse::<u32>().expect("a number")).sum()
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.subject.name)?;
        self.pins.iter().try_for_each(|(key, value)| write!(f, ", {key} {value}"))
    }
}

/// The layouts of up to eight ranks: every product of degrees that divides the sizes of the model, with each schedule and
/// number of chunks, each ZeRO stage and size of shard groups, without recompute and with that of every block or every
/// second one, with and without sequence parallelism; and replicas with unlike shares.
///
/// Every degree from 2 to 8 is here along every axis. Along the tensor, context and expert axes, 5 and 7 ranks are those of
/// `fives` and `sevens`, whose sizes divide by these numbers: ranks for a second axis would make more than eight.
/// Not here is what the planner refuses on a CPU: selective recompute, which in f32 is as none, and 16-bit precision;
/// see `protocol/src/supported.rs`. Of what a recipe may set to any number there are two lists of shares, micro-batches of two
/// samples, and recompute of every block or every second one.
pub(super) fn all() -> Vec<Case> {
    let choices: [fn(&Case) -> Vec<Pins>; 5] = [degrees, schedules, shards, recomputes, sequences];
    let of = |subject| {
        choices.iter().fold(vec![Case::of(subject)], |cases, choice| {
            let more = |case: &Case| choice(case).into_iter().map(|pins| case.with(pins)).collect::<Vec<_>>();
            cases.iter().flat_map(more).collect()
        })
    };
    let uneven = SUBJECTS.iter().flat_map(|subject| uneven(&Case::of(subject)));
    let all = SUBJECTS.iter().flat_map(of).chain(uneven);
    all.filter(|case| case.subject.ranks.contains(&case.ranks())).collect()
}

/// Few of them, which cover what [`covered`] says.
pub(super) fn some() -> Vec<Case> {
    let mut waiting: Vec<_> = all().into_iter().map(|case| (covered(&case), case)).collect();
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

/// What a case covers: its model, each value of a key, and every two choices. All degrees above two are one choice of an
/// axis, and so are all sizes of shard groups that are smaller than the number of replicas.
fn covered(case: &Case) -> BTreeSet<[String; 2]> {
    let replicas = case.sharded(1).replicas().to_string();
    let choice = |(key, value): &(&'static str, String)| match *key {
        axis if AXES.contains(&axis) && value != "2" => format!("{axis} above 2"),
        "shard" if *value == replicas => "shard all".to_owned(),
        "shard" => "shard some".to_owned(),
        key => format!("{key} {value}"),
    };
    let choices: Vec<_> =
        std::iter::once(case.subject.kind.to_owned()).chain(case.pins.iter().map(choice)).collect();
    let pairs =
        choices.iter().enumerate().flat_map(|(i, a)| choices[i + 1..].iter().map(|b| [a.clone(), b.clone()]));
    let values = case.pins.iter().map(|(key, value)| [(*key).to_owned(), value.clone()]);
    let model = ["model".to_owned(), case.subject.name.to_owned()];
    pairs.chain(values).chain([model]).collect()
}

/// Degrees along every axis, at most as many ranks as the subject has.
fn degrees(case: &Case) -> Vec<Pins> {
    let Subject { blocks, sizes, ranks, .. } = case.subject;
    let most = *ranks.end();
    let data = ("data", (1..=most).collect::<Vec<_>>());
    let cut = sizes.iter().map(|(axis, size)| {
        let divisors = (1..=most).filter(|degree| size.is_multiple_of(*degree));
        (*axis, divisors.collect::<Vec<_>>())
    });
    let pipeline = ("pipeline", (1..=most.min(*blocks)).collect::<Vec<_>>());
    std::iter::once(data).chain(cut).chain([pipeline]).fold(vec![Vec::new()], |all, (axis, degrees)| {
        let product =
            |pins: &Pins| pins.iter().map(|(_, n)| n.parse::<u32>().expect("a number")).product::<u32>();
        let with = |pins: &Pins, n: u32| {
            let own = (n > 1).then(|| (axis, n.to_string()));
            pins.iter().cloned().chain(own).collect::<Pins>()
        };
        let all = degrees.iter().flat_map(|n| all.iter().map(|pins| with(pins, *n)).collect::<Vec<_>>());
        all.filter(|pins| product(pins) <= most).collect()
    })
}

fn schedules(case: &Case) -> Vec<Pins> {
    let schedule = |name: &str| vec![("schedule", format!("\"{name}\""))];
    match case.number("pipeline") {
        1 => vec![Vec::new()],
        stages => {
            // A chunk has at least one block.
            let interleaved = (2..=case.subject.blocks / stages).map(|chunks| {
                let chunks = ("chunks", chunks.to_string());
                schedule("interleaved").into_iter().chain([chunks]).collect::<Pins>()
            });
            let others = ["gpipe", "1f1b", "zero_bubble"].map(schedule);
            others.into_iter().chain(interleaved).collect()
        }
    }
}

/// Nothing sharded, or each ZeRO stage in groups of all sizes that hold alike many of each expert.
fn shards(case: &Case) -> Vec<Pins> {
    let replicas = case.sharded(1).replicas();
    let is_possible =
        |shard: &u32| replicas.is_multiple_of(*shard) && case.sharded(*shard).expert_shard().is_some();
    let sharded = (2..=replicas).filter(is_possible).flat_map(|shard| {
        ["1", "2", "3"].map(|zero| vec![("zero", zero.to_owned()), ("shard", shard.to_string())])
    });
    std::iter::once(Vec::new()).chain(sharded).collect()
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

/// Two replicas of which one does three times the work of the other, and three of which one does that of two.
fn uneven(case: &Case) -> Vec<Case> {
    let two = case.with(owned(&[("data", "2"), ("shares", "[3, 1]")]));
    let three = case.with(owned(&[("data", "3"), ("shares", "[1, 2, 1]")]));
    let zero = |case: &Case, shard| case.with(owned(&[("zero", "1"), ("shard", shard)]));
    let stages = two.with(owned(&[("pipeline", "2"), ("schedule", "\"1f1b\"")]));
    vec![zero(&two, "2"), zero(&three, "3"), two, three, stages]
}
