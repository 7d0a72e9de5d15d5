//! Contents of the page about a data-sheet plan: estimated training on GPUs that are not there.

use super::{
    AlternativeRow, ParetoChart, PlanPage, StageMemoryBar, StepTimeShares, bytes, categories, causes,
};
use crate::render::number::{count, seconds, thousands};
use dtrain_planner::planning::explain;
use dtrain_planner::text::amount;
use dtrain_planner::what_if::{AxisAlternative, DatasheetPlan, constants_source, describe_layout, subject};
use dtrain_recipes::Bytes;

/// Builds the contents of a data-sheet plan's page.
pub(crate) fn what_if_page(outlook: &DatasheetPlan) -> PlanPage {
    let choice = &outlook.choice;
    PlanPage {
        title: outlook.recipe.clone(),
        subtitle: subject(outlook),
        choice: vec![describe_layout(&choice.config)],
        figures: figures(outlook),
        time: StepTimeShares {
            seconds: choice.step_seconds,
            low: choice.step_seconds_low,
            high: choice.step_seconds_high,
            causes: causes(&choice.causes),
        },
        memory: outlook
            .stages
            .iter()
            .enumerate()
            .map(|(stage, parts)| StageMemoryBar {
                name: if outlook.stages.len() == 1 {
                    "every GPU".to_owned()
                } else {
                    format!("stage {stage}")
                },
                parts: categories(parts.iter().copied()),
            })
            .collect(),
        available: outlook.memory_bytes,
        front: Some(ParetoChart::of(&outlook.tradeoffs, "GPU", describe_layout)),
        timeline: outlook.timeline.clone(),
        losers: outlook.alternatives.iter().map(|lost| alternative_row(outlook, lost)).collect(),
        sources: vec![format!("constants: {}", constants_source(outlook))],
    }
}

fn figures(outlook: &DatasheetPlan) -> Vec<(&'static str, String)> {
    let choice = &outlook.choice;
    let (low, high) = (seconds(choice.step_seconds_low), seconds(choice.step_seconds_high));
    let mut figures = vec![
        ("a step", seconds(choice.step_seconds)),
        ("80 % interval", format!("{low} to {high}")),
        ("speed of a GPU", format!("{} tokens/s", count(choice.tokens_per_second_per_device))),
        ("of the peak", format!("{:.0} %", 100.0 * choice.model_flops_utilization)),
        ("memory of a GPU", format!("{} of {}", bytes(choice.peak_bytes), bytes(outlook.memory_bytes))),
        ("batch", thousands(outlook.batch.value)),
    ];
    if let Some(total) = outlook.failures.total_seconds.or(outlook.total_seconds) {
        figures.push(("total, with failures", seconds(total)));
    }
    if let Some(hours) = outlook.failures.device_hours.or(outlook.device_hours) {
        figures.push(("GPU hours, with failures", amount(hours)));
        figures.extend(outlook.price.map(|price| ("money, with failures", amount(hours * price))));
    }
    figures
}

fn alternative_row(outlook: &DatasheetPlan, lost: &AxisAlternative) -> AlternativeRow {
    let choice = &outlook.choice;
    AlternativeRow {
        axis: lost.axis.words().to_owned(),
        value: lost.value.clone(),
        loss: explain::slowdown(lost.slowdown, lost.is_tied),
        memory: explain::memory(in_bytes(choice.peak_bytes), in_bytes(lost.peak_bytes)),
        causes: explain::causes(&lost.time_delta, choice.step_seconds),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
fn in_bytes(bytes: f64) -> Bytes {
    Bytes(bytes as u64)
}
