//! `dtrain history`: lists, exports and imports trials.

mod bundle;

use crate::args::{HistoryArgs, HistoryCommand};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::history as list;
use crate::run_trial::record_finished_trials;
use crate::series::curve;
use crate::trials::{self, history_failure};
use dtrain_runner::ledger::{Filter, Pagination, Sort};

/// Width of a trial's curve in the list, in characters.
const LIST_CURVE: usize = 12;

/// Lists trials, or exports or imports them.
pub(crate) fn run(context: &Context, args: &HistoryArgs) -> CommandResult {
    match &args.command {
        Some(HistoryCommand::Export(args)) => bundle::export(context, args),
        Some(HistoryCommand::Import(args)) => bundle::import(context, args),
        None => list_trials(context, args),
    }
}

fn list_trials(context: &Context, args: &HistoryArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let names = history.names().map_err(|error| history_failure(&error))?;
    let filter = match &args.condition {
        Some(text) => {
            Filter::parse(text, &names).map_err(|error| CommandError::of(ExitReason::Usage, &error))?
        }
        None => Filter::default(),
    };
    let sort = match &args.by {
        Some(text) => {
            Sort::parse(text, &names).map_err(|error| CommandError::of(ExitReason::Usage, &error))?
        }
        None => Sort::Newest,
    };
    let limit = u64::from(args.limit.max(1));
    let page = Pagination { skip: u64::from(args.page.max(1) - 1) * limit, limit: limit + 1 };
    let mut rows = history
        .trials(&filter, &sort, page, &|id| trials::activity(context, id))
        .map_err(|error| history_failure(&error))?;
    let has_more = rows.len() as u64 > limit;
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    if context.out.json {
        context.out.json("history", &list::history_json(&rows))?;
    } else if args.csv {
        context.out.data(&list::history_csv(&rows))?;
    } else if rows.is_empty() {
        context.out.say("no trial matches");
    } else {
        let curves: Vec<_> = rows
            .iter()
            .map(|row| match curve(&history, &row.id, "loss", LIST_CURVE)? {
                none if none.is_empty() => curve(&history, &row.id, &row.objective, LIST_CURVE),
                loss => Ok(loss),
            })
            .collect::<Result<_, CommandError>>()?;
        context.out.data(&list::history(&rows, &curves, context.out.style()))?;
    }
    match rows.first() {
        Some(_) if has_more => context.out.next(&format!("dtrain history --page {}", args.page.max(1) + 1)),
        Some(first) => context.out.next(&format!("dtrain show {}", first.label)),
        None => {}
    }
    Ok(ExitReason::Done)
}
