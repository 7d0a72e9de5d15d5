//! The answer of a plan for the hosts of a recipe.

use super::datasheet::{distinct, training, within_error};
use super::layout_words::{abbreviated, clauses};
use super::numbers::step_time;
use super::reason::{REASONS, Reason, SlowerLayout, slowest};
use super::{Answer, AnswerCandidate, Assumption, MemoryAnswer, StepAnswer};
use crate::choice::alternative::Alternative;
use crate::choice::tie_break::TieBreak;
use crate::layout::candidate::{Candidate, layout_with_devices};
use crate::layout::rejection::Rejection;
use crate::planning::explain::{device, host, params, subject, unit};
use crate::planning::foreign::command_with_values;
use crate::planning::plan::{Plan, RankedCandidate};
use crate::price::estimate::Estimate;
use crate::text::{amount, whole};
use dtrain_protocol::DeviceKind;
use dtrain_recipes::number_format::thousands;
use dtrain_recipes::sanitize::on_one_line;
use dtrain_recipes::{ForeignCommand, Model};

impl Answer {
    /// Returns the answer of a plan for the hosts of its recipe. Without an estimate, it has no times.
    pub fn of_plan(plan: &Plan) -> Self {
        if let Model::Command(command) = &plan.recipe.model {
            return of_command(plan, command);
        }
        let best = plan.best();
        let candidate = &best.candidate;
        let answer = Self {
            subject: format!("{}: {}, engine {}", plan.recipe.name, subject(plan), engine(plan)),
            runs: runs(candidate),
            training: training(&plan.batch, plan.recipe.model.sample_tokens(), &plan.learning_rate),
            device: match candidate.arrangement.device {
                DeviceKind::Cpu => "rank",
                DeviceKind::Cuda | DeviceKind::Wgpu => "GPU",
            },
            ..Self::empty()
        };
        let Some(estimate) = &best.estimate else {
            let confidence = vec!["estimated from data sheets when it was planned; not measured".into()];
            return Self { confidence, ..answer };
        };
        Self {
            step: Some(StepAnswer {
                seconds: estimate.step.0,
                interval: Some((estimate.step_low.0, estimate.step_high.0)),
                throughput: Some((
                    estimate.tokens_per_second,
                    if unit(plan) == "tokens" { "tokens/s" } else { "samples/s" },
                )),
                utilization: None,
                measured: None,
            }),
            total: total(plan, best, estimate),
            memory: Some(MemoryAnswer {
                peak: whole(estimate.memory_peak.0),
                available: Some(whole(estimate.memory_available.0)),
                high: None,
                holder: "on the fullest rank".into(),
                measured: None,
            }),
            assumptions: assumptions(plan),
            confidence: vec![estimate.source.clone()],
            candidates: distinct(plan.choices.iter().filter_map(|ranked| table_row(plan, ranked))),
            reasons: reasons(plan, estimate),
            improvements: improvements(plan),
            ..answer
        }
    }
}

/// Returns what is estimated where it cannot be known before a training.
fn assumptions(plan: &Plan) -> Vec<Assumption> {
    let what = "memory of activations estimated from the shapes of the network's parts";
    let is_custom = matches!(plan.recipe.model, Model::Custom(_));
    let all = is_custom.then(|| Assumption { what: what.into(), correction: None, is_minor: false });
    all.into_iter().collect()
}

/// Returns the answer of a plan for a command, whose work is unknown.
fn of_command(plan: &Plan, command: &ForeignCommand) -> Answer {
    let Candidate { arrangement, threads, .. } = &plan.best().candidate;
    let layout = layout_with_devices(&arrangement.layout, arrangement.device, *threads);
    Answer {
        subject: format!("{}: a command on {} ({layout})", plan.recipe.name, host(plan)),
        runs: vec![on_one_line(&command_with_values(plan, plan.best(), command).argv.join(" "))],
        params: params(&plan.recipe),
        confidence: vec!["no estimate: the work of a command is unknown".into()],
        ..Answer::empty()
    }
}

fn engine(plan: &Plan) -> &str {
    plan.engine.as_deref().unwrap_or_else(|| plan.recipe.engine.name())
}

fn runs(candidate: &Candidate) -> Vec<String> {
    let mut runs = clauses(&candidate.arrangement, candidate.split.micro());
    if candidate.arrangement.device == DeviceKind::Cpu {
        let s = if candidate.threads == 1 { "" } else { "s" };
        runs.insert(1, format!("{} thread{s} per rank", candidate.threads));
    }
    let shares = candidate.split.shares(candidate.arrangement.layout.expert);
    if !shares.is_empty() {
        let shares: Vec<String> = shares.iter().map(ToString::to_string).collect();
        runs.push(format!("replicas of {} micro-batches", shares.join(", ")));
    }
    runs
}

fn total(plan: &Plan, best: &RankedCandidate, estimate: &Estimate) -> Vec<String> {
    let expected = best.run_length.schedule_steps;
    let mut total = vec![match estimate.steps {
        Some(steps) if steps <= expected => format!("{} steps", thousands(steps)),
        Some(steps) => format!("about {} of {} steps", thousands(expected), thousands(steps)),
        None => format!("about {} steps", thousands(expected)),
    }];
    total.push(if estimate.total_low == estimate.total_high {
        format!("{}, ended by time", estimate.total)
    } else {
        format!("{} (80 % interval {} to {})", estimate.total, estimate.total_low, estimate.total_high)
    });
    let device = device(best);
    let cost = plan.tradeoffs.as_ref().map(|tradeoffs| &tradeoffs.choice);
    if let Some((hours, money)) = cost.and_then(|cost| Some((cost.device_hours?, cost.money?))) {
        total.push(format!("{} {device} hours", amount(hours)));
        total.push(format!("{} in money", amount(money)));
    }
    if let Some(epochs) = plan.epochs() {
        total.push(format!("{:.1} epochs", epochs.passes));
    }
    total
}

fn table_row(plan: &Plan, ranked: &RankedCandidate) -> Option<AnswerCandidate> {
    let (candidate, estimate) = (&ranked.candidate, ranked.estimate.as_ref()?);
    let mut layout = abbreviated(&candidate.arrangement, candidate.split.micro());
    if candidate.arrangement.device == DeviceKind::Cpu {
        let s = if candidate.threads == 1 { "" } else { "s" };
        layout += &format!(", {} thread{s}", candidate.threads);
    }
    if candidate.arrangement.precision != plan.best().candidate.arrangement.precision {
        layout += &format!(", {}", candidate.arrangement.precision.name());
    }
    Some(AnswerCandidate {
        seconds: estimate.step.0,
        bytes: whole(estimate.memory_peak.0),
        devices: candidate.arrangement.layout.world(),
        layout,
    })
}

fn reasons(plan: &Plan, estimate: &Estimate) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = faster(plan, estimate).into_iter().collect();
    let layouts = plan.alternatives.chunk_by(|a, b| a.axis == b.axis).filter_map(<[Alternative]>::first);
    let layouts = layouts.filter(|one| !one.is_tied).map(|one| SlowerLayout {
        change: words(one),
        slowdown: 1.0 / (1.0 + one.speed) - 1.0,
        cause: largest_cause(one),
        // A plan stores its axes as text.
        is_telling: !matches!(one.axis.as_str(), "sequence" | "schedule" | "shard" | "data"),
        layout: one.candidate.clone(),
    });
    reasons.extend(slowest(layouts.collect(), REASONS.saturating_sub(reasons.len()), estimate.step.0));
    let memory = plan.rejected.iter().filter_map(|group| match &group.rejection {
        Rejection::TooMuchMemory { needed, available } => Some(Reason::Memory {
            change: group.nearest.clone(),
            needed: whole(needed.0),
            high: whole(needed.0),
            available: whole(available.0),
        }),
        Rejection::TooLargeTensor { tensor, needed, limit } => Some(Reason::Memory {
            change: format!("{tensor} in one tensor ({})", group.nearest),
            needed: whole(needed.0),
            high: whole(needed.0),
            available: whole(limit.0),
        }),
        _ => None,
    });
    reasons.extend(memory.take(1));
    reasons
}

/// Returns the part of a step that grows most in an alternative, and by how many seconds.
fn largest_cause(one: &Alternative) -> (String, f64) {
    let largest = one.time_delta.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    largest.cloned().unwrap_or_else(|| (one.cause.clone(), 0.0))
}

/// Returns the value of an alternative in the words of the field. A plan stores its axes as text.
fn words(one: &Alternative) -> String {
    let Alternative { axis, value, .. } = one;
    match axis.as_str() {
        "ranks" | "precision" => value.clone(),
        "tensor" | "pipeline" | "context" | "expert" | "data" => format!("{axis} parallel {value}"),
        "zero" if value == "0" => "no ZeRO".into(),
        "zero" => format!("ZeRO-{value}"),
        "shard" => format!("state sharded over {value}"),
        "recompute" => {
            value.replacen("full", "full recompute", 1).replacen("selective", "selective recompute", 1)
        }
        _ => format!("{axis} {value}"),
    }
}

/// Returns the reason why candidates that are faster in the estimate were not chosen; `None` if there are
/// none.
fn faster(plan: &Plan, ours: &Estimate) -> Option<Reason> {
    let key = |ranked: &RankedCandidate, estimate: &Estimate| {
        let full = whole(estimate.memory_peak.0) / whole(estimate.memory_available.0.max(1));
        TieBreak::of(&ranked.candidate.arrangement, full)
    };
    let all = plan.choices.iter().filter_map(|ranked| Some((ranked, ranked.estimate.as_ref()?)));
    let faster = all.filter(|(_, estimate)| estimate.step < ours.step);
    let (ranked, theirs) = faster.min_by(|a, b| a.1.step.0.total_cmp(&b.1.step.0))?;
    let why = match key(plan.best(), ours).advantage_over(&key(ranked, theirs)) {
        Some(words) => format!("the choice {words}"),
        None => {
            format!(
                "the choice is more certain, below {} instead of {}",
                step_time(ours.step_high.0),
                step_time(theirs.step_high.0)
            )
        }
    };
    let most = 100.0 * (1.0 - theirs.step.0 / ours.step.0);
    Some(Reason::Faster { why: within_error(most, &why) })
}

fn improvements(plan: &Plan) -> Vec<String> {
    let ties = plan.choices.iter().filter(|choice| choice.is_tied).count().saturating_sub(1);
    let mut all = Vec::new();
    if plan.rates.is_none() {
        all.push("measuring: `dtrain probe` narrows the interval of these times".into());
    }
    if ties > 0 && plan.rates.is_some() {
        let s = if ties == 1 { "" } else { "s" };
        let percent = 100.0 * plan.best().price().resolution;
        all.push(format!(
            "`dtrain tune`: it measures {ties} more layout{s}, as fast within the error of the estimate \
             ({percent:.1} %)"
        ));
    }
    all
}
