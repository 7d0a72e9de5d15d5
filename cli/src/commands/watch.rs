//! `dtrain watch`: a full-screen view of running trials.

use crate::args::WatchArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::shell_quoted;
use crate::trials::{self, history_failure};
use crate::watch::{self, StartPage};

/// Opens the full-screen view of a trial, a study, or everything that runs.
pub(crate) fn run(context: &Context, args: &WatchArgs) -> CommandResult {
    if let Some(reason) = context.out.no_screen() {
        let name = args.name.as_deref().unwrap_or("last");
        return Err(CommandError::new(ExitReason::Usage, "dtrain watch needs a terminal")
            .cause(reason)
            .hint(format!("`dtrain attach {}` prints lines, with `--json` JSON Lines", shell_quoted(name))));
    }
    let history = trials::read_history(context)?;
    let first = match &args.name {
        None => StartPage::List,
        Some(name) => match history.study(name).map_err(|error| history_failure(&error))? {
            Some(_) => StartPage::Study(name.clone()),
            None => StartPage::Trial(trials::find(&history, name)?),
        },
    };
    watch::run(context, history, &first)
}
