//! Explains a plan to its readers, as text in columns.

mod alternatives;
mod arrangement;
mod checkpoints;

use crate::hardware::equal_hosts;
use crate::layout::candidate::{Candidate, layout_with_devices};
use crate::planning::foreign::command_with_values;
use crate::planning::plan::{Plan, RankedCandidate};
use crate::text::{amount, row};
use crate::training::training_schedule::TrainingSchedule;
use crate::training::validation::Validation;
pub use alternatives::{causes, memory, slowdown};
use arrangement::sentences;
pub(crate) use checkpoints::failure_count;
use dtrain_protocol::DeviceKind;
use dtrain_recipes::number_format::{count, parameters, thousands};
use dtrain_recipes::sanitize::on_one_line;
use dtrain_recipes::{Bytes, ForeignCommand, Model, Recipe, Seconds};
use std::collections::BTreeSet;

/// Largest number of reasons to show for rejected candidates.
const REASONS: usize = 10;

/// Explains the plan in full: the choice, its cost, every alternative with all that costs time or memory, and
/// the rejections. [`Answer`](crate::answer::Answer) is the short form.
pub fn explain(plan: &Plan) -> String {
    let mut text = String::new();
    let best = plan.best();
    if let Model::Command(command) = &plan.recipe.model {
        return foreign(plan, command);
    }
    headline(&mut text, plan);
    if let Model::Custom(_) = plan.recipe.model {
        row(
            &mut text,
            "estimated",
            "the memory of activations, from the shapes of what the network's parts give",
        );
    }
    if best.estimate.is_none() {
        row(&mut text, "step", "estimated from data sheets when it was planned; nothing was measured");
        return text;
    }
    costs(&mut text, plan, best);
    training(&mut text, plan, best);
    if let Some(tradeoffs) = &plan.tradeoffs {
        tradeoffs.write_table(&mut text, device(best), ToString::to_string);
    }
    alternatives::write_alternatives(&mut text, plan);
    left_out(&mut text, plan);
    text
}

/// Returns one line with the choice of a plan and its cost, for the end of a long text; empty without an
/// estimate.
pub fn summary(plan: &Plan) -> String {
    let best = plan.best();
    let mut text = String::new();
    if let Some(estimate) = &best.estimate {
        let told = format!(
            "{}: {}/step, {} {}/s, {} per rank, {} in total",
            best.candidate,
            estimate.step,
            count(estimate.tokens_per_second),
            unit(plan),
            estimate.memory_peak,
            estimate.total
        );
        row(&mut text, "in short", &told);
    }
    text
}

/// Returns the unit of a plan's throughput: tokens for a model with sequences, otherwise samples.
pub fn unit(plan: &Plan) -> &'static str {
    if plan.recipe.model.sample_tokens() > 1 { "tokens" } else { "samples" }
}

/// Explains the plan of a foreign command: its processes, their hosts and its params.
fn foreign(plan: &Plan, command: &ForeignCommand) -> String {
    let Candidate { arrangement, threads, .. } = &plan.best().candidate;
    let mut text = String::new();
    row(&mut text, "plan", &format!("{}: a command on {}", plan.recipe.name, host(plan)));
    row(&mut text, "runs", &on_one_line(&command_with_values(plan, plan.best(), command).argv.join(" ")));
    row(&mut text, "choice", &layout_with_devices(&arrangement.layout, arrangement.device, *threads));
    for (place, words) in params(&plan.recipe).iter().enumerate() {
        row(&mut text, if place == 0 { "params" } else { "" }, words);
    }
    text
}

/// Formats each param of a recipe with its value and its range, if any; inactive params are included.
pub(crate) fn params(recipe: &Recipe) -> Vec<String> {
    let names: BTreeSet<&String> = recipe.params.keys().chain(recipe.ranges.keys()).collect();
    let words = |name: &String| {
        let value = recipe.params.get(name).map_or("does not apply".to_owned(), ToString::to_string);
        match recipe.ranges.get(name) {
            Some(range) => format!("{name} {value}, of {range}"),
            None => format!("{name} {value}"),
        }
    };
    names.into_iter().map(words).collect()
}

fn headline(text: &mut String, plan: &Plan) {
    row(text, "plan", &format!("{}: {}", plan.recipe.name, subject(plan)));
    for (place, words) in choice(plan).iter().enumerate() {
        row(text, if place == 0 { "choice" } else { "" }, words);
    }
}

/// Returns the subject of the plan in words: model, data and hosts.
pub fn subject(plan: &Plan) -> String {
    let number = parameters(plan.recipe.model.parameters());
    let kind = match &plan.recipe.model {
        Model::Decoder(_) => "decoder",
        Model::Mlp(_) => "perceptron",
        Model::Cnn(_) => "residual network",
        Model::Custom(own) => &format!("network `{}`", own.network),
        Model::Command(_) => "command",
    };
    let adapters = if plan.recipe.model.has_frozen_weights() {
        format!(" with {} in adapters", parameters(plan.recipe.model.trained_parameters()))
    } else {
        String::new()
    };
    format!("a {kind} of {number} parameters{adapters} on {}", host(plan))
}

/// Describes the choice of a plan: a line for the candidate, and a sentence for each axis and each way of
/// saving memory.
pub fn choice(plan: &Plan) -> Vec<String> {
    let candidate = &plan.best().candidate;
    let mut lines = vec![candidate.to_string()];
    lines.extend(sentences(candidate, &plan.recipe.model));
    lines
}

/// Describes the hosts of a plan in words.
pub(crate) fn host(plan: &Plan) -> String {
    let host = &plan.host;
    if let (true, [first, ..]) = (plan.is_estimated(), host.gpus.as_slice()) {
        let per_host = u32::try_from(host.gpus.len()).unwrap_or(u32::MAX);
        return equal_hosts(per_host.saturating_mul(host.hosts.get()), per_host, &first.name);
    }
    let cores = if host.cores == 1 { "1 core".into() } else { format!("{} cores", host.cores) };
    let memory = Bytes(host.memory_bytes);
    let gpus = match host.gpus.as_slice() {
        [] => String::new(),
        [one] => format!(", {}", one.name),
        [first, ..] => format!(", {} × {}", host.gpus.len(), first.name),
    };
    match host.hosts.get() {
        1 => format!("{} ({cores}, {memory}{gpus})", host.name),
        hosts => format!("{hosts} × {} ({cores}, {memory}{gpus} each)", host.name),
    }
}

fn costs(text: &mut String, plan: &Plan, best: &RankedCandidate) {
    let e = best.price();
    let unit = unit(plan);
    row(text, "step", &format!("{}, 80 % interval {}", e.step, between(e.step_low, e.step_high)));
    let share = |(name, seconds): (&str, f64)| {
        let percent = 100.0 * seconds / e.step.0;
        (percent >= 0.5).then(|| format!("{name} {percent:.0} %"))
    };
    row(text, "", &e.breakdown.parts().into_iter().filter_map(share).collect::<Vec<_>>().join(" · "));
    row(text, "speed", &format!("{} {unit}/s", count(e.tokens_per_second)));
    let expected = best.run_length.schedule_steps;
    let steps = match e.steps {
        Some(steps) if steps <= expected => format!("{} steps, ", thousands(steps)),
        Some(steps) => format!("about {} of {} steps, ", thousands(expected), thousands(steps)),
        None => format!("about {} steps, ", thousands(expected)),
    };
    let within = if e.total_low == e.total_high {
        "ended by time".into()
    } else {
        format!("80 % interval {}", between(e.total_low, e.total_high))
    };
    row(text, "total", &format!("{steps}{}, {within}", e.total));
    // A smaller value is negligible beside a step.
    if let Some(first) = e.first_step.filter(|first| first.0 >= 0.5) {
        let told =
            format!("about {first} more: kernels are compiled and tuned, unless they are kept from before");
        row(text, "first step", &told);
    }
    if let Some(epochs) = plan.epochs() {
        row(text, "data", &epochs.to_string());
    }
    money(text, plan, best);
    let held = e.memory.categories().into_iter().filter(|(_, bytes)| bytes.0 > 0);
    let held: Vec<String> = held.map(|(name, bytes)| format!("{name} {bytes}")).collect();
    row(text, "memory", &format!("{} per rank; {} available", e.memory_peak, e.memory_available));
    row(text, "", &held.join(" · "));
    let sent: Vec<String> = e
        .traffic
        .purposes()
        .into_iter()
        .filter(|(_, bytes)| bytes.0 > 0)
        .map(|(name, bytes)| format!("{name} {bytes}"))
        .collect();
    if !sent.is_empty() {
        let told = format!("{} per step from the rank that sends most", e.traffic.total());
        row(text, "traffic", &told);
        row(text, "", &sent.join(" · "));
    }
    row(text, "constants", &e.source);
}

/// Returns the device by which cost is counted: a GPU, or a core where CPUs train.
pub fn device(ranked: &RankedCandidate) -> &'static str {
    match ranked.candidate.arrangement.device {
        DeviceKind::Cpu => "core",
        DeviceKind::Cuda | DeviceKind::Wgpu => "GPU",
    }
}

fn money(text: &mut String, plan: &Plan, best: &RankedCandidate) {
    let Some(choice) = plan.tradeoffs.as_ref().map(|tradeoffs| &tradeoffs.choice) else { return };
    let (Some(price), Some(hours), Some(money)) =
        (plan.recipe.cluster.price, choice.device_hours, choice.money)
    else {
        return;
    };
    row(text, "money", &format!("{}: {} {} hours at {price}", amount(money), amount(hours), device(best)));
}

fn training(text: &mut String, plan: &Plan, best: &RankedCandidate) {
    let (batch, rate, warmup) = (&plan.batch, &plan.learning_rate, &best.run_length.warmup);
    row(
        text,
        "batch",
        &with_range(&thousands(batch.value), thousands(batch.low), thousands(batch.high), &batch.reason),
    );
    let number = |value: f64| format!("{value}");
    row(
        text,
        "learning rate",
        &with_range(&number(rate.value), number(rate.low), number(rate.high), &rate.reason),
    );
    let steps = format!("{} steps", thousands(warmup.value));
    row(text, "warm-up", &with_range(&steps, thousands(warmup.low), thousands(warmup.high), &warmup.reason));
    checkpoints::write_checkpoints(text, plan, best);
    row(text, "validation", &validation(plan));
}

/// Describes the validations of a plan: interval, number of samples and cost.
pub fn validation(plan: &Plan) -> String {
    let pace = &plan.best().run_length;
    let samples = if pace.validate_samples == 1 { "sample" } else { "samples" };
    let told =
        format!("{}, up to {} {samples}", after(pace.validate_every, pace), thousands(pace.validate_samples));
    let Some(Validation { seconds, share, .. }) = pace.validation else { return told };
    format!("{told}, about {} each: {:.0} % of the time", Seconds(seconds), 100.0 * share)
}

/// Describes the interval of an action that repeats every `every` steps: `every 100 steps` or `at the end`.
fn after(every: u64, pace: &TrainingSchedule) -> String {
    if every >= pace.schedule_steps {
        "at the end".into()
    } else {
        format!("every {} steps", thousands(every))
    }
}

fn left_out(text: &mut String, plan: &Plan) {
    text.push('\n');
    row(text, "considered", &format!("{} candidates evaluated", thousands(plan.priced)));
    for rejected in plan.rejected.iter().take(REASONS) {
        row(text, "rejected", &format!("{}: {}", thousands(rejected.count), rejected.heading));
    }
    let rest = plan.rejected.iter().skip(REASONS);
    let count: u64 = rest.clone().map(|rejected| rejected.count).sum();
    if count > 0 {
        row(text, "rejected", &format!("{}: {} other reasons", thousands(count), rest.count()));
    }
}

fn between(low: Seconds, high: Seconds) -> String {
    format!("{low} to {high}")
}

fn with_range(value: &str, low: String, high: String, reason: &str) -> String {
    if low == high {
        return format!("{value}: {reason}");
    }
    format!("{value} (range to search: {low} to {high}): {reason}")
}

#[cfg(test)]
mod tests;
