//! Explains a plan for a heterogeneous cluster as text.

use super::super::describe_layout::describe_layout;
use super::{GIB, GroupEstimate, MixedClusterPlan, MixedLayoutEstimate, StandaloneGroup};
use crate::text::{amount, row, slower};
use crate::what_if::explain::unmeasured;
use dtrain_recipes::Seconds;
use dtrain_recipes::number_format::{count, parameters, thousands};

/// Explains the choice of a plan, the load of each group, the cost, and the step time of each group alone.
pub fn explain_mixed_cluster(plan: &MixedClusterPlan) -> String {
    let mut text = String::new();
    headline(&mut text, plan);
    groups(&mut text, plan);
    costs(&mut text, plan);
    others(&mut text, plan);
    text
}

fn headline(text: &mut String, plan: &MixedClusterPlan) {
    let each = |group: &StandaloneGroup| {
        let hosts = group.devices / group.per_host;
        format!("{hosts}x{} {}", group.per_host, group.gpu.0)
    };
    let groups: Vec<String> = plan.groups.iter().map(each).collect();
    let number = parameters(plan.parameters);
    row(text, "plan", &format!("{}: {number} parameters on {}", plan.recipe, groups.join(" + ")));
    row(text, "choice", &layout(plan, &plan.choice));
    let mut sources: Vec<&str> = plan.groups.iter().map(|group| group.gpu.1).collect();
    sources.dedup();
    let style = plan.engine;
    row(text, "constants", &format!("{}; engine {style}; not measured", sources.join(", ")));
    unmeasured(text, style);
}

/// Appends a line for each group in use, and the number of idle devices.
fn groups(text: &mut String, plan: &MixedClusterPlan) {
    row(
        text,
        "stages",
        &columns(["part", "stages", "layers of each", "slowest", "memory of the heaviest GPU"]),
    );
    for on in &plan.choice.groups {
        let part = &plan.groups[on.group].gpu.0;
        let memory = format!(
            "{:.1} of {:.0} GiB (90 % below {:.1})",
            on.peak_bytes / GIB,
            on.memory_bytes / GIB,
            on.peak_bytes_high / GIB
        );
        let stages = on.layers.len().to_string();
        let seconds = Seconds(on.seconds).to_string();
        row(text, "", &columns([part, &stages, &layers(on), &seconds, &memory]));
    }
    let all: u32 = plan.groups.iter().map(|group| group.devices).sum();
    let idle = all - plan.choice.devices;
    if idle > 0 {
        row(text, "", &format!("{} of {} GPUs stay idle", thousands(idle.into()), thousands(all.into())));
    }
}

fn columns([part, stages, layers, slowest, memory]: [&str; 5]) -> String {
    format!("{part:<10} {stages:>6}  {layers:<14}  {slowest:>8}  {memory}")
}

/// Formats the number of layers per stage on a group: one number, or a range.
fn layers(on: &GroupEstimate) -> String {
    let (least, most) = (on.layers.iter().min(), on.layers.iter().max());
    match (least, most) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (Some(least), _) => least.to_string(),
        (None, _) => String::new(),
    }
}

fn costs(text: &mut String, plan: &MixedClusterPlan) {
    let choice = &plan.choice;
    let (low, high) = (Seconds(choice.step_seconds_low), Seconds(choice.step_seconds_high));
    row(text, "step", &format!("{}, 80 % interval {low} to {high}", Seconds(choice.step_seconds)));
    let share = |(name, seconds): &(&str, f64)| {
        let percent = 100.0 * seconds / choice.step_seconds;
        (percent >= 0.5).then(|| format!("{name} {percent:.0} %"))
    };
    row(text, "", &choice.causes.iter().filter_map(share).collect::<Vec<_>>().join(" · "));
    row(
        text,
        "speed",
        &format!(
            "{} tokens/s, {:.0} % model FLOPs utilization of the GPUs in use",
            count(choice.tokens_per_second),
            100.0 * choice.model_flops_utilization
        ),
    );
    if let (Some(steps), Some(total), Some(hours)) = (plan.steps, plan.total_seconds, plan.device_hours) {
        row(
            text,
            "total",
            &format!("{} steps, {}, {} GPU hours", thousands(steps), Seconds(total), amount(hours)),
        );
    }
    let (batch, rate) = (&plan.batch, &plan.learning_rate);
    row(text, "batch", &format!("{} samples: {}", thousands(batch.value), batch.reason));
    row(text, "learning rate", &format!("{}: {}", rate.value, rate.reason));
}

fn others(text: &mut String, plan: &MixedClusterPlan) {
    for (place, group) in plan.groups.iter().enumerate() {
        let title = if place == 0 { "alone" } else { "" };
        let part = format!("{} {}", thousands(group.devices.into()), group.gpu.0);
        row(text, title, &format!("{part}: {}", alone(group, plan.choice.step_seconds)));
    }
    for (place, tie) in plan.ties.iter().enumerate() {
        let title = if place == 0 { "as fast" } else { "" };
        row(text, title, &format!("{} a step: {}", Seconds(tie.step_seconds), layout(plan, tie)));
    }
    row(text, "searched", &format!("{} layouts", thousands(plan.layouts)));
}

/// Compares the step time of a group that trains alone with the `chosen` seconds.
fn alone(group: &StandaloneGroup, chosen: f64) -> String {
    let Some(seconds) = group.step_seconds else { return "nothing fits".into() };
    let percent = 100.0 * (seconds / chosen - 1.0);
    let beside = match () {
        () if percent >= 0.5 => slower(percent / 100.0),
        () if percent <= -0.5 => format!("{:.0} % faster, which is a tie", -percent),
        () => "as fast".into(),
    };
    format!("{} a step, {beside}", Seconds(seconds))
}

/// Describes a layout and the stages on each group in words.
fn layout(plan: &MixedClusterPlan, priced: &MixedLayoutEstimate) -> String {
    let cut = priced.layout.config(u32::try_from(plan.batch.value).unwrap_or(u32::MAX));
    let stages = |on: &GroupEstimate| {
        let (stages, part) = (on.layers.len(), &plan.groups[on.group].gpu.0);
        format!("{stages} {} of {part}", if stages == 1 { "stage" } else { "stages" })
    };
    let stages: Vec<String> = priced.groups.iter().map(stages).collect();
    format!("{}; {}", describe_layout(&cut), stages.join(", then "))
}
