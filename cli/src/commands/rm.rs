//! `dtrain rm`: removes trials.

use crate::args::RmArgs;
use crate::checkpoint_sources::UnreachableHost;
use crate::command_error::{CommandError, CommandResult};
use crate::confirm::confirm;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::hosts;
use crate::render::number::counted;
use crate::run_trial::record_finished_trials;
use crate::trials::{self, history_failure};
use dtrain_protocol::TrialId;
use dtrain_recipes::Bytes;
use dtrain_runner::DriveError;
use dtrain_runner::ledger::{History, TrialDetails};
use dtrain_runner::store::{self, RemoveError};
use serde::Serialize;
use std::error::Error;

/// JSON of one deleted trial.
#[derive(Serialize)]
struct DeletedTrial {
    trial: TrialId,
    label: String,
    /// Number of bytes freed, on this machine and on other hosts.
    bytes: u64,
    /// Hosts that did not answer and still hold files of the trial.
    unreachable: Vec<UnreachableHost>,
}

#[derive(Serialize)]
struct RemovalReport {
    bytes: u64,
    trials: Vec<DeletedTrial>,
}

/// Removes trials, with their files on all hosts.
pub(crate) fn run(context: &Context, args: &RmArgs) -> CommandResult {
    record_finished_trials(context);
    // Looked up before opening for writing, so that a missing history is not created.
    drop(trials::read_history(context)?);
    let (mut history, is_full) = open_for_removal(context)?;
    let wanted = removable_trials(context, &history, &args.trials)?;
    let labels: Vec<&str> = wanted.iter().map(|trial| trial.row.label.as_str()).collect();
    let folders = wanted.iter().flat_map(|trial| store::folders(&context.home, &trial.row.id));
    let size = Bytes(store::freed_bytes(folders));
    let what = format!("remove {} ({size} on this machine)", labels.join(", "));
    if !confirm(context, &what, args.yes)? {
        context.out.say("nothing was removed");
        return Ok(ExitReason::Done);
    }
    if args.yes {
        context.out.say(&format!("removing {} ({size} on this machine)", labels.join(", ")));
    }
    if is_full {
        empty_trial_folders(context, &wanted)?;
    }
    let mut report = RemovalReport { bytes: 0, trials: Vec::new() };
    for trial in &wanted {
        let gone = remove(context, &mut history, trial)?;
        report.bytes += gone.bytes;
        context.out.say(&format!("removed {}: {} freed", gone.label, Bytes(gone.bytes)));
        for UnreachableHost { host, reason } in &gone.unreachable {
            context.out.say(&format!(
                "{}: {host} cannot be reached, so what it has of {} stays there, in trials/{} of its state folder: {reason}",
                context.out.paint.yellow("warning"),
                gone.label,
                gone.trial
            ));
        }
        report.trials.push(gone);
    }
    if context.out.json {
        context.out.json("removed", &report)?;
    } else if wanted.len() > 1 {
        let number = counted(wanted.len() as u64, "trial");
        context.out.say(&format!("{number} removed, {} freed", Bytes(report.bytes)));
    }
    context.out.next("dtrain history");
    Ok(ExitReason::Done)
}

/// Opens the history for writing; exclusively, and with `true`, if the disk is full.
fn open_for_removal(context: &Context) -> Result<(History, bool), CommandError> {
    let path = context.home.history();
    let opened = match History::open(&path) {
        Err(error) if error.is_disk_full() => History::open_alone(&path).map(|history| (history, true)),
        opened => opened.map(|history| (history, false)),
    };
    opened.map_err(|error| history_failure(&error))
}

/// Empties the folders of all trials before any row is deleted, which may need more room than one trial
/// frees.
fn empty_trial_folders(context: &Context, wanted: &[TrialDetails]) -> Result<(), CommandError> {
    let ids: Vec<TrialId> = wanted.iter().map(|trial| trial.row.id.clone()).collect();
    let labels: Vec<&str> = wanted.iter().map(|trial| trial.row.label.as_str()).collect();
    store::empty_all(&context.home, &ids, &|id| trials::activity(context, id))
        .map_err(|error| removal_failed(&labels.join(", "), &error))
}

/// Returns the trials that the user named, each once. `Err` unless all of them can be removed.
fn removable_trials(
    context: &Context,
    history: &History,
    names: &[String],
) -> Result<Vec<TrialDetails>, CommandError> {
    let mut wanted: Vec<TrialDetails> = Vec::new();
    for name in names {
        let trial = trials::trial(context, history, name)?;
        if wanted.iter().all(|known| known.row.id != trial.row.id) {
            wanted.push(trial);
        }
    }
    for trial in &wanted {
        let (id, label) = (&trial.row.id, &trial.row.label);
        if trial.row.status.is_live() {
            let processes = dtrain_runner::driver::processes(&context.home, id);
            let error = RemoveError::Running { processes };
            return Err(removal_failed(label, &error));
        }
        let children = history.children(id).map_err(|error| history_failure(&error))?;
        let is_removed_too = |child: &TrialId| wanted.iter().any(|other| other.row.id == *child);
        let needs = children.iter().find(|child| !child.is_independent && !is_removed_too(&child.trial));
        if let Some(child) = needs {
            let what = format!("{label} has a checkpoint that {} has yet to begin with", child.label);
            return Err(CommandError::new(ExitReason::Usage, what).hint(format!(
                "`dtrain resume {0}` lets it take that over; `dtrain rm {0} {label}` removes both",
                child.label
            )));
        }
    }
    Ok(wanted)
}

fn remove(
    context: &Context,
    history: &mut History,
    trial: &TrialDetails,
) -> Result<DeletedTrial, CommandError> {
    let (id, label) = (&trial.row.id, &trial.row.label);
    let (mut hosts, away) = hosts::connect_hosts_of_trial_and_report(context, trial)?;
    let mut there = 0;
    let elsewhere = || {
        for host in &mut hosts {
            there += host.remove(id).map_err(|reason| format!("{}: {reason}", host.name))?;
        }
        Ok(())
    };
    let activity = |id: &TrialId| trials::activity(context, id);
    let removed = store::remove(&context.home, history, id, &activity, elsewhere)
        .map_err(|error| removal_failed(label, &error))?;
    Ok(DeletedTrial {
        trial: id.clone(),
        label: label.clone(),
        bytes: removed.bytes + there,
        unreachable: away.into_iter().map(UnreachableHost::from).collect(),
    })
}

fn removal_failed(label: &str, error: &RemoveError) -> CommandError {
    match error {
        RemoveError::Running { .. } | RemoveError::Drive(DriveError::Busy { .. }) => {
            CommandError::new(ExitReason::Usage, format!("{label} cannot be removed: {error}"))
                .hint(format!("`dtrain stop {label}` stops it"))
        }
        RemoveError::Drive(error) => {
            let failure =
                CommandError::new(ExitReason::Infrastructure, format!("{label} cannot be removed: {error}"));
            match error.source() {
                Some(source) => failure.cause(source.to_string()),
                None => failure,
            }
        }
        RemoveError::Ledger(error) if error.is_disk_full() => history_failure(error)
            .hint(format!("free some space on that disk, then `dtrain rm {label}` removes the rest")),
        RemoveError::Ledger(error) => history_failure(error),
        RemoveError::Host(reason) => {
            CommandError::new(ExitReason::Infrastructure, format!("{label} is not removed: a host refuses"))
                .cause(reason.clone())
                .hint(format!("`dtrain rm {label}` tries again"))
        }
        RemoveError::Folder { .. } => {
            CommandError::of(ExitReason::Infrastructure, error).hint("`dtrain gc` removes what is left of it")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::ColorMode;
    use std::io;

    #[test]
    fn what_keeps_a_trial_from_being_removed_is_named() {
        let words =
            |error: DriveError| removal_failed("a-1", &RemoveError::Drive(error)).render(ColorMode::plain());
        let source = io::Error::new(io::ErrorKind::PermissionDenied, "spool is a symbolic link to /etc");
        let said = words(DriveError::Folder { doing: "lock", path: "/s/lock".into(), source });
        assert!(said.contains("spool is a symbolic link") && !said.contains("dtrain stop"), "{said}");
        let said = words(DriveError::Busy { trial: TrialId("x".into()), process: 7 });
        assert!(said.contains("`dtrain stop a-1` stops it"), "{said}");
    }
}
