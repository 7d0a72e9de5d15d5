//! `dtrain watch`: a screen that shows what runs.

use crate::args::WatchArgs;
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::word;
use crate::trials::{self, ledger};
use crate::watch::{self, First};

/// Watches a trial, a study, or what runs.
pub(crate) fn run(context: &Context, args: &WatchArgs) -> Outcome {
    if let Some(reason) = context.out.no_screen() {
        let name = args.name.as_deref().unwrap_or("last");
        return Err(Failure::new(Exit::Usage, "dtrain watch needs a terminal")
            .cause(reason)
            .hint(format!("`dtrain attach {}` prints lines, with `--json` JSON Lines", word(name))));
    }
    let history = trials::read_history(context)?;
    let first = match &args.name {
        None => First::List,
        Some(name) => match history.study(name).map_err(|error| ledger(&error))? {
            Some(_) => First::Study(name.clone()),
            None => First::Trial(trials::find(&history, name)?),
        },
    };
    watch::run(context, history, &first)
}
