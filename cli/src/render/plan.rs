//! Text of a plan for the terminal.

use super::figures::PlannedTraining;
use super::number::{count, whole};
use crate::color::ColorMode;
use crate::output::PageStyle;
use dtrain_planner::answer::{Answer, COLUMNS, INDENT};
use dtrain_planner::planning::explain::{explain, summary, validation};
use dtrain_planner::text::{wrapped, wrapped_with_indent};
use dtrain_planner::{Estimate, Plan, RankedCandidate};
use std::fmt::Write as _;

/// Formats the chosen layout and its cost in the words of an answer, for the start of a training.
pub(crate) fn short(plan: &Plan, paint: ColorMode) -> String {
    let mut text = format!("{}\n", paint.bold("plan:"));
    text += &Answer::of_plan(plan).short_text(COLUMNS);
    if let Some(epochs) = plan.epochs() {
        text += &wrapped_with_indent(&format!("{:<INDENT$}{epochs}", "data"), COLUMNS, INDENT);
    }
    if plan.best().estimate.is_some() {
        text +=
            &wrapped_with_indent(&format!("{:<INDENT$}{}", "validation", validation(plan)), COLUMNS, INDENT);
    }
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

/// Explains a plan in full, with its best candidates side by side. The choice comes last, where a terminal
/// shows it.
pub(crate) fn full(plan: &Plan, top: usize, style: PageStyle) -> String {
    let mut text = wrapped(&explain(plan), style.width);
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
