//! The outlook of a mixed cluster as people read it.

use super::super::words::layout as in_words;
use super::{Alone, GIB, MixedOutlook, MixedPriced, OnGroup};
use crate::choice::explain::{row, whole};
use crate::choice::weighed::amount;
use crate::outlook::words::{slower, unmeasured};
use dtrain_recipes::Seconds;
use dtrain_recipes::count::{count, thousands};

/// What was chosen, what each group does and holds, what it costs, and what each group would do alone.
pub fn explain_mixed(outlook: &MixedOutlook) -> String {
    let mut text = String::new();
    headline(&mut text, outlook);
    groups(&mut text, outlook);
    costs(&mut text, outlook);
    others(&mut text, outlook);
    text
}

fn headline(text: &mut String, outlook: &MixedOutlook) {
    let each = |group: &Alone| {
        let hosts = group.devices / group.per_host;
        format!("{hosts}x{} {}", group.per_host, group.gpu.0)
    };
    let groups: Vec<String> = outlook.groups.iter().map(each).collect();
    let parameters = count(whole(outlook.parameters));
    row(text, "outlook", &format!("{}: {parameters} parameters on {}", outlook.recipe, groups.join(" + ")));
    row(text, "choice", &layout(outlook, &outlook.choice));
    let mut sources: Vec<&str> = outlook.groups.iter().map(|group| group.gpu.1).collect();
    sources.dedup();
    let style = outlook.engine;
    row(text, "constants", &format!("{}; engine {style}; not measured", sources.join(", ")));
    unmeasured(text, style);
}

/// A line for each group that works, and how many devices do not.
fn groups(text: &mut String, outlook: &MixedOutlook) {
    row(
        text,
        "stages",
        &columns(["part", "stages", "layers of each", "slowest", "memory of the heaviest GPU"]),
    );
    for on in &outlook.choice.groups {
        let part = &outlook.groups[on.group].gpu.0;
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
    let all: u32 = outlook.groups.iter().map(|group| group.devices).sum();
    let idle = all - outlook.choice.devices;
    if idle > 0 {
        row(text, "", &format!("{} of {} GPUs stay idle", thousands(idle.into()), thousands(all.into())));
    }
}

fn columns([part, stages, layers, slowest, memory]: [&str; 5]) -> String {
    format!("{part:<10} {stages:>6}  {layers:<14}  {slowest:>8}  {memory}")
}

/// Layers of the stages of a group: one number, or from the fewest to the most.
fn layers(on: &OnGroup) -> String {
    let (least, most) = (on.layers.iter().min(), on.layers.iter().max());
    match (least, most) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (Some(least), _) => least.to_string(),
        (None, _) => String::new(),
    }
}

fn costs(text: &mut String, outlook: &MixedOutlook) {
    let choice = &outlook.choice;
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
    if let (Some(steps), Some(total), Some(hours)) =
        (outlook.steps, outlook.total_seconds, outlook.device_hours)
    {
        row(
            text,
            "total",
            &format!("{} steps, {}, {} GPU hours", thousands(steps), Seconds(total), amount(hours)),
        );
    }
    let (batch, rate) = (&outlook.batch, &outlook.learning_rate);
    row(text, "batch", &format!("{} samples: {}", thousands(batch.value), batch.reason));
    row(text, "learning rate", &format!("{}: {}", rate.value, rate.reason));
}

fn others(text: &mut String, outlook: &MixedOutlook) {
    for (place, group) in outlook.groups.iter().enumerate() {
        let title = if place == 0 { "alone" } else { "" };
        let part = format!("{} {}", thousands(group.devices.into()), group.gpu.0);
        row(text, title, &format!("{part}: {}", alone(group, outlook.choice.step_seconds)));
    }
    for (place, tie) in outlook.ties.iter().enumerate() {
        let title = if place == 0 { "as fast" } else { "" };
        row(text, title, &format!("{} a step: {}", Seconds(tie.step_seconds), layout(outlook, tie)));
    }
    row(text, "searched", &format!("{} layouts", thousands(outlook.layouts)));
}

/// What a group alone would take, beside the `chosen` seconds.
fn alone(group: &Alone, chosen: f64) -> String {
    let Some(seconds) = group.step_seconds else { return "nothing fits".into() };
    let percent = 100.0 * (seconds / chosen - 1.0);
    let beside = match () {
        () if percent >= 0.5 => slower(percent / 100.0),
        () if percent <= -0.5 => format!("{:.0} % faster, which is a tie", -percent),
        () => "as fast".into(),
    };
    format!("{} a step, {beside}", Seconds(seconds))
}

/// A layout in words, with the stages of each group.
fn layout(outlook: &MixedOutlook, priced: &MixedPriced) -> String {
    let cut = priced.layout.config(u32::try_from(outlook.batch.value).unwrap_or(u32::MAX));
    let stages = |on: &OnGroup| {
        let (stages, part) = (on.layers.len(), &outlook.groups[on.group].gpu.0);
        format!("{stages} {} of {part}", if stages == 1 { "stage" } else { "stages" })
    };
    let stages: Vec<String> = priced.groups.iter().map(stages).collect();
    format!("{}; {}", in_words(&cut), stages.join(", then "))
}
