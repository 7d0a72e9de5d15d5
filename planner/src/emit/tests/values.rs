//! Keys and values of every sample plan in every format: tables, with what a plan says itself taken from it.

mod deepspeed;
mod hf_trainer;
mod launchers;
mod maxtext;
mod megatron;
mod torchtitan;

use super::readers::{Lines, lines};
use super::*;
use std::collections::BTreeSet;

/// A plan that a format accepts: its name, the lines that are its own, and the notes about it.
type AcceptedPlan = (&'static str, &'static str, &'static [&'static str]);

/// A plan that a format refuses: its name, the reason, and the way out.
type RefusedPlan = (&'static str, &'static str, &'static str);

const DATA_NOTE: &str =
    "data: the recipe reads text whose bytes are the tokens, from data/*.txt; set the line marked SET";
const CPU_NOTE: &str =
    "the plan was made for the CPUs of bench: on other devices speed and memory differ; plan where you train";

/// Values of a plan that several formats say.
struct SampleValues<'a> {
    plan: &'a Plan,
    model: &'a Decoder,
    rate: f64,
    /// The last learning rate, with the digits that binary fractions allow.
    rate_last: f64,
    steps: u64,
    warmup: u64,
    micro: u32,
    micro_batches: u32,
    global: u64,
    save_every: u64,
    keep: String,
    validate_every: u64,
    validations: u64,
    ranks: u32,
    hosts: u32,
}

impl<'a> SampleValues<'a> {
    fn of(plan: &'a Plan) -> Self {
        let Model::Decoder(model) = &plan.recipe.model else { unreachable!("it is a decoder") };
        let (best, train) = (plan.best(), &plan.recipe.train);
        let (pace, split) = (&best.run_length, &best.candidate.split);
        let rate = best.candidate.learning_rate;
        Self {
            plan,
            model,
            rate,
            rate_last: format!("{:.6e}", rate * train.final_fraction).parse().expect("a number"),
            steps: pace.schedule_steps,
            warmup: pace.warmup.value,
            micro: split.micro(),
            micro_batches: split.micro_batches().get(),
            global: plan.batch.value,
            save_every: pace.save_every,
            keep: plan.recipe.checkpoint.keep.to_string(),
            validate_every: pace.validate_every,
            validations: pace.validate_samples.div_ceil(plan.batch.value).max(1),
            ranks: best.candidate.arrangement.layout.world(),
            hosts: plan.host.hosts.get(),
        }
    }

    fn layout(&self) -> &Layout {
        &self.plan.best().candidate.arrangement.layout
    }

    fn precision(&self) -> Precision {
        self.plan.best().candidate.arrangement.precision
    }

    fn ranks_per_host(&self) -> u32 {
        self.ranks / self.hosts
    }
}

/// Panics unless exactly these lines were found.
#[track_caller]
fn same(case: &str, found: &Lines, expected: &Lines) {
    let beyond = |these: &Lines, those: &Lines| {
        let mut text = String::new();
        for (key, value) in these.iter().filter(|(key, value)| those.get(*key) != Some(value)) {
            text += &format!("\n    {key} {value}");
        }
        text
    };
    let (unexpected, missing) = (beyond(found, expected), beyond(expected, found));
    assert!(
        unexpected.is_empty() && missing.is_empty(),
        "{case}\n  written, but not expected:{unexpected}\n  expected, but not written:{missing}"
    );
}

/// Checks one plan: its lines are `all` and its own.
#[track_caller]
fn accepts(
    format: ConfigFormat,
    plan: &Plan,
    all: &str,
    (name, own, notes): AcceptedPlan,
    read: fn(&ConfigFiles) -> Lines,
) {
    let case = format!("{name} for {}", format.word());
    let emitted = emit(plan, format).unwrap_or_else(|error| panic!("{case}: {error}"));
    same(&case, &read(&emitted), &lines(&format!("{all}\n{own}")));
    assert_eq!(emitted.notes, notes, "{case}");
}

/// Checks that the accepted and the refused plans are all sample plans, and each of them.
#[track_caller]
fn table(
    format: ConfigFormat,
    all: impl Fn(&SampleValues) -> String,
    accepted: &[AcceptedPlan],
    refused: &[RefusedPlan],
    read: fn(&ConfigFiles) -> Lines,
) {
    let names: BTreeSet<_> =
        accepted.iter().map(|row| row.0).chain(refused.iter().map(|row| row.0)).collect();
    assert_eq!(names.len(), accepted.len() + refused.len(), "each plan has one row");
    assert_eq!(names, plans().iter().map(|(name, _)| *name).collect(), "each plan has a row");
    for (name, plan) in plans() {
        if let Some(row) = accepted.iter().find(|row| row.0 == name) {
            accepts(format, &plan, &all(&SampleValues::of(&plan)), *row, read);
        }
        for (_, what, instead) in refused.iter().filter(|row| row.0 == name) {
            let candidate = &plan.best().candidate;
            let (layout, count) = (candidate.arrangement.layout, candidate.split.micro_batches());
            let title = format.engine().expect("launchers refuse nothing").title();
            let expected = format!(
                "{title} does not support the plan: {what} ({layout}, {count} micro-batches); {instead}"
            );
            assert_eq!(emit(&plan, format).map_err(|error| error.to_string()), Err(expected), "{name}");
        }
    }
}

/// Returns the text of a file.
#[track_caller]
fn file<'a>(emitted: &'a ConfigFiles, name: &str) -> &'a str {
    let found = emitted.files.iter().find(|file| file.name == name);
    &found.unwrap_or_else(|| panic!("there is no {name}")).text
}

/// Returns the names of the files, and the line that starts them.
fn start(emitted: &ConfigFiles) -> Lines {
    let names: Vec<_> = emitted.files.iter().map(|file| file.name.as_str()).collect();
    let checkout = emitted.checkout.map_or(String::new(), |checkout| format!("in {checkout}: "));
    [("files".into(), names.join(" ")), ("start".into(), checkout + &emitted.start)].into()
}
