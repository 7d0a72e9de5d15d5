//! The answer of a plan from data sheets, for groups of different hosts.

use super::datasheet::{
    confidence, distinct, length_and_cost, link_assumptions, precision_reason, training, within_error,
};
use super::layout_words::{abbreviated, clauses};
use super::numbers::step_time;
use super::reason::Reason;
use super::{Answer, AnswerCandidate, MemoryAnswer, StepAnswer};
use crate::analytic::StepConfig;
use crate::choice::tie_break::TieBreak;
use crate::hardware::HostGroup;
use crate::what_if::{GroupEstimate, MixedClusterPlan, MixedLayoutEstimate, StandaloneGroup};
use dtrain_protocol::Arrangement;
use dtrain_recipes::number_format::{parameters, thousands};

impl Answer {
    /// Returns the answer of a plan for `groups` of equal hosts.
    pub fn of_mixed_plan(plan: &MixedClusterPlan, groups: &[HostGroup]) -> Self {
        let choice = &plan.choice;
        let all = std::iter::once(choice).chain(&plan.ties);
        let mut confidence = confidence(plan.engine, groups);
        if choice.groups.len() > 1 {
            confidence.push("no published run mixes GPUs".into());
        }
        Self {
            subject: subject(plan),
            runs: runs(plan),
            step: Some(StepAnswer {
                seconds: choice.step_seconds,
                interval: Some((choice.step_seconds_low, choice.step_seconds_high)),
                throughput: Some((choice.tokens_per_second, "tokens/s")),
                utilization: Some(choice.model_flops_utilization),
                measured: None,
            }),
            total: total(plan),
            memory: Some(memory(plan, choice)),
            training: training(&plan.batch, plan.sample_tokens, &plan.learning_rate),
            assumptions: link_assumptions(&plan.assumptions),
            confidence,
            candidates: distinct(all.map(|priced| candidate(plan, priced))),
            reasons: reasons(plan),
            ..Self::empty()
        }
    }
}

fn subject(plan: &MixedClusterPlan) -> String {
    let each = |group: &StandaloneGroup| {
        let hosts = group.devices / group.per_host;
        format!("{hosts}x{} {}", group.per_host, group.gpu.0)
    };
    let groups: Vec<String> = plan.groups.iter().map(each).collect();
    let number = parameters(plan.parameters);
    format!("{}: {number} parameters on {}, engine {}", plan.recipe, groups.join(" + "), plan.engine)
}

fn config(plan: &MixedClusterPlan, priced: &MixedLayoutEstimate) -> StepConfig {
    let config = priced.layout.config(u32::try_from(plan.batch.value).unwrap_or(u32::MAX));
    let arrangement = Arrangement { precision: plan.precision.value, ..config.arrangement };
    StepConfig { arrangement, ..config }
}

fn runs(plan: &MixedClusterPlan) -> Vec<String> {
    let choice = &plan.choice;
    let config = config(plan, choice);
    let mut runs = clauses(&config.arrangement, config.micro_batch);
    runs.extend(precision_reason(&plan.precision));
    runs.extend(choice.groups.iter().map(|on| stages(plan, on)));
    let all: u32 = plan.groups.iter().map(|group| group.devices).sum();
    if all > choice.devices {
        let idle = all - choice.devices;
        runs.push(format!("{} of {} GPUs idle", thousands(idle.into()), thousands(all.into())));
    }
    runs
}

/// Describes the stages on a group: `2 stages of 12 layers on A100`.
fn stages(plan: &MixedClusterPlan, on: &GroupEstimate) -> String {
    let part = &plan.groups[on.group].gpu.0;
    let (least, most) = (on.layers.iter().min(), on.layers.iter().max());
    let layers = match (least, most) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most} layers"),
        (least, _) => format!("{} layers", least.copied().unwrap_or(0)),
    };
    let s = if on.layers.len() == 1 { "" } else { "s" };
    format!("{} stage{s} of {layers} on {part}", on.layers.len())
}

fn total(plan: &MixedClusterPlan) -> Vec<String> {
    match (plan.steps, plan.total_seconds, plan.device_hours) {
        (Some(steps), Some(seconds), Some(hours)) => length_and_cost(steps, seconds, hours),
        _ => Vec::new(),
    }
}

/// Returns the group whose memory is fullest, if the prediction is at its high end.
fn fullest(priced: &MixedLayoutEstimate) -> &GroupEstimate {
    let share = |on: &GroupEstimate| on.peak_bytes_high / on.memory_bytes;
    let fullest = priced.groups.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    fullest.expect("a layout uses a group")
}

fn memory(plan: &MixedClusterPlan, priced: &MixedLayoutEstimate) -> MemoryAnswer {
    let fullest = fullest(priced);
    MemoryAnswer {
        peak: fullest.peak_bytes,
        available: Some(fullest.memory_bytes),
        high: Some(fullest.peak_bytes_high),
        holder: format!("on the fullest {}", plan.groups[fullest.group].gpu.0),
        measured: None,
    }
}

fn candidate(plan: &MixedClusterPlan, priced: &MixedLayoutEstimate) -> AnswerCandidate {
    let config = config(plan, priced);
    let stages: Vec<String> = priced
        .groups
        .iter()
        .map(|on| format!("{} on {}", on.layers.len(), plan.groups[on.group].gpu.0))
        .collect();
    AnswerCandidate {
        seconds: priced.step_seconds,
        bytes: fullest(priced).peak_bytes,
        devices: priced.devices,
        layout: format!("{}; {}", abbreviated(&config.arrangement, config.micro_batch), stages.join(", ")),
    }
}

fn reasons(plan: &MixedClusterPlan) -> Vec<Reason> {
    let choice = &plan.choice;
    let mut reasons = Vec::new();
    let key = |priced: &MixedLayoutEstimate| {
        let on = fullest(priced);
        TieBreak::of(&config(plan, priced).arrangement, on.peak_bytes / on.memory_bytes)
    };
    let faster = plan.ties.iter().filter(|tie| tie.step_seconds < choice.step_seconds);
    let fastest = faster.min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
    let most = |tie: &MixedLayoutEstimate| 100.0 * (1.0 - tie.step_seconds / choice.step_seconds);
    // What reads as 0.0 % is no difference.
    if let Some((tie, most)) = fastest.map(|tie| (tie, most(tie))).filter(|(_, most)| *most >= 0.05) {
        let why = key(choice).advantage_over(&key(tie)).unwrap_or("uses fewer groups");
        reasons.push(Reason::Faster { why: within_error(most, &format!("the choice {why}")) });
    }
    reasons.extend(plan.groups.iter().map(|group| alone(group, choice.step_seconds)));
    reasons
}

/// Returns the reason for not training on one group alone.
fn alone(group: &StandaloneGroup, chosen: f64) -> Reason {
    let change = format!("{} {} alone", thousands(group.devices.into()), group.gpu.0);
    match group.step_seconds {
        None => Reason::Rule(format!("{change}: no layout fits into memory")),
        Some(seconds) if seconds >= chosen => {
            Reason::Slower { change, slowdown: seconds / chosen - 1.0, cause: None, is_offset: false }
        }
        Some(seconds) => Reason::Rule(format!("{change}: {}, as fast", step_time(seconds))),
    }
}
