//! Explains a plan from data sheets as text.

use super::advice::ONE_HOST_FEWER;
use super::describe_layout::describe_layout;
use super::{Advice, DatasheetPlan, LayoutEstimate, Measurement};
use crate::choice::tie_break::TieBreak;
use crate::engine::{DTRAIN, Engine as _, engine_by_name};
use crate::planning::explain::{causes, failure_count, memory, slowdown};
use crate::text::{amount, row};
use dtrain_recipes::number_format::{count, parameters, thousands};
use dtrain_recipes::{Bytes, Seconds};

/// Number of bytes in a GiB.
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Explains a plan in full: the choice, its cost and every alternative, with `top` of the ties and of the next
/// layouts.
pub fn explain(plan: &DatasheetPlan, top: usize) -> String {
    let mut text = String::new();
    headline(&mut text, plan);
    costs(&mut text, plan);
    failures(&mut text, plan);
    training(&mut text, plan);
    ties(&mut text, plan, top);
    losers(&mut text, plan);
    advice(&mut text, plan);
    row(&mut text, "searched", &format!("{} layouts", thousands(plan.layouts)));
    plan.tradeoffs.write_table(&mut text, "GPU", describe_layout);
    summary(&mut text, plan);
    text
}

/// Appends a line that sums up the choice and its cost, for the end of a long text.
fn summary(text: &mut String, plan: &DatasheetPlan) {
    let choice = &plan.choice;
    let told = format!(
        "{}: {}/step, {} tokens/s per GPU, {:.1} GiB per GPU",
        describe_layout(&choice.config),
        Seconds(choice.step_seconds),
        count(choice.tokens_per_second_per_device),
        choice.peak_bytes / GIB
    );
    let total = plan.total_seconds.map_or_else(String::new, |total| format!(", {} in total", Seconds(total)));
    text.push('\n');
    row(text, "in short", &(told + &total));
}

fn headline(text: &mut String, plan: &DatasheetPlan) {
    row(text, "plan", &format!("{}: {}", plan.recipe, subject(plan)));
    row(text, "choice", &describe_layout(&plan.choice.config));
    if plan.idle > 0 {
        let working = (plan.devices - plan.idle) / plan.per_host;
        let hosts = plan.devices / plan.per_host;
        row(
            text,
            "hosts",
            &format!("{working} of {hosts} work and the others stay idle: more are no faster"),
        );
    }
    row(text, "constants", &constants_source(plan));
    unmeasured(text, plan.engine);
}

/// Appends advice on how to narrow the prediction interval of an engine without measured runs.
pub(super) fn unmeasured(text: &mut String, engine: &str) {
    if engine_by_name(engine).is_some_and(|engine| !engine.style().is_measured()) {
        let way = if engine == DTRAIN.name() {
            "`dtrain probe RECIPE` measures what `dtrain plan RECIPE` then uses there".to_owned()
        } else {
            format!("`dtrain run RECIPE --engine {engine}` measures what the next plan uses there")
        };
        let words = "no run of this engine on a GPU is known, so the interval is wide; on one such host";
        row(text, "doubt", &format!("{words} {way}"));
    }
}

/// Describes the model and the cluster of a plan in words.
pub fn subject(plan: &DatasheetPlan) -> String {
    let DatasheetPlan { devices, per_host, gpu, .. } = plan;
    let devices = thousands((*devices).into());
    format!("{} parameters on {devices} {} ({per_host} a host)", parameters(plan.parameters), gpu.0)
}

/// Returns the source of the figures of a plan, in words.
pub fn constants_source(plan: &DatasheetPlan) -> String {
    format!("{}; engine {}; not measured", plan.gpu.1, plan.engine)
}

fn costs(text: &mut String, plan: &DatasheetPlan) {
    let choice = &plan.choice;
    let (low, high) = (Seconds(choice.step_seconds_low), Seconds(choice.step_seconds_high));
    row(text, "step", &format!("{}, 80 % interval {low} to {high}", Seconds(choice.step_seconds)));
    let share = |(name, seconds): &(&str, f64)| {
        let percent = 100.0 * seconds / choice.step_seconds;
        (percent >= 0.5).then(|| format!("{name} {percent:.0} %"))
    };
    row(text, "", &choice.causes.iter().filter_map(share).collect::<Vec<_>>().join(" · "));
    let each = choice.tokens_per_second_per_device;
    row(
        text,
        "speed",
        &format!(
            "{} tokens/s per GPU, {:.0} % model FLOPs utilization",
            count(each),
            100.0 * choice.model_flops_utilization
        ),
    );
    if let (Some(steps), Some(total), Some(hours)) = (plan.steps, plan.total_seconds, plan.device_hours) {
        row(
            text,
            "total",
            &format!("{} steps, {}, {} GPU hours", thousands(steps), Seconds(total), amount(hours)),
        );
        if let Some(price) = plan.price {
            row(text, "money", &format!("{}: {} GPU hours at {price}", amount(hours * price), amount(hours)));
        }
    }
    let (bytes, most) = (choice.peak_bytes / GIB, choice.peak_bytes_high / GIB);
    row(text, "memory", &format!("{bytes:.1} GiB on the heaviest GPU (90 % below {most:.1} GiB)"));
    let held = choice.bytes.iter().filter(|(_, bytes)| *bytes > 0.005 * choice.peak_bytes);
    let held: Vec<String> = held.map(|(name, bytes)| format!("{name} {:.1} GiB", bytes / GIB)).collect();
    row(text, "", &held.join(" · "));
}

fn failures(text: &mut String, plan: &DatasheetPlan) {
    let found = &plan.failures;
    let host = Seconds(found.host_mtbf_seconds);
    let known = if found.is_mtbf_given { "set by the recipe" } else { "assumed; set `cluster.mtbf`" };
    let often = match found.hosts {
        1 => String::new(),
        hosts => format!(", one of {} every {}", thousands(hosts.into()), Seconds(found.mtbf_seconds)),
    };
    let in_all = found.expected.map_or_else(String::new, |n| format!(", {} in total", failure_count(n)));
    row(
        text,
        "failures",
        &format!(
            "a host fails every {host} ({known}){often}: {} per day{in_all}",
            failure_count(found.per_day)
        ),
    );
    row(
        text,
        "checkpoint",
        &format!(
            "every {} steps (about {}), of {:.1} GiB; each takes {}",
            thousands(found.checkpoint_every),
            Seconds(found.checkpoint_every_seconds),
            found.checkpoint_bytes / GIB,
            Seconds(found.checkpoint_seconds)
        ),
    );
    let total = match (found.total_seconds, found.device_hours) {
        (Some(total), Some(hours)) => {
            let money = plan.price.map_or_else(String::new, |price| format!(", {}", amount(hours * price)));
            format!(
                "; with failures and checkpoints {} in total, {} GPU hours{money}",
                Seconds(total),
                amount(hours)
            )
        }
        _ if plan.steps.is_some() => "; it would never finish".into(),
        _ => String::new(),
    };
    row(
        text,
        "goodput",
        &format!(
            "{:.1} % of the time is useful if a restart takes {}, {:.1} % if hosts failed half as often{total}",
            100.0 * found.goodput,
            Seconds(found.restart_seconds),
            100.0 * found.goodput_at_double_mtbf
        ),
    );
}

fn training(text: &mut String, plan: &DatasheetPlan) {
    let (batch, rate) = (&plan.batch, &plan.learning_rate);
    row(text, "batch", &format!("{} samples: {}", thousands(batch.value), batch.reason));
    row(text, "learning rate", &format!("{}: {}", rate.value, rate.reason));
}

fn ties(text: &mut String, plan: &DatasheetPlan, top: usize) {
    if top > 0 && !plan.ties.is_empty() {
        row(text, "why", &format!("others are as fast within the error of the estimate; {}", TieBreak::RULE));
    }
    for (place, tie) in plan.ties.iter().take(top).enumerate() {
        let title = if place == 0 { "as fast" } else { "" };
        row(text, title, &line(tie));
    }
    for (place, next) in plan.next.iter().take(top).enumerate() {
        let title = if place == 0 { "next" } else { "" };
        row(text, title, &line(next));
    }
}

/// Appends each axis value that was not chosen, with its best layout, memory and all time differences.
fn losers(text: &mut String, plan: &DatasheetPlan) {
    let ours = in_bytes(plan.choice.peak_bytes);
    let mut last = None;
    for loser in &plan.alternatives {
        let title = if last == Some(loser.axis) { "" } else { loser.axis.words() };
        last = Some(loser.axis);
        let (loss, memory) =
            (slowdown(loser.slowdown, loser.is_tied), memory(ours, in_bytes(loser.peak_bytes)));
        row(text, title, &format!("{}: {loss}, {memory}: {}", loser.value, loser.layout));
        let causes = causes(&loser.time_delta, plan.choice.step_seconds);
        if !causes.is_empty() {
            row(text, "", &format!("because {causes}"));
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
fn in_bytes(bytes: f64) -> Bytes {
    Bytes(bytes as u64)
}

fn advice(text: &mut String, plan: &DatasheetPlan) {
    let helps = |advice: &&Advice| advice.speed >= 0.01 || advice.change == ONE_HOST_FEWER;
    for (place, advice) in plan.advice.iter().filter(helps).enumerate() {
        let title = if place == 0 { "advice" } else { "" };
        let more = if advice.speed < 0.0 { "fewer" } else { "more" };
        let percent = 100.0 * advice.speed.abs();
        row(text, title, &format!("{}: {percent:.0} % {more} tokens/s", advice.change));
    }
    if let Some(Measurement { layout, deviation, seconds, device_hours }) = &plan.measurement {
        let spread = 100.0 * deviation;
        let what = format!(
            "measure the choice beside {layout}: which is faster is open by {spread:.0} %; 20 steps of each take {} and \
             {} GPU hours",
            Seconds(*seconds),
            amount(*device_hours)
        );
        row(text, "measure", &what);
    }
}

fn line(priced: &LayoutEstimate) -> String {
    format!(
        "{} a step, {:.1} GiB: {}",
        Seconds(priced.step_seconds),
        priced.peak_bytes / GIB,
        describe_layout(&priced.config)
    )
}
