//! What a page tells of a plan for dtrain's own worker.

use super::{Front, Loser, MemoryOfStage, Report, TimeOfStep, categories, causes, whole};
use crate::render::number::{count, thousands};
use crate::render::plan::unit;
use dtrain_planner::choice::explain::{self, choice, device, subject};
use dtrain_planner::choice::weighed::amount;
use dtrain_planner::{Alternative, Memory, Picture, Plan};

/// A plan, with the picture of its best candidate.
pub(crate) fn of_plan(plan: &Plan, picture: Picture) -> Report {
    let estimate = plan.best().price();
    let name = |stage: usize| {
        if picture.memory.len() == 1 { "every rank".to_owned() } else { format!("stage {stage}") }
    };
    let stages = picture.memory.iter().enumerate();
    let words = |candidate: &dtrain_planner::Candidate| candidate.to_string();
    Report {
        title: plan.recipe.name.clone(),
        subtitle: subject(plan),
        choice: choice(plan),
        figures: figures(plan),
        time: TimeOfStep {
            seconds: estimate.step.0,
            low: estimate.step_low.0,
            high: estimate.step_high.0,
            causes: causes(&picture.causes.parts()),
        },
        memory: stages.map(|(stage, memory)| of_stage(name(stage), memory)).collect(),
        available: whole(estimate.memory_available),
        front: plan.weighed.as_ref().map(|weighed| Front::of(weighed, device(plan.best()), words)),
        timeline: Some(picture.timeline),
        losers: plan.alternatives.iter().map(|alternative| loser(plan, alternative)).collect(),
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
    if let Some(money) = plan.weighed.as_ref().and_then(|weighed| weighed.choice.money) {
        figures.push(("money", amount(money)));
    }
    figures
}

fn of_stage(name: String, memory: &Memory) -> MemoryOfStage {
    let parts = memory.categories().map(|(name, bytes)| (name, whole(bytes)));
    MemoryOfStage { name, parts: categories(parts) }
}

fn loser(plan: &Plan, alternative: &Alternative) -> Loser {
    let Alternative { axis, value, growth, memory_peak, tie, .. } = alternative;
    let best = plan.best().price();
    let longer: f64 = growth.iter().map(|(_, seconds)| seconds).sum();
    Loser {
        axis: axis.clone(),
        value: value.clone(),
        loss: explain::loss(longer / best.step.0, *tie),
        memory: explain::memory(best.memory_peak, *memory_peak),
        causes: explain::causes(growth, best.step.0),
    }
}
