//! A plan in words and columns for people, at most 100 columns wide.

mod arranged;
mod saved;

use crate::compare::{Alternative, cause};
use crate::learning_rate::in_words;
use crate::pace::Pace;
use crate::plan::{Plan, Ranked};
use arranged::sentences;
use dtrain_recipes::{Bytes, Model, Seconds};
pub(crate) use saved::expected;

/// Columns of a line.
const WIDTH: usize = 100;

/// Column at which values begin.
const INDENT: usize = 16;

/// Reasons told for what was left out.
const REASONS: usize = 10;

/// Alternatives told for one axis.
const PER_AXIS: usize = 3;

/// The plan as people read it: the choice, what it costs, why the others lose, what was left out.
pub fn explain(plan: &Plan) -> String {
    let mut text = String::new();
    let best = plan.best();
    headline(&mut text, plan);
    costs(&mut text, plan, best);
    training(&mut text, plan, best);
    others(&mut text, plan);
    left_out(&mut text, plan);
    text
}

fn headline(text: &mut String, plan: &Plan) {
    let parameters = count(plan.recipe.model.parameters());
    let kind = match plan.recipe.model {
        Model::Decoder(_) => "decoder",
        Model::Mlp(_) => "perceptron",
        Model::Cnn(_) => "residual network",
        Model::Command(_) => "command",
    };
    row(
        text,
        "plan",
        &format!("{}: a {kind} of {parameters} parameters on {}", plan.recipe.name, host(plan)),
    );
    row(text, "choice", &plan.best().candidate.to_string());
    for sentence in sentences(&plan.best().candidate, &plan.recipe.model) {
        row(text, "", &sentence);
    }
}

fn host(plan: &Plan) -> String {
    let host = &plan.host;
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

fn costs(text: &mut String, plan: &Plan, best: &Ranked) {
    let e = &best.estimate;
    let unit = if plan.recipe.model.sample_tokens() > 1 { "tokens" } else { "samples" };
    row(text, "step", &format!("{}, eight in ten within {}", e.step, between(e.step_low, e.step_high)));
    let share = |(name, seconds): (&str, f64)| {
        let percent = 100.0 * seconds / e.step.0;
        (percent >= 0.5).then(|| format!("{name} {percent:.0} %"))
    };
    row(text, "", &e.breakdown.parts().into_iter().filter_map(share).collect::<Vec<_>>().join(" · "));
    row(text, "speed", &format!("{} {unit} a second", in_words(e.tokens_per_second)));
    let steps = match e.steps {
        Some(steps) => format!("{} steps, ", thousands(steps)),
        None => format!("about {} steps, ", thousands(best.pace.schedule_steps)),
    };
    let within = if e.total_low == e.total_high {
        "ended by time".into()
    } else {
        format!("eight in ten within {}", between(e.total_low, e.total_high))
    };
    row(text, "total", &format!("{steps}{}, {within}", e.total));
    let held = e.memory.categories().into_iter().filter(|(_, bytes)| bytes.0 > 0);
    let held: Vec<String> = held.map(|(name, bytes)| format!("{name} {bytes}")).collect();
    row(text, "memory", &format!("{} a rank of {} it may use", e.memory_peak, e.memory_available));
    row(text, "", &held.join(" · "));
    let sent: Vec<String> = e
        .traffic
        .purposes()
        .into_iter()
        .filter(|(_, bytes)| bytes.0 > 0)
        .map(|(name, bytes)| format!("{name} {bytes}"))
        .collect();
    if !sent.is_empty() {
        let told = format!("{} a step from the rank that sends most", e.traffic.total());
        row(text, "traffic", &told);
        row(text, "", &sent.join(" · "));
    }
    row(text, "constants", &e.source);
}

fn training(text: &mut String, plan: &Plan, best: &Ranked) {
    let (batch, rate, warmup) = (&plan.batch, &plan.learning_rate, &best.pace.warmup);
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
    saved::rows(text, plan, best);
    let pace = &best.pace;
    let validated =
        format!("{}, up to {} samples", after(pace.validate_every, pace), thousands(pace.validate_samples));
    row(text, "validation", &validated);
}

/// Something done after every so many steps of a run, in words.
fn after(every: u64, pace: &Pace) -> String {
    if every >= pace.schedule_steps {
        "at the end".into()
    } else {
        format!("every {} steps", thousands(every))
    }
}

/// Why the second of the choices is not the first.
fn runner_up(plan: &Plan) -> Option<String> {
    let (first, second) = (plan.best(), plan.choices.get(1)?);
    let Ranked { candidate, estimate, .. } = second;
    let (ours, theirs) = (&first.estimate, estimate);
    if !second.tie {
        let slower = 100.0 * (theirs.step.0 / ours.step.0 - 1.0);
        let why = cause(&ours.breakdown, &theirs.breakdown);
        return Some(format!("{candidate}: {slower:.1} % slower ({why})"));
    }
    // In the order in which ties are put.
    let tight = |e: &crate::Estimate| e.memory_peak.0 > e.memory_available.0 / 4 * 3;
    let (a, b) = (first.candidate.arrangement, candidate.arrangement);
    let why = if tight(theirs) && !tight(ours) {
        format!("it leaves less than a quarter of the memory free ({})", theirs.memory_peak)
    } else if b.layout.world() > a.layout.world() {
        format!("it needs {} ranks in place of {}", b.layout.world(), a.layout.world())
    } else if b.recompute > a.recompute {
        "it computes more again".into()
    } else if b.zero > a.zero {
        "it shards more".into()
    } else {
        format!("it is less sure: up to {}", theirs.step_high)
    };
    Some(format!("{candidate}: as fast as can be told; {why}"))
}

/// Ties first, then what every other axis value would cost.
fn others(text: &mut String, plan: &Plan) {
    if let Some(why) = runner_up(plan) {
        text.push('\n');
        row(text, "runner-up", &why);
    }
    let ties: Vec<&Ranked> = plan.choices.iter().skip(1).filter(|choice| choice.tie).collect();
    if !ties.is_empty() {
        text.push('\n');
        let tied = plan.choices.iter().filter(|choice| choice.tie);
        let resolution = 100.0 * tied.map(|choice| choice.estimate.resolution).fold(0.0, f64::max);
        let told = format!(
            "{} of the others cannot be told apart (within {resolution:.1} %); the simplest and surest was taken",
            ties.len()
        );
        row(text, "ties", &told);
        for tie in ties.iter().take(PER_AXIS) {
            row(text, "", &format!("{}: {}", tie.candidate, tie.estimate.step));
        }
    }
    if plan.alternatives.is_empty() {
        return;
    }
    text.push('\n');
    let mut last = "";
    let mut told = 0;
    for alternative in &plan.alternatives {
        told = if alternative.axis == last { told + 1 } else { 1 };
        let key = if alternative.axis == last { "" } else { alternative.axis.as_str() };
        last = &alternative.axis;
        if told <= PER_AXIS {
            row(text, key, &words(alternative));
        }
    }
}

fn words(alternative: &Alternative) -> String {
    let percent = 100.0 * alternative.speed;
    let sign = if percent < 0.0 { "−" } else { "+" };
    let Alternative { value, cause, .. } = alternative;
    if alternative.tie {
        return format!("{value}: a tie ({sign}{:.1} %)", percent.abs());
    }
    format!("{value}: {sign}{:.0} % ({cause})", percent.abs())
}

fn left_out(text: &mut String, plan: &Plan) {
    text.push('\n');
    row(text, "considered", &format!("{} candidates priced", thousands(plan.priced)));
    for rejected in plan.rejected.iter().take(REASONS) {
        row(text, "left out", &format!("{}: {}", thousands(rejected.count), rejected.heading));
    }
    let rest = plan.rejected.iter().skip(REASONS);
    let count: u64 = rest.clone().map(|rejected| rejected.count).sum();
    if count > 0 {
        row(text, "left out", &format!("{}: {} other reasons", thousands(count), rest.count()));
    }
}

fn between(low: Seconds, high: Seconds) -> String {
    format!("{low} to {high}")
}

fn with_range(value: &str, low: String, high: String, reason: &str) -> String {
    if low == high {
        return format!("{value}: {reason}");
    }
    format!("{value} (worth trying: {low} to {high}): {reason}")
}

/// A key and its value, wrapped under itself.
pub(crate) fn row(text: &mut String, key: &str, value: &str) {
    let mut line = format!("{key:<INDENT$}");
    let mut used = INDENT;
    for word in value.split(' ') {
        let length = word.chars().count();
        if used > INDENT && used + 1 + length > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(INDENT);
            used = INDENT;
        }
        if used > INDENT {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// `1,234,567`.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let first = digits.len() % 3;
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && place % 3 == first {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn count(n: u64) -> String {
    in_words(whole(n))
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn whole(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests;
