//! `dtrain plan`: plans a recipe and explains the choice.

mod emit;
mod plan_output;
mod what_if;

use crate::args::PlanArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load;
use crate::output::shell_quoted;
use crate::plan_file::{PlanOrigin, StoredPlan};
use crate::render::html::{page, plan_page};
use crate::render::plan::long;
use crate::{engine_choice, rates, slurm_job, trials};
use clap::ValueEnum;
use dtrain_planner::Plan;
use dtrain_planner::emit::ConfigFormat;
use dtrain_recipes::Model;
use dtrain_runner::ledger::History;
use plan_output::{PlanOutput, TOP, explanation_depth, output_plan};

/// Plans a recipe, explains the plan, and saves it on request.
pub(crate) fn run(context: &Context, args: &PlanArgs) -> CommandResult {
    if let Some(on) = &args.on {
        return what_if::run(context, args, on);
    }
    let named = args.engine.and_then(|engine| engine.to_possible_value());
    let flags: Vec<_> = named.iter().map(|engine| ("engine", format!("{:?}", engine.get_name()))).collect();
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
    let text = long(&plan, explanation_depth(args), args.top.unwrap_or(TOP), context.out.style());
    let stored = StoredPlan::of(plan, Some(PlanOrigin::of(&loaded, &args.recipe.layers, &flags, inputs)));
    let run = match &args.out {
        Some(path) => shell_quoted(path.display()),
        None => {
            let engine = flags
                .first()
                .map_or_else(String::new, |(_, name)| format!(" --engine {}", name.trim_matches('"')));
            format!("{}{engine}", shell_quoted(&loaded.name))
        }
    };
    let made = PlanOutput {
        stored: Some(&stored),
        document: ("plan", &stored),
        text,
        page,
        next: Some(format!("dtrain run {run}")),
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
