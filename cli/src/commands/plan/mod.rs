//! `dtrain plan`: plans a recipe and explains the choice.

mod emit;
mod plan_output;
mod what_if;
mod worker;

use crate::args::PlanArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load;
use crate::output::shell_quoted;
use crate::plan_file::{PlanOrigin, StoredPlan};
use crate::pretrained::WeightsFolder;
use crate::render::answer::on_several_lines;
use crate::render::html::{page, plan_page};
use crate::render::plan::full;
use crate::{engine_choice, rates, slurm_job, trials};
use clap::ValueEnum;
use dtrain_planner::Plan;
use dtrain_planner::answer::{Answer, ROWS};
use dtrain_planner::emit::ConfigFormat;
use dtrain_recipes::Model;
use dtrain_runner::ledger::History;
use plan_output::{PlanOutput, output_plan};
use std::path::Path;

/// Plans a recipe, explains the plan, and saves it on request.
pub(crate) fn run(context: &Context, args: &PlanArgs) -> CommandResult {
    if let Some(on) = &args.on {
        return what_if::run(context, args, on);
    }
    let named = args.engine.and_then(|engine| engine.to_possible_value());
    let mut flags: Vec<_> =
        named.iter().map(|engine| ("engine", format!("{:?}", engine.get_name()))).collect();
    if let Some(from) = &args.from {
        let weights = match WeightsFolder::find(context.out, from)? {
            Some(weights) => weights,
            None => WeightsFolder::open(Path::new(from))?,
        };
        flags.push(("train.from", format!("{:?}", weights.source())));
    }
    let loaded = load(context.out, &args.recipe.recipe, &args.recipe.layers, &flags)?;
    if let Some(exit) = slurm_job::submit_if_needed(context, &loaded.checked.recipe, false)? {
        return Ok(exit);
    }
    let mut history = trials::open_history(context)?;
    let engine = args.emit.and_then(ConfigFormat::engine);
    let inputs = rates::inputs(context, &loaded)?;
    let wanted = (&loaded.checked.recipe, engine);
    let plan = rates::plan_with_inputs(context, &mut history, &loaded, wanted, inputs.as_ref())?;
    if engine.is_none() {
        engine_choice::print_others(context, &plan, |recipe| {
            rates::plan_with_inputs(context, &mut history, &loaded, (recipe, None), inputs.as_ref())
        })?;
    }
    let page = match &args.html {
        Some(_) => Some(render_plan_page(&history, &plan)?),
        None => None,
    };
    let answer = Answer::of_plan(&plan);
    let explanation = args.explain.then(|| full(&plan, args.top.unwrap_or(ROWS), context.out.style()));
    let stored = StoredPlan::of(plan, Some(PlanOrigin::of(&loaded, &args.recipe.layers, &flags, inputs)));
    let mut run = vec!["dtrain run".to_owned()];
    match &args.out {
        Some(path) => run.push(shell_quoted(path.display())),
        None => {
            run.push(shell_quoted(&loaded.name));
            run.extend(args.recipe.layers.arguments());
            run.extend(flags.iter().map(|(key, value)| match *key {
                "engine" => format!("--engine {}", value.trim_matches('"')),
                _ => format!("--set {}", shell_quoted(format!("{key}={value}"))),
            }));
        }
    }
    let made = PlanOutput {
        stored: Some(&stored),
        document: ("plan", &stored),
        answer,
        explanation,
        page,
        next: Some(on_several_lines(run.iter().map(String::as_str))),
    };
    output_plan(context, args, &made)
}

fn render_plan_page(history: &History, plan: &Plan) -> Result<String, CommandError> {
    if let Model::Command(_) = plan.recipe.model {
        let message = "--html needs predicted step times, and a foreign command has none";
        return Err(CommandError::new(ExitReason::Usage, message));
    }
    Ok(page(&plan_page(plan, rates::step_timeline(history, plan)?)))
}
