//! `dtrain gc`: removes files that are no longer needed.

mod report;
mod tokens;

use crate::args::GcArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::confirm::confirm;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::run_trial::record_finished_trials;
use crate::trials::{self, history_failure};
use dtrain_recipes::Bytes;
use dtrain_runner::ledger::History;
use dtrain_runner::store::{self, Garbage, Kind, RemoveError};
use dtrain_runner::transport::ProgramDigest;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// JSON of a file that is kept although it may be unneeded, with the reason.
#[derive(Serialize)]
struct RetainedFile {
    item: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Files to remove, and files to keep although they may be unneeded.
struct CleanupPlan {
    leftovers: Vec<Garbage>,
    kept: Vec<RetainedFile>,
}

/// Removes files that are no longer needed, or with `--dry-run` lists them.
pub(crate) fn run(context: &Context, args: &GcArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let mut found = plan_cleanup(context, &history, args)?;
    let unknown: Vec<&Garbage> =
        found.leftovers.iter().filter(|one| one.kind == Kind::UnknownTrial).collect();
    if !unknown.is_empty() && !args.orphans {
        let bytes = store::freed_bytes(unknown.iter().map(|one| &one.path));
        let (what, reason) =
            (report::counted_kind(Kind::UnknownTrial, unknown.len()), "they may be the only copy");
        found.kept.push(RetainedFile {
            item: what,
            reason: format!("{reason}; --orphans removes them"),
            bytes: Some(bytes),
        });
        found.leftovers.retain(|one| one.kind != Kind::UnknownTrial);
    } else if !unknown.is_empty() && !args.dry_run {
        let size = Bytes(store::freed_bytes(unknown.iter().map(|one| &one.path)));
        let what = report::counted_kind(Kind::UnknownTrial, unknown.len());
        if !confirm(context, &format!("remove {what} ({size})"), args.yes)? {
            context.out.say("nothing was removed");
            return Ok(ExitReason::Done);
        }
    }
    if !args.dry_run {
        remove(&mut found)?;
    }
    report::print_report(context, &found, args.dry_run)?;
    if args.dry_run && !found.leftovers.is_empty() {
        context.out.next(if args.orphans { "dtrain gc --orphans" } else { "dtrain gc" });
    }
    Ok(ExitReason::Done)
}

fn plan_cleanup(context: &Context, history: &History, args: &GcArgs) -> Result<CleanupPlan, CommandError> {
    let activity = |id: &_| trials::activity(context, id);
    let mut leftovers = store::garbage_of_trials(&context.home, history, &activity, args.keep_last)
        .map_err(|error| history_failure(&error))?;
    let mut kept = Vec::new();
    let sent = sent_programs();
    let has_copies = [&sent, &context.home.path().join("bin")].into_iter().any(|folder| folder.is_dir());
    if has_copies {
        let (programs, reason) = store::unused_programs(&context.home, &sent, &own_digest()?);
        leftovers.extend(programs);
        let what = || "copies of dtrain for Slurm jobs".to_owned();
        kept.extend(reason.map(|reason| RetainedFile { item: what(), reason, bytes: None }));
    }
    match tokens::leftovers(context, history)? {
        Ok(tokens) => leftovers.extend(tokens),
        Err(reason) => kept.push(RetainedFile { item: "tokens".to_owned(), reason, bytes: None }),
    }
    Ok(CleanupPlan { leftovers, kept })
}

/// Returns the folder of the dtrain executables that controllers on other machines sent to this one.
fn sent_programs() -> PathBuf {
    let home = std::env::var_os("HOME").unwrap_or_default();
    Path::new(&home).join(".cache/dtrain/bin")
}

fn own_digest() -> Result<String, CommandError> {
    let program = crate::this_host::program()?;
    let digest = ProgramDigest::of(&program).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot read {}", program.display()))
            .cause(error.to_string())
    })?;
    Ok(digest.to_string())
}

/// Removes the files of a plan; those that came into use meanwhile are kept.
fn remove(found: &mut CleanupPlan) -> Result<(), CommandError> {
    let mut gone = Vec::new();
    for leftover in found.leftovers.drain(..) {
        let is_gone = match leftover.kind {
            Kind::Tokens => dtrain_worker::data::discard_cached(&leftover.path)
                .map_err(|error| CommandError::of(ExitReason::Infrastructure, &error))?,
            _ => store::remove_garbage(&leftover).map_err(|error| removal_failed(&error))?,
        };
        if is_gone {
            gone.push(leftover);
        } else {
            let what = leftover.path.display().to_string();
            found.kept.push(RetainedFile { item: what, reason: "it is in use now".to_owned(), bytes: None });
        }
    }
    found.leftovers = gone;
    Ok(())
}

fn removal_failed(error: &RemoveError) -> CommandError {
    CommandError::of(ExitReason::Infrastructure, error).hint("`dtrain doctor` checks the state folder")
}
