//! Contents of the page about a plan for dtrain's own worker.

use super::{
    AlternativeRow, ParetoChart, PlanPage, StageMemoryBar, StepTimeShares, categories, causes, whole,
};
use crate::render::number::{count, thousands};
use crate::render::plan::unit;
use dtrain_planner::planning::explain::{self, choice, device, subject};
use dtrain_planner::text::amount;
use dtrain_planner::{Alternative, MemoryBreakdown, Plan, StepProfile};

/// Builds the contents of a plan's page, with the simulated timeline of one step of its best candidate.
pub(crate) fn plan_page(plan: &Plan, picture: StepProfile) -> PlanPage {
    let estimate = plan.best().price();
    let name = |stage: usize| {
        if picture.memory.len() == 1 { "every rank".to_owned() } else { format!("stage {stage}") }
    };
    let stages = picture.memory.iter().enumerate();
    let words = |candidate: &dtrain_planner::Candidate| candidate.to_string();
    PlanPage {
        title: plan.recipe.name.clone(),
        subtitle: subject(plan),
        choice: choice(plan),
        figures: figures(plan),
        time: StepTimeShares {
            seconds: estimate.step.0,
            low: estimate.step_low.0,
            high: estimate.step_high.0,
            causes: causes(&picture.causes.parts()),
        },
        memory: stages.map(|(stage, memory)| stage_memory(name(stage), memory)).collect(),
        available: whole(estimate.memory_available),
        front: plan
            .tradeoffs
            .as_ref()
            .map(|tradeoffs| ParetoChart::of(tradeoffs, device(plan.best()), words)),
        timeline: Some(picture.timeline),
        losers: plan.alternatives.iter().map(|alternative| alternative_row(plan, alternative)).collect(),
        sources: vec![
            format!("constants: {}", estimate.source),
            format!("planned by dtrain {}; digest {}", plan.program, plan.digest()),
        ],
    }
}

fn figures(plan: &Plan) -> Vec<(&'static str, String)> {
    let estimate = plan.best().price();
    let mut figures = vec![
        ("a step", estimate.step.to_string()),
        ("80 % interval", format!("{} to {}", estimate.step_low, estimate.step_high)),
        ("speed", format!("{} {}/s", count(estimate.tokens_per_second), unit(plan))),
        ("total", estimate.total.to_string()),
        ("memory of a rank", format!("{} of {}", estimate.memory_peak, estimate.memory_available)),
        ("batch", thousands(plan.batch.value)),
        ("learning rate", plan.learning_rate.value.to_string()),
    ];
    if let Some(money) = plan.tradeoffs.as_ref().and_then(|tradeoffs| tradeoffs.choice.money) {
        figures.push(("money", amount(money)));
    }
    figures
}

fn stage_memory(name: String, memory: &MemoryBreakdown) -> StageMemoryBar {
    let parts = memory.categories().map(|(name, bytes)| (name, whole(bytes)));
    StageMemoryBar { name, parts: categories(parts) }
}

fn alternative_row(plan: &Plan, alternative: &Alternative) -> AlternativeRow {
    let Alternative { axis, value, time_delta, memory_peak, is_tied, .. } = alternative;
    let best = plan.best().price();
    let longer: f64 = time_delta.iter().map(|(_, seconds)| seconds).sum();
    AlternativeRow {
        axis: axis.clone(),
        value: value.clone(),
        loss: explain::slowdown(longer / best.step.0, *is_tied),
        memory: explain::memory(best.memory_peak, *memory_peak),
        causes: explain::causes(time_delta, best.step.0),
    }
}
