//! `dtrain plan --on` for models that only dtrain's own worker trains.

use super::plan_output::{PlanOutput, output_plan};
use super::what_if;
use crate::args::PlanArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::{LoadedRecipe, are_files_here};
use crate::plan_file::{PlanOrigin, StoredPlan};
use crate::render::html::{page, plan_page};
use crate::render::plan::full;
use crate::{rates, this_host};
use dtrain_planner::answer::{Answer, ROWS};
use dtrain_planner::emit::ConfigFormat;
use dtrain_planner::engine::DTRAIN;
use dtrain_planner::hardware::HostGroup;
use dtrain_planner::what_if::{WorkerPlanRequest, plan_for_worker};
use dtrain_planner::{Plan, PlanError};

/// Plans a loaded recipe for dtrain's own worker on the GPUs that `on` describes as `groups`.
pub(super) fn run(
    context: &Context,
    args: &PlanArgs,
    (on, groups): (&str, &[HostGroup]),
    loaded: &LoadedRecipe,
) -> CommandResult {
    let engine = match args.engine {
        Some(_) => what_if::engine(args, groups)?,
        None => args.emit.and_then(ConfigFormat::engine).unwrap_or(&DTRAIN),
    };
    let recipe = &loaded.checked.recipe;
    let samples = match recipe.objective.stop.epochs {
        // Only their number makes steps of epochs; otherwise the data may be on another machine.
        Some(_) if are_files_here(loaded) => rates::count_samples(context, loaded)?,
        Some(_) | None => None,
    };
    let data_root = loaded.folder.clone();
    let request =
        WorkerPlanRequest { recipe, groups, engine, samples, data_root, program: this_host::PROGRAM };
    let mut found = plan_for_worker(&request).map_err(|error| {
        let refusal = what_if::refusal(&error);
        match error {
            dtrain_planner::what_if::DatasheetPlanError::Worker(PlanError::SamplesUnknown) => {
                refusal.hint("the data is not here: `--set 'objective.stop={steps=1000}'` plans without it")
            }
            _ => refusal,
        }
    })?;
    found.plan = Plan { settings: loaded.checked.settings(), ..found.plan };
    let page = match (&args.html, &found.profile) {
        (Some(_), Some(profile)) => Some(page(&plan_page(&found.plan, profile.clone()))),
        (Some(_), None) => {
            let message = "the plan's pipeline schedule deadlocks";
            return Err(CommandError::new(ExitReason::Infrastructure, message));
        }
        (None, _) => None,
    };
    let stored = (args.out.is_some() || args.emit.is_some()).then(|| {
        StoredPlan::of(found.plan.clone(), Some(PlanOrigin::of(loaded, &args.recipe.layers, &[], None)))
    });
    let made = PlanOutput {
        stored: stored.as_ref(),
        document: ("worker_outlook", &found),
        answer: Answer::of_worker_plan(&found),
        explanation: args.explain.then(|| full(&found.plan, args.top.unwrap_or(ROWS), context.out.style())),
        page,
        next: Some(what_if::next(args, on, &DTRAIN)),
    };
    output_plan(context, args, &made)
}
