//! `dtrain compare`: compares two trials.

use crate::args::CompareArgs;
use crate::command_error::CommandResult;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::compare as page;
use crate::run_trial::record_finished_trials;
use crate::trials::{self, history_failure};
use dtrain_runner::compare::compare;

/// Prints the differences between two trials: settings, code, results and curves.
pub(crate) fn run(context: &Context, args: &CompareArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let ids = [trials::find(&history, &args.a)?, trials::find(&history, &args.b)?];
    let comparison = compare(&history, &ids, &[], &|id| trials::activity(context, id))
        .map_err(|error| history_failure(&error))?;
    if context.out.json {
        context.out.json("comparison", &comparison)?;
    } else if args.csv {
        context.out.data(&page::compare_csv(&comparison))?;
    } else {
        context.out.data(&page::compare(&comparison, args.all, args.code, context.out.style()))?;
    }
    context.out.next(&format!("dtrain show {}", args.b));
    Ok(ExitReason::Done)
}
