//! Output of `dtrain plan`: text, JSON, saved files, an HTML page, and files for another engine.

use super::emit;
use crate::args::PlanArgs;
use crate::command_error::CommandResult;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::plan_file::{StoredPlan, save};
use crate::render::answer;
use dtrain_planner::answer::{Answer, ROWS};
use serde::Serialize;

/// Plan as it is printed and saved, for the recipe's hosts or those of `--on`.
pub(super) struct PlanOutput<'a, T> {
    /// Plan for `--out` and `--emit`; `None` if neither is given.
    pub(super) stored: Option<&'a StoredPlan>,
    /// Format name and value of the document for `--json`.
    pub(super) document: (&'static str, &'a T),
    /// Answer to print without `--json`.
    pub(super) answer: Answer,
    /// Full explanation to print below the answer; `None` without `--explain`.
    pub(super) explanation: Option<String>,
    /// HTML page of `--html`; `None` without it.
    pub(super) page: Option<String>,
    /// Command that trains by this plan; `None` if dtrain cannot.
    pub(super) next: Option<String>,
}

/// Saves, draws, emits and prints the plan, as the arguments ask.
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
        let rows = args.top.unwrap_or(ROWS);
        let messages = usize::from(args.out.is_some()) + usize::from(args.html.is_some());
        let style = context.out.style();
        let text = answer::text(&made.answer, rows, made.next.as_deref(), messages, style);
        let explanation = made.explanation.iter().map(|words| format!("\n{words}"));
        context.out.data(&(text + &explanation.collect::<String>()))?;
    }
    say_saved();
    if let Some(next) = &made.next {
        context.out.next(next);
    }
    Ok(ExitReason::Done)
}
