//! `dtrain note`.

use crate::args::NoteArgs;
use crate::context::Context;
use crate::failure::{Exit, Outcome};
use crate::output::word;
use crate::trials::{self, ledger};
use dtrain_protocol::TrialId;
use dtrain_runner::LedgerError;
use dtrain_runner::ledger::{History, Note};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a trial carries now.
#[derive(Serialize)]
struct Carried<'a> {
    trial: &'a str,
    notes: &'a [Note],
    tags: &'a BTreeMap<String, String>,
}

/// Writes a note and tags to a trial, also while it runs.
pub(crate) fn run(context: &Context, args: &NoteArgs) -> Outcome {
    let trial = trials::find(&trials::read_history(context)?, &args.trial)?;
    let mut history = trials::open_history(context)?;
    trials::waiting(context, || write(&mut history, &trial, args)).map_err(|error| ledger(&error))?;
    let trial = history.trial(&trial, &|id| trials::is_alive(context, id)).map_err(|error| ledger(&error))?;
    if context.out.json {
        let carried = Carried { trial: &trial.row.label, notes: &trial.notes, tags: &trial.tags };
        context.out.json("note", &carried)?;
    }
    context.out.next(&format!("dtrain show {}", word(&trial.row.label)));
    Ok(Exit::Done)
}

fn write(history: &mut History, trial: &TrialId, args: &NoteArgs) -> Result<(), LedgerError> {
    if let Some(text) = &args.text {
        history.add_note(trial, text)?;
    }
    // An empty value takes a tag away.
    let untagged = args.untag.iter().map(|name| (name.as_str(), ""));
    let tagged = args.tag.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    untagged.chain(tagged).try_for_each(|(name, value)| history.set_tag(trial, name, value))
}
