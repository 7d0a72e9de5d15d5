//! `dtrain note`: adds notes and tags to trials.

use crate::args::NoteArgs;
use crate::command_error::CommandResult;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::shell_quoted;
use crate::trials::{self, history_failure};
use dtrain_protocol::TrialId;
use dtrain_runner::LedgerError;
use dtrain_runner::ledger::{History, Note};
use serde::Serialize;
use std::collections::BTreeMap;

/// JSON document that `dtrain note --json` prints: note and tags of a trial after the change.
#[derive(Serialize)]
struct TrialNotes<'a> {
    trial: &'a str,
    notes: &'a [Note],
    tags: &'a BTreeMap<String, String>,
}

/// Adds a note and tags to a trial, which may be running.
pub(crate) fn run(context: &Context, args: &NoteArgs) -> CommandResult {
    let trial = trials::find(&trials::read_history(context)?, &args.trial)?;
    let mut history = trials::open_history(context)?;
    trials::wait_for_history(context, || write(&mut history, &trial, args))
        .map_err(|error| history_failure(&error))?;
    let trial = history
        .trial(&trial, &|id| trials::activity(context, id))
        .map_err(|error| history_failure(&error))?;
    if context.out.json {
        let carried = TrialNotes { trial: &trial.row.label, notes: &trial.notes, tags: &trial.tags };
        context.out.json("note", &carried)?;
    }
    context.out.next(&format!("dtrain show {}", shell_quoted(&trial.row.label)));
    Ok(ExitReason::Done)
}

fn write(history: &mut History, trial: &TrialId, args: &NoteArgs) -> Result<(), LedgerError> {
    if let Some(text) = &args.text {
        history.add_note(trial, text)?;
    }
    // An empty value removes a tag.
    let untagged = args.untag.iter().map(|name| (name.as_str(), ""));
    let tagged = args.tag.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    untagged.chain(tagged).try_for_each(|(name, value)| history.set_tag(trial, name, value))
}
