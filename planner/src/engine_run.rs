//! Assignments of ranks that an engine trains: those of the plan, with the process of the engine.

use crate::emit::{self, DecoderPlan, EmitError};
use crate::engine::engine_of_recipe;
use crate::planning::lower::{self, AttemptSpec};
use crate::planning::plan::{Plan, RankedCandidate};
use dtrain_protocol::{Assignment, EngineProcess};
use dtrain_recipes::TrainingEngine;
use std::collections::BTreeMap;

/// Returns one assignment for each rank, in the order of ranks, with the process of the recipe's engine.
///
/// `Err` if the engine cannot train the choice.
pub fn lower_for_engine(
    plan: &Plan,
    choice: &RankedCandidate,
    attempt: &AttemptSpec,
) -> Result<Vec<Assignment>, EmitError> {
    let engine = engine_process(plan, choice)?;
    let assignments = lower::lower(plan, choice, attempt).into_iter();
    Ok(assignments.map(|rank| Assignment { engine: engine.clone(), ..rank }).collect())
}

/// Returns the process of the recipe's engine for a choice of the plan; `None` for dtrain's own worker.
fn engine_process(plan: &Plan, choice: &RankedCandidate) -> Result<Option<EngineProcess>, EmitError> {
    let recipe = &plan.recipe;
    let Some(engine) = engine_of_recipe(recipe.engine) else { return Ok(None) };
    let source = DecoderPlan::of_choice(plan, choice, engine)?;
    let (arguments, files) = match recipe.engine {
        TrainingEngine::Fsdp => (vec!["-m", "dtrain_engines.fsdp"], BTreeMap::new()),
        TrainingEngine::Torchtitan => emit::torchtitan_run(&source),
        TrainingEngine::Dtrain | TrainingEngine::Auto => unreachable!("it has no process of an engine"),
    };
    Ok(Some(EngineProcess {
        engine: recipe.engine,
        python: recipe.cluster.python.clone(),
        arguments: arguments.into_iter().map(str::to_owned).collect(),
        files,
        keep: recipe.checkpoint.keep,
        saved_step: 0,
    }))
}
