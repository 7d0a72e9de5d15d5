//! `dtrain plan`: plans a recipe and explains the choice.

use super::emit;
use crate::args::PlanArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load;
use crate::output::shell_quoted;
use crate::plan_file::{PlanOrigin, StoredPlan, save};
use crate::render::html::{page, plan_page};
use crate::render::plan::long;
use crate::{rates, slurm_job, trials};
use dtrain_planner::Plan;
use dtrain_planner::choice::explain::DetailLevel;
use dtrain_planner::engine::emit::ConfigFormat;
use dtrain_recipes::Model;
use dtrain_runner::ledger::History;
use serde::Serialize;

/// Default of `--top`: candidates shown; with `--on`, ties and runners-up shown each.
pub(super) const TOP: usize = 5;

/// Plans a recipe, explains the plan, and saves it if requested.
pub(crate) fn run(context: &Context, args: &PlanArgs) -> CommandResult {
    if let Some(on) = &args.on {
        return super::what_if::run(context, args, on);
    }
    let loaded = load(context.out, &args.recipe.recipe, &args.recipe.layers, &[])?;
    if let Some(exit) = slurm_job::submit_if_needed(context, &loaded.checked.recipe, false)? {
        return Ok(exit);
    }
    let mut history = trials::open_history(context)?;
    let engine = args.emit.and_then(ConfigFormat::engine);
    let inputs = rates::inputs(context, &loaded)?;
    let wanted = (&loaded.checked.recipe, engine);
    let plan = rates::plan_with_inputs(context, &mut history, &loaded, wanted, inputs.as_ref())?;
    let page = match &args.html {
        Some(_) => Some(render_plan_page(&history, &plan)?),
        None => None,
    };
    let text = long(&plan, explanation_depth(args), args.top.unwrap_or(TOP), context.out.style());
    let stored = StoredPlan::of(plan, Some(PlanOrigin::of(&loaded, &args.recipe.layers, &[], inputs)));
    let run =
        args.out.as_ref().map_or_else(|| shell_quoted(&loaded.name), |path| shell_quoted(path.display()));
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

/// Output of a plan, for these or other hosts.
pub(super) struct PlanOutput<'a, T> {
    /// Plan for `--out` and `--emit`; `None` if neither is given.
    pub(super) stored: Option<&'a StoredPlan>,
    /// Kind and value of the `--json` document.
    pub(super) document: (&'static str, &'a T),
    /// Text for the user.
    pub(super) text: String,
    /// HTML page of `--html`; `None` without it.
    pub(super) page: Option<String>,
    /// The command that trains this plan, if dtrain can.
    pub(super) next: Option<String>,
}

/// Saves, draws, exports and prints the plan as the arguments ask.
pub(super) fn output_plan<T: Serialize>(
    context: &Context,
    args: &PlanArgs,
    made: &PlanOutput<'_, T>,
) -> CommandResult {
    if let (Some(path), Some(page)) = (&args.html, &made.page) {
        save(path, page)?;
        context.out.say(&format!("drawn in {}", path.display()));
    }
    let mut saved = None;
    if let (Some(path), Some(stored)) = (&args.out, made.stored) {
        stored.write(path)?;
        saved = Some(format!("saved as {} (digest {})", path.display(), &stored.digest[..12]));
    }
    let say_saved = || saved.iter().for_each(|words| context.out.say(words));
    if let (Some(format), Some(stored)) = (args.emit, made.stored) {
        say_saved();
        emit::run(context, args, &stored.plan, format)?;
        return Ok(ExitReason::Done);
    }
    let (kind, document) = made.document;
    if context.out.json {
        context.out.json(kind, document)?;
    } else {
        context.out.data(&made.text)?;
    }
    say_saved();
    if let Some(next) = &made.next {
        context.out.next(next);
    }
    Ok(ExitReason::Done)
}

/// Returns how much detail to print about alternatives that were not chosen.
pub(super) fn explanation_depth(args: &PlanArgs) -> DetailLevel {
    if args.explain { DetailLevel::Full } else { DetailLevel::Short }
}
