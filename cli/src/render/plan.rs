//! Text of a plan for the terminal.

use super::figures::PlannedTraining;
use super::number::{count, counted, whole};
use crate::color::ColorMode;
use crate::output::PageStyle;
use dtrain_planner::planning::explain::{DetailLevel, explain, summary, validation};
use dtrain_planner::text::{wrapped, wrapped_with_indent};
use dtrain_planner::{Estimate, Plan, RankedCandidate};
use std::fmt::Write as _;

/// Summarizes the chosen layout and the reasons for it in a few lines.
pub(crate) fn short(plan: &Plan, paint: ColorMode) -> String {
    let best = plan.best();
    // Messages to stderr are wrapped when they are printed.
    let Some(estimate) = &best.estimate else { return explain(plan, DetailLevel::Short) };
    let mut text = format!("{} {}\n", paint.bold("plan:"), best.candidate);
    _ = writeln!(text, "  batch          {}: {}", samples(plan.batch.value), plan.batch.reason);
    if let Some(epochs) = plan.epochs() {
        _ = writeln!(text, "  data           {epochs}");
    }
    _ = writeln!(text, "  learning rate  {}: {}", plan.learning_rate.value, plan.learning_rate.reason);
    _ = writeln!(
        text,
        "  predicted      {}/step ({} to {}), {} {}/s, {} per rank, {} in total",
        estimate.step,
        estimate.step_low,
        estimate.step_high,
        count(estimate.tokens_per_second),
        unit(plan),
        estimate.memory_peak,
        estimate.total,
    );
    _ = writeln!(text, "  validation     {}", validation(plan));
    _ = writeln!(text, "  based on       {}", estimate.source);
    text
}

pub(crate) use dtrain_planner::planning::explain::unit;

/// Returns the figures that a plan predicts for a live display.
pub(crate) fn planned_training(plan: &Plan) -> PlannedTraining {
    let best = plan.best();
    PlannedTraining {
        steps: best.run_length.steps.unwrap_or(0),
        limit: plan.recipe.objective.stop.time.map(|time| time.0),
        step_seconds: best.estimate.as_ref().map(|estimate| estimate.step.0),
        unit: unit(plan),
        metric: plan.recipe.objective.metric.name().to_owned(),
    }
}

fn samples(number: u64) -> String {
    counted(number, "sample")
}

/// Formats a plan in detail, with its best candidates side by side. The choice comes last, where a terminal
/// shows it.
pub(crate) fn long(plan: &Plan, depth: DetailLevel, top: usize, style: PageStyle) -> String {
    let mut text = wrapped(&explain(plan, depth), style.width);
    let priced = plan.choices.iter().filter_map(|ranked| Some((ranked, ranked.estimate.as_ref()?)));
    let shown = top.min(priced.clone().count());
    if shown > 0 {
        _ = writeln!(
            text,
            "\n{}",
            style.paint.bold(&format!("the best {shown} of {} candidates (= a tie)", whole(plan.priced)))
        );
    }
    for (ranked, estimate) in priced.take(top) {
        text += &wrapped_with_indent(&line(ranked, estimate, plan), style.width, 4);
    }
    let summary = summary(plan);
    if !summary.is_empty() {
        text += &format!("\n{}", wrapped(&summary, style.width));
    }
    text
}

fn line(ranked: &RankedCandidate, estimate: &Estimate, plan: &Plan) -> String {
    let tie = if ranked.is_tied { "=" } else { " " };
    format!(
        "{tie} {:>9}/step  {:>7} {}/s  {:>9}  {}",
        estimate.step.to_string(),
        count(estimate.tokens_per_second),
        unit(plan),
        estimate.memory_peak.to_string(),
        ranked.candidate
    )
}
