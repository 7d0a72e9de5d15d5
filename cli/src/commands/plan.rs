//! `dtrain plan`.

use super::emit;
use crate::args::PlanArgs;
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::load::load;
use crate::output::word;
use crate::plan_file::{MadeFrom, Stored, save};
use crate::render::html::{of_plan, page};
use crate::render::plan::long;
use crate::{job, rates, trials};
use dtrain_planner::Plan;
use dtrain_planner::choice::explain::Depth;
use dtrain_planner::engine::emit::Format;
use dtrain_recipes::Model;
use dtrain_runner::ledger::History;
use serde::Serialize;

/// Candidates that are shown unless `--top` says otherwise; for other hardware so many ties, and so many of the next.
pub(super) const TOP: usize = 5;

/// Plans a recipe, explains the plan, and saves it where asked to.
pub(crate) fn run(context: &Context, args: &PlanArgs) -> Outcome {
    if let Some(on) = &args.on {
        return super::outlook::run(context, args, on);
    }
    let loaded = load(&args.recipe.recipe, &args.recipe.layers, &[])?;
    if let Some(exit) = job::sent(context, &loaded.checked.recipe, false)? {
        return Ok(exit);
    }
    let mut history = trials::open_history(context)?;
    let engine = args.emit.and_then(Format::engine);
    let inputs = rates::inputs(context, &loaded)?;
    let wanted = (&loaded.checked.recipe, engine);
    let plan = rates::plan_with(context, &mut history, &loaded, wanted, inputs.as_ref())?;
    let page = match &args.html {
        Some(_) => Some(drawn(&history, &plan)?),
        None => None,
    };
    let text = long(&plan, depth(args), args.top.unwrap_or(TOP), context.out.style());
    let stored = Stored::of(plan, Some(MadeFrom::of(&loaded, &args.recipe.layers, &[], inputs)));
    let run = args.out.as_ref().map_or_else(|| word(&loaded.name), |path| word(path.display()));
    let made = Made {
        stored: Some(&stored),
        document: ("plan", &stored),
        text,
        page,
        next: Some(format!("dtrain run {run}")),
    };
    deliver(context, args, &made)
}

fn drawn(history: &History, plan: &Plan) -> Result<String, Failure> {
    if let Model::Command(_) = plan.recipe.model {
        let message = "--html needs predicted step times, and a foreign command has none";
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(page(&of_plan(plan, rates::picture(history, plan)?)))
}

/// What was planned, for these hosts or others.
pub(super) struct Made<'a, T> {
    /// What is saved and written for other engines; `None` where neither is asked for.
    pub(super) stored: Option<&'a Stored>,
    /// Kind and value of the document of `--json`.
    pub(super) document: (&'static str, &'a T),
    /// What people read.
    pub(super) text: String,
    /// The page of `--html`; `None` where it is not asked for.
    pub(super) page: Option<String>,
    /// The command that trains so, where dtrain can.
    pub(super) next: Option<String>,
}

/// Saves, draws, writes for another engine and prints what was planned, as the arguments ask.
pub(super) fn deliver<T: Serialize>(context: &Context, args: &PlanArgs, made: &Made<'_, T>) -> Outcome {
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
        return Ok(Exit::Done);
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
    Ok(Exit::Done)
}

/// How much is told of what was not chosen.
pub(super) fn depth(args: &PlanArgs) -> Depth {
    if args.explain { Depth::Full } else { Depth::Short }
}
