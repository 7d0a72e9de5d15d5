//! The answer of a plan from data sheets, for equal hosts.

use super::layout_words::{abbreviated, clauses};
use super::numbers::{learning_rate, step_time};
use super::reason::{REASONS, Reason, SlowerLayout, slowest};
use super::{Answer, AnswerCandidate, Assumption, MemoryAnswer, StepAnswer, TrainingValue};
use crate::analytic::Constants;
use crate::analytic::search::SearchAxis;
use crate::choice::tie_break::TieBreak;
use crate::engine::engine_by_name;
use crate::hardware::{HostGroup, equal_hosts};
use crate::text::amount;
use crate::training::decision::Decision;
use crate::what_if::{Advice, AxisAlternative, DatasheetPlan, LayoutEstimate, MemoryLimit};
use dtrain_recipes::number_format::{parameters, thousands};
use dtrain_recipes::{Precision, Seconds};

/// Relative gain in tokens per second from which on a change helps.
pub(super) const HELPS: f64 = 0.01;

/// Relative gain from which on a change that needs no other hardware is named first.
const HELPS_FOR_FREE: f64 = 0.05;

impl Answer {
    /// Returns the answer of a plan for `cluster`.
    pub fn of_datasheet_plan(plan: &DatasheetPlan, cluster: &HostGroup) -> Self {
        let choice = &plan.choice;
        let all = std::iter::once(choice).chain(&plan.ties).chain(&plan.next);
        Self {
            subject: format!(
                "{}: {} parameters on {}, engine {}",
                plan.recipe,
                parameters(plan.parameters),
                equal_hosts(plan.devices, plan.per_host, &plan.gpu.0),
                plan.engine
            ),
            runs: runs(plan),
            step: Some(StepAnswer {
                seconds: choice.step_seconds,
                interval: Some((choice.step_seconds_low, choice.step_seconds_high)),
                throughput: Some((choice.tokens_per_second_per_device, "tokens/s/GPU")),
                utilization: Some(choice.model_flops_utilization),
                measured: None,
            }),
            total: if failures_matter(plan) {
                [total(plan), with_failures(plan).into_iter().collect()].concat()
            } else {
                total(plan)
            },
            failures: with_failures(plan).filter(|_| !failures_matter(plan)),
            memory: Some(MemoryAnswer {
                peak: choice.peak_bytes,
                available: Some(plan.memory_bytes),
                high: Some(choice.peak_bytes_high),
                holder: "on the fullest GPU".into(),
                measured: None,
            }),
            training: training(&plan.batch, plan.sample_tokens, &plan.learning_rate),
            assumptions: assumptions(plan),
            confidence: confidence(plan.engine, std::slice::from_ref(cluster)),
            candidates: distinct(all.map(candidate)),
            reasons: reasons(plan),
            improvements: improvements(plan),
            ..Self::empty()
        }
    }
}

fn runs(plan: &DatasheetPlan) -> Vec<String> {
    let config = &plan.choice.config;
    let mut runs = clauses(&config.arrangement, config.micro_batch);
    runs.extend(precision_reason(&plan.precision));
    if plan.idle > 0 {
        let (idle, hosts) = (plan.idle / plan.per_host, plan.devices / plan.per_host);
        runs.push(format!("{idle} of {hosts} hosts idle, as more are no faster"));
    }
    runs
}

/// Returns the reason for a precision that is not the usual one.
pub(super) fn precision_reason(precision: &Decision<Precision>) -> Option<String> {
    // Reasons are text; this one is a lack of a part or an engine.
    let lacks = precision.reason.contains(" has no ");
    // Layouts do not name f32.
    let name = if precision.value == Precision::F32 { "f32, " } else { "" };
    lacks.then(|| format!("{name}as {}", precision.reason))
}

fn total(plan: &DatasheetPlan) -> Vec<String> {
    let (Some(steps), Some(seconds), Some(hours)) = (plan.steps, plan.total_seconds, plan.device_hours)
    else {
        return Vec::new();
    };
    let mut total = length_and_cost(steps, seconds, hours);
    if let Some(price) = plan.price {
        total.push(format!("{} in money at {price} an hour", amount(hours * price)));
    }
    total
}

/// Returns `true` if failures and checkpoints make a training longer by more than a twentieth.
fn failures_matter(plan: &DatasheetPlan) -> bool {
    let Some(without) = plan.total_seconds else { return false };
    plan.failures.total_seconds.is_none_or(|with| with > 1.05 * without)
}

fn with_failures(plan: &DatasheetPlan) -> Option<String> {
    plan.total_seconds?;
    Some(match plan.failures.total_seconds {
        Some(seconds) => format!("{} with failures and checkpoints", Seconds(seconds)),
        None => "never done with its failures".into(),
    })
}

/// Returns the length of a training and its GPU hours in words.
pub(super) fn length_and_cost(steps: u64, seconds: f64, hours: f64) -> Vec<String> {
    let s = if steps == 1 { "" } else { "s" };
    vec![
        format!("{} step{s}", thousands(steps)),
        Seconds(seconds).to_string(),
        format!("{} GPU hours", amount(hours)),
    ]
}

/// Returns batch and learning rate with their rules; a sample has `tokens` tokens.
pub(super) fn training(batch: &Decision<u64>, tokens: u64, rate: &Decision<f64>) -> Vec<TrainingValue> {
    let each = if tokens > 1 { format!(" × {} tokens", thousands(tokens)) } else { String::new() };
    vec![
        TrainingValue::of(format!("batch {}{each}", thousands(batch.value)), &batch.reason),
        TrainingValue::of(format!("learning rate {}", learning_rate(rate.value)), &rate.reason),
    ]
}

fn assumptions(plan: &DatasheetPlan) -> Vec<Assumption> {
    let mut all = link_assumptions(&plan.assumptions);
    if plan.total_seconds.is_some() && !plan.failures.is_mtbf_given {
        all.push(Assumption {
            what: format!("a host fails every {}", Seconds(plan.failures.host_mtbf_seconds)),
            correction: Some("cluster.mtbf".into()),
            is_minor: true,
        });
    }
    all
}

/// Returns what was assumed about links, as clauses of the answer.
pub(super) fn link_assumptions(assumed: &[crate::hardware::Assumption]) -> Vec<Assumption> {
    let clause = |one: &crate::hardware::Assumption| Assumption {
        what: one.what.clone(),
        correction: Some(one.correct.clone()),
        is_minor: false,
    };
    assumed.iter().map(clause).collect()
}

/// Returns the sources of the figures of `groups` and of the engine's profile.
pub(super) fn confidence(engine: &str, groups: &[HostGroup]) -> Vec<String> {
    let is_measured = engine_by_name(engine).is_none_or(|engine| engine.style().is_measured());
    let mut words = vec![if is_measured {
        "from data sheets, engine profile fitted to published runs".to_owned()
    } else {
        "from data sheets; engine never measured on a GPU: wide interval".to_owned()
    }];
    let is_known = |group: &HostGroup| Constants::shipped().experience.sources(&group.gpu.generation) > 0;
    let unknown: Vec<String> = groups.iter().filter(|group| !is_known(group)).map(HostGroup::part).collect();
    if !unknown.is_empty() {
        words.push(format!("no published run on GPUs like {} is known", unknown.join(", ")));
    }
    words
}

/// Returns the candidates without those that read as an earlier one.
pub(super) fn distinct(all: impl Iterator<Item = AnswerCandidate>) -> Vec<AnswerCandidate> {
    let mut kept: Vec<AnswerCandidate> = Vec::new();
    for one in all {
        if !kept.iter().any(|known| known.layout == one.layout) {
            kept.push(one);
        }
    }
    kept
}

fn candidate(priced: &LayoutEstimate) -> AnswerCandidate {
    AnswerCandidate {
        seconds: priced.step_seconds,
        bytes: priced.peak_bytes,
        devices: priced.config.arrangement.layout.world(),
        layout: abbreviated(&priced.config.arrangement, priced.config.micro_batch),
    }
}

fn reasons(plan: &DatasheetPlan) -> Vec<Reason> {
    let mut reasons = Vec::new();
    reasons.extend(faster(plan));
    let limits: Vec<&MemoryLimit> = plan.memory_limits.iter().take(2).collect();
    reasons.extend(limits.iter().map(|limit| Reason::Memory {
        change: limit.change.clone(),
        needed: limit.peak_bytes,
        high: limit.peak_bytes * choice_margin(plan),
        available: plan.memory_bytes,
    }));
    // The first of each axis is its fastest.
    let fastest = plan.alternatives.chunk_by(|a, b| a.axis == b.axis).filter_map(<[AxisAlternative]>::first);
    let is_new = |one: &&AxisAlternative| limits.iter().all(|limit| limit.change != words(one));
    let layouts = fastest.filter(|one| is_of_choice(plan, one)).filter(is_new).map(|one| SlowerLayout {
        change: words(one),
        slowdown: one.slowdown,
        cause: (one.cause.0.to_owned(), one.cause.1),
        is_telling: is_telling(one.axis),
        layout: one.layout.clone(),
    });
    let most = REASONS.saturating_sub(reasons.len());
    reasons.extend(slowest(layouts.collect(), most, plan.choice.step_seconds));
    reasons
}

/// Returns the upper end of the memory of the choice over its estimate.
fn choice_margin(plan: &DatasheetPlan) -> f64 {
    plan.choice.peak_bytes_high / plan.choice.peak_bytes
}

/// Returns `true` if a value is a decision of its own, and does not follow from one on another axis.
fn is_of_choice(plan: &DatasheetPlan, one: &AxisAlternative) -> bool {
    let degrees = plan.choice.config.degrees();
    match one.axis {
        SearchAxis::Schedule | SearchAxis::Order => degrees.pipeline > 1,
        SearchAxis::Sequence => degrees.tensor > 1,
        SearchAxis::Exchange => degrees.context > 1,
        // Fewer replicas are more ranks on another axis.
        SearchAxis::Data | SearchAxis::Shard => false,
        SearchAxis::Tensor
        | SearchAxis::Context
        | SearchAxis::Expert
        | SearchAxis::Pipeline
        | SearchAxis::MicroBatch
        | SearchAxis::Recompute
        | SearchAxis::Zero => true,
    }
}

/// Returns `true` for an axis whose values tell more than those of other axes.
fn is_telling(axis: SearchAxis) -> bool {
    !matches!(axis, SearchAxis::Schedule | SearchAxis::Order | SearchAxis::Sequence | SearchAxis::Exchange)
}

/// Returns an alternative value in the words of the field.
fn words(one: &AxisAlternative) -> String {
    let value = &one.value;
    match one.axis {
        SearchAxis::Tensor | SearchAxis::Context | SearchAxis::Expert | SearchAxis::Pipeline => {
            value.replacen(' ', " parallel ", 1)
        }
        SearchAxis::Zero if value == "zero 0" => "no ZeRO".into(),
        SearchAxis::Zero => value.replacen("zero ", "ZeRO-", 1),
        _ => value.clone(),
    }
}

/// Says that layouts up to `most` percent faster were not chosen, because of `why`.
pub(super) fn within_error(most: f64, why: &str) -> String {
    format!("layouts up to {most:.1} % faster are within the error of the estimate; {why}")
}

/// Returns the reason why layouts of the table that are faster in the estimate were not chosen; `None` if the
/// choice is the fastest.
fn faster(plan: &DatasheetPlan) -> Option<Reason> {
    let choice = &plan.choice;
    let is_faster = |one: &&LayoutEstimate| one.step_seconds < choice.step_seconds;
    let key =
        |one: &LayoutEstimate| TieBreak::of(&one.config.arrangement, one.peak_bytes / plan.memory_bytes);
    if let Some(tie) = plan.ties.iter().find(is_faster) {
        let why = match key(choice).advantage_over(&key(tie)) {
            Some(words) => format!("the choice {words}"),
            None => "the choice is the more certain one".into(),
        };
        let faster = plan.ties.iter().map(|tie| 1.0 - tie.step_seconds / choice.step_seconds);
        let most = 100.0 * faster.fold(0.0, f64::max);
        return Some(Reason::Faster { why: within_error(most, &why) });
    }
    let other = plan
        .next
        .iter()
        .filter(is_faster)
        .max_by(|a, b| a.step_seconds_high.total_cmp(&b.step_seconds_high))?;
    Some(Reason::Faster {
        why: format!(
            "layouts that may be faster are less certain: up to {}, the choice up to {}",
            step_time(other.step_seconds_high),
            step_time(choice.step_seconds_high)
        ),
    })
}

/// Returns the two changes that help most, of different kinds. One that needs no other hardware goes first.
fn improvements(plan: &DatasheetPlan) -> Vec<String> {
    let mut told: Vec<&Advice> = Vec::new();
    let helps = |advice: &&Advice| advice.speed >= HELPS;
    let is_free = |advice: &&Advice| {
        advice.speed >= HELPS_FOR_FREE && matches!(kind(&advice.change), "a near batch" | "engine")
    };
    let free = plan.advice.iter().find(is_free);
    for advice in free.into_iter().chain(plan.advice.iter().filter(helps)) {
        let is_told = |known: &&Advice| kind(&known.change) == kind(&advice.change);
        if told.len() < 2 && !told.iter().any(is_told) {
            told.push(advice);
        }
    }
    told.into_iter().map(|one| format!("{}: {} tokens/s", one.change, more(one.speed))).collect()
}

/// Formats a gain: as `12 % more`, or as `2.5 times the` from twice the speed on.
pub(super) fn more(share: f64) -> String {
    if share >= 0.995 {
        format!("{:.1} times the", 1.0 + share)
    } else {
        format!("{:.0} % more", 100.0 * share)
    }
}

/// Returns the kind of a change: the number of hosts, the batch, the engine, or the change itself. Advice is
/// text, so its words tell.
fn kind(change: &str) -> &str {
    if change.ends_with("host") || change.ends_with("hosts") {
        return "hosts";
    }
    if change.starts_with("a batch of ") {
        return "a near batch";
    }
    ["batch", "engine"].into_iter().find(|word| change.contains(word)).unwrap_or(change)
}
