//! `dtrain gc`.

mod report;
mod tokens;

use crate::args::GcArgs;
use crate::confirm::confirm;
use crate::context::Context;
use crate::drive::catch_up;
use crate::failure::{Exit, Failure, Outcome};
use crate::trials::{self, ledger};
use dtrain_recipes::Bytes;
use dtrain_runner::ledger::History;
use dtrain_runner::store::{self, Kind, Leftover, RemoveError};
use dtrain_runner::transport::ProgramDigest;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What is not removed although it may not be needed.
#[derive(Serialize)]
struct Kept {
    what: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// What nothing needs, and what stays.
struct Found {
    leftovers: Vec<Leftover>,
    kept: Vec<Kept>,
}

/// Removes what nothing needs any more.
pub(crate) fn run(context: &Context, args: &GcArgs) -> Outcome {
    catch_up(context);
    let history = trials::read_history(context)?;
    let mut found = find(context, &history, args)?;
    let unknown: Vec<&Leftover> =
        found.leftovers.iter().filter(|one| one.kind == Kind::UnknownTrial).collect();
    if !unknown.is_empty() && !args.orphans {
        let bytes = store::freed(unknown.iter().map(|one| &one.path));
        let (what, reason) =
            (report::counted_kind(Kind::UnknownTrial, unknown.len()), "they may be the only copy");
        found.kept.push(Kept {
            what,
            reason: format!("{reason}; --orphans removes them"),
            bytes: Some(bytes),
        });
        found.leftovers.retain(|one| one.kind != Kind::UnknownTrial);
    } else if !unknown.is_empty() && !args.dry_run {
        let size = Bytes(store::freed(unknown.iter().map(|one| &one.path)));
        let what = report::counted_kind(Kind::UnknownTrial, unknown.len());
        if !confirm(context, &format!("remove {what} ({size})"), args.yes)? {
            context.out.say("nothing was removed");
            return Ok(Exit::Done);
        }
    }
    if !args.dry_run {
        remove(&mut found)?;
    }
    report::tell(context, &found, args.dry_run)?;
    if args.dry_run && !found.leftovers.is_empty() {
        context.out.next(if args.orphans { "dtrain gc --orphans" } else { "dtrain gc" });
    }
    Ok(Exit::Done)
}

fn find(context: &Context, history: &History, args: &GcArgs) -> Result<Found, Failure> {
    let is_alive = |id: &_| trials::is_alive(context, id);
    let mut leftovers = store::of_trials(&context.home, history, &is_alive, args.keep_last)
        .map_err(|error| ledger(&error))?;
    let mut kept = Vec::new();
    let sent = sent_programs();
    let has_copies = [&sent, &context.home.path().join("bin")].into_iter().any(|folder| folder.is_dir());
    if has_copies {
        let (programs, reason) = store::programs(&context.home, &sent, &own_digest()?);
        leftovers.extend(programs);
        let what = || "copies of dtrain for Slurm jobs".to_owned();
        kept.extend(reason.map(|reason| Kept { what: what(), reason, bytes: None }));
    }
    match tokens::leftovers(context, history)? {
        Ok(tokens) => leftovers.extend(tokens),
        Err(reason) => kept.push(Kept { what: "tokens".to_owned(), reason, bytes: None }),
    }
    Ok(Found { leftovers, kept })
}

/// Where controllers on other machines put their programs on this one.
fn sent_programs() -> PathBuf {
    let home = std::env::var_os("HOME").unwrap_or_default();
    Path::new(&home).join(".cache/dtrain/bin")
}

fn own_digest() -> Result<String, Failure> {
    let program = crate::hosts::program()?;
    let digest = ProgramDigest::of(&program).map_err(|error| {
        Failure::new(Exit::Infrastructure, format!("cannot read {}", program.display()))
            .cause(error.to_string())
    })?;
    Ok(digest.to_string())
}

/// Removes what was found; what is used again meanwhile stays.
fn remove(found: &mut Found) -> Result<(), Failure> {
    let mut gone = Vec::new();
    for leftover in found.leftovers.drain(..) {
        let is_gone = match leftover.kind {
            Kind::Tokens => dtrain_worker::data::discard_cached(&leftover.path)
                .map_err(|error| Failure::of(Exit::Infrastructure, &error))?,
            _ => store::clear(&leftover).map_err(|error| refused(&error))?,
        };
        if is_gone {
            gone.push(leftover);
        } else {
            let what = leftover.path.display().to_string();
            found.kept.push(Kept { what, reason: "it is in use now".to_owned(), bytes: None });
        }
    }
    found.leftovers = gone;
    Ok(())
}

fn refused(error: &RemoveError) -> Failure {
    Failure::of(Exit::Infrastructure, error).hint("`dtrain doctor` checks the state folder")
}
