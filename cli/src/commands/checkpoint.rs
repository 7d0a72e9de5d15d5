//! `dtrain checkpoint`: lists, verifies and copies checkpoints.

use crate::args::{CheckpointCommand, PullArgs, TrialArgs, VerifyArgs};
use crate::checkpoint_sources::{TrialCheckpoints, UnreachableHost, inventory};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::engine_checkpoints;
use crate::exit_code::ExitReason;
use crate::render::checkpoint::{TransferBar, checkpoints, findings};
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_runner::checkpoints::{
    CheckpointInfo, CheckpointStore, CheckpointWriter, EngineInventory, Inventory, State, VerificationReport,
    pull, remove_unfinished, verify_all_copies,
};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Runs `dtrain checkpoint ls`, `verify` or `pull`.
pub(crate) fn run(context: &Context, command: &CheckpointCommand) -> CommandResult {
    match command {
        CheckpointCommand::Ls(args) => ls(context, args),
        CheckpointCommand::Verify(args) => verify(context, args),
        CheckpointCommand::Pull(args) => copy(context, args),
    }
}

#[derive(Serialize)]
struct ListedCheckpoints<'a> {
    trial: &'a str,
    checkpoints: Vec<CheckpointInfo>,
    unreachable: Vec<UnreachableHost>,
}

fn ls(context: &Context, args: &TrialArgs) -> CommandResult {
    let mut kept = TrialCheckpoints::of(context, &args.trial)?;
    let (label, refused) = (kept.trial.row.label.clone(), kept.refused());
    let writer = kept.writer();
    let mut holders = kept.holders(context);
    let (listed, away) = match writer {
        CheckpointWriter::Worker => {
            let inventory = inventory(context, &mut holders)?;
            (inventory.list(&mut holders, &refused), inventory.away)
        }
        CheckpointWriter::Engine => {
            let inventory = engine_checkpoints::inventory(context, &mut holders)?;
            (inventory.list(&holders), inventory.away)
        }
    };
    if context.out.json {
        let unreachable = away.into_iter().map(UnreachableHost::from).collect();
        context
            .out
            .json("checkpoints", &ListedCheckpoints { trial: &label, checkpoints: listed, unreachable })?;
        return Ok(ExitReason::Done);
    }
    if listed.is_empty() {
        context.out.say(&format!("{label} has no checkpoint"));
    } else {
        context.out.data(&checkpoints(&listed, context.out.style()))?;
        context.out.next(&format!("dtrain checkpoint verify {label}"));
    }
    Ok(ExitReason::Done)
}

/// The checkpoints of a trial in all stores, by their writer.
enum AnyInventory {
    Worker(Inventory),
    Engine(EngineInventory),
}

fn verify(context: &Context, args: &VerifyArgs) -> CommandResult {
    let mut kept = TrialCheckpoints::of(context, &args.trial.trial)?;
    let (label, refused) = (kept.trial.row.label.clone(), kept.refused());
    let writer = kept.writer();
    let mut holders = kept.holders(context);
    let found = match writer {
        CheckpointWriter::Worker => AnyInventory::Worker(inventory(context, &mut holders)?),
        CheckpointWriter::Engine => {
            AnyInventory::Engine(engine_checkpoints::inventory(context, &mut holders)?)
        }
    };
    let listed = match &found {
        AnyInventory::Worker(inventory) => inventory.list(&mut holders, &refused),
        AnyInventory::Engine(inventory) => inventory.list(&holders),
    };
    let wanted: Vec<&CheckpointInfo> = match args.step {
        Some(step) => vec![find_step(&listed, step, &label)?],
        None => listed.iter().filter(|one| is_resumable(one.state)).collect(),
    };
    if wanted.is_empty() {
        return Err(no_checkpoints(&label));
    }
    let mut all: Vec<VerificationReport> = Vec::new();
    for one in wanted {
        let mut transfer = TransferBar::new(&context.out, format!("reading step {}", one.step));
        let mut read = |done, total| transfer.set_done(done, total);
        let found = match &found {
            AnyInventory::Worker(inventory) => {
                verify_all_copies(&mut holders, inventory, &one.name, &mut read)
            }
            AnyInventory::Engine(inventory) => inventory.verify(&mut holders, one.step, &mut read),
        };
        transfer.end();
        all.push(found.map_err(|reason| unreadable(&label, &reason))?);
    }
    if context.out.json {
        #[derive(Serialize)]
        struct IntegrityReport<'a> {
            trial: &'a str,
            checkpoints: &'a [VerificationReport],
        }
        context.out.json("verified", &IntegrityReport { trial: &label, checkpoints: &all })?;
    } else {
        all.iter().try_for_each(|found| context.out.data(&findings(found)))?;
    }
    let lost: Vec<&VerificationReport> = all.iter().filter(|found| !found.lost.is_empty()).collect();
    if lost.is_empty() {
        return Ok(ExitReason::Done);
    }
    let names: Vec<&str> = lost.iter().map(|found| found.name.as_str()).collect();
    Err(CommandError::new(
        ExitReason::Infrastructure,
        format!("{label}: no intact copy of {}", names.join(", ")),
    )
    .hint(format!("`dtrain resume {label}` continues from the newest intact checkpoint")))
}

#[derive(Serialize)]
struct PulledCheckpoint<'a> {
    trial: &'a str,
    checkpoint: &'a str,
    step: u64,
    bytes: u64,
    folder: &'a PathBuf,
}

fn copy(context: &Context, args: &PullArgs) -> CommandResult {
    if args.to.symlink_metadata().is_ok() {
        return Err(CommandError::new(ExitReason::Usage, format!("{} already exists", args.to.display()))
            .hint("name a folder that does not exist yet"));
    }
    let mut kept = TrialCheckpoints::of(context, &args.trial.trial)?;
    if kept.writer() == CheckpointWriter::Engine {
        return copy_of_engine(context, args, kept);
    }
    let mut recorded = kept.recorded_names();
    let (label, refused) = (kept.trial.row.label.clone(), kept.refused());
    let mut holders = kept.holders(context);
    let inventory = inventory(context, &mut holders)?;
    if !inventory.away.is_empty() {
        // A missing checkpoint may be on a host that does not answer.
        recorded.clear();
    }
    let listed = inventory.list(&mut holders, &refused);
    let wanted: Vec<&CheckpointInfo> = match args.step {
        Some(step) => vec![find_step(&listed, step, &label)?],
        None => listed.iter().rev().filter(|one| one.state == State::Committed).collect(),
    };
    let passed = match args.step {
        Some(_) => Vec::new(),
        None => skipped_checkpoints(&recorded, &listed, wanted.first().copied()),
    };
    for (step, state) in &passed {
        context.out.say(&format!("the checkpoint at step {step} of {label} {state}"));
    }
    let newest = if passed.is_empty() { wanted.first().copied() } else { None };
    let one = copy_newest_intact(context, &mut holders, &inventory, (&label, newest), &wanted, &args.to)?;
    let Some(one) = one else {
        let mut others = listed.iter().rev().filter(|one| one.state == State::Committed);
        let intact = others.find(|one| !is_damaged(&mut holders, &inventory, &one.name));
        let is_none_there = wanted.is_empty() && passed.is_empty();
        return Err(if is_none_there { no_checkpoints(&label) } else { no_intact(&label, intact) });
    };
    print_copied(context, &label, one, &args.to)
}

/// Copies a checkpoint of a training engine.
fn copy_of_engine(context: &Context, args: &PullArgs, mut kept: TrialCheckpoints) -> CommandResult {
    let label = kept.trial.row.label.clone();
    let mut holders = kept.holders(context);
    let inventory = engine_checkpoints::inventory(context, &mut holders)?;
    let listed = inventory.list(&holders);
    let one = match args.step {
        Some(step) => find_step(&listed, step, &label)?,
        None => {
            let newest = listed.iter().rev().find(|one| one.state == State::Committed);
            newest.ok_or_else(|| no_checkpoints(&label))?
        }
    };
    let mut transfer = TransferBar::new(&context.out, format!("copying step {}", one.step));
    let copied =
        inventory.pull(&mut holders, one.step, &args.to, &mut |done, total| transfer.set_done(done, total));
    transfer.end();
    copied.map_err(|reason| {
        let what = format!("{} of {label} cannot be copied", one.name);
        CommandError::new(ExitReason::Infrastructure, what).cause(reason)
    })?;
    print_copied(context, &label, one, &args.to)
}

/// Prints where a checkpoint was copied to.
fn print_copied(context: &Context, label: &str, one: &CheckpointInfo, to: &PathBuf) -> CommandResult {
    if context.out.json {
        let (checkpoint, step, bytes) = (one.name.as_str(), one.step, one.bytes);
        context
            .out
            .json("pulled", &PulledCheckpoint { trial: label, checkpoint, step, bytes, folder: to })?;
    } else {
        context.out.say(&format!("step {} of {label} lies in {}", one.step, to.display()));
    }
    Ok(ExitReason::Done)
}

/// Returns step and reason of each checkpoint that cannot be copied and is newer than `first`, newest first.
/// Without `first`, returns all of them.
///
/// `recorded` are the folder names of the checkpoints in the history, oldest first.
fn skipped_checkpoints(
    recorded: &[String],
    listed: &[CheckpointInfo],
    first: Option<&CheckpointInfo>,
) -> Vec<(u64, String)> {
    let age = |name: &str| parse_folder_name(name).map(|(step, attempt)| (attempt, step));
    let is_newer = |name: &str| first.is_none_or(|first| age(name) > age(&first.name));
    let damaged = listed.iter().filter(|one| matches!(one.state, State::Damaged | State::Refused));
    let damaged = damaged.map(|one| {
        let reason = one.reason.as_deref().unwrap_or("it is not what was written");
        (one.name.as_str(), format!("is damaged ({reason})"))
    });
    let is_there = |name: &str| listed.iter().any(|one| one.name == name && one.state != State::Partial);
    // If none is left, the newest missing one suffices: retention removes older ones.
    let missing = recorded.iter().rev().filter(|name| !is_there(name));
    let missing = missing.take(if first.is_none() { 1 } else { usize::MAX });
    let missing = missing.map(|name| (name.as_str(), "is missing".to_owned()));
    let mut all: Vec<(&str, String)> = damaged.chain(missing).filter(|(name, _)| is_newer(name)).collect();
    all.sort_by_key(|(name, _)| std::cmp::Reverse(age(name)));
    let step = |name: &str| parse_folder_name(name).map_or(0, |(step, _)| step.0);
    all.into_iter().map(|(name, state)| (step(name), state)).collect()
}

/// Copies the first undamaged checkpoint of `wanted` and reports the damaged ones; `None` if all are damaged.
/// Says so if the copied checkpoint is not `newest`.
fn copy_newest_intact<'a>(
    context: &Context,
    holders: &mut [Box<dyn CheckpointStore + '_>],
    inventory: &Inventory,
    (label, newest): (&str, Option<&CheckpointInfo>),
    wanted: &[&'a CheckpointInfo],
    to: &Path,
) -> Result<Option<&'a CheckpointInfo>, CommandError> {
    for one in wanted {
        let mut transfer = TransferBar::new(&context.out, format!("copying step {}", one.step));
        let copied =
            pull(holders, inventory, &one.name, to, &mut |done, total| transfer.set_done(done, total));
        transfer.end();
        let Err(reason) = copied else {
            if newest.is_none_or(|newest| newest.name != one.name) {
                context.out.say(&format!("going back to step {}", one.step));
            }
            return Ok(Some(one));
        };
        let failed = |reason: String| {
            let what = format!("{} of {label} cannot be copied", one.name);
            CommandError::new(ExitReason::Infrastructure, what).cause(reason)
        };
        if !is_damaged(holders, inventory, &one.name) {
            return Err(failed(reason));
        }
        remove_unfinished(to).map_err(failed)?;
        context.out.say(&format!("the checkpoint at step {} of {label} is damaged ({reason})", one.step));
    }
    Ok(None)
}

/// Returns `true` if some part of checkpoint `name` has no intact copy on the hosts that answered.
fn is_damaged(holders: &mut [Box<dyn CheckpointStore + '_>], inventory: &Inventory, name: &str) -> bool {
    let all_answer = Inventory::collect(holders).is_ok_and(|now| now.away.len() <= inventory.away.len());
    let examined = verify_all_copies(holders, inventory, name, &mut |_, _| ());
    all_answer && examined.is_ok_and(|found| !found.lost.is_empty())
}

/// Builds the error for the case that no requested checkpoint is intact; `intact` is the newest intact one of
/// the trial, if any.
fn no_intact(label: &str, intact: Option<&CheckpointInfo>) -> CommandError {
    let hint = match intact {
        Some(CheckpointInfo { step, .. }) => {
            format!("the newest intact checkpoint is of step {step}: {label}@{step}")
        }
        None => format!("`dtrain checkpoint verify {label}` names what is damaged"),
    };
    CommandError::new(ExitReason::Infrastructure, format!("{label} has no intact checkpoint to copy"))
        .hint(hint)
}

/// Returns `true` if training can resume from a checkpoint in this state, provided its parts are complete.
fn is_resumable(state: State) -> bool {
    matches!(state, State::Committed | State::Damaged)
}

/// Finds the newest committed checkpoint at `step`.
fn find_step<'a>(
    listed: &'a [CheckpointInfo],
    step: u64,
    label: &str,
) -> Result<&'a CheckpointInfo, CommandError> {
    let found = listed.iter().rev().find(|one| one.step == step && one.state != State::Partial);
    found.ok_or_else(|| {
        let steps: Vec<String> =
            listed.iter().filter(|one| one.state != State::Partial).map(|one| one.step.to_string()).collect();
        let there = if steps.is_empty() { "none".to_owned() } else { steps.join(", ") };
        CommandError::new(ExitReason::Usage, format!("{label} has no checkpoint of step {step}"))
            .cause(format!("its checkpoints: {there}"))
    })
}

fn no_checkpoints(label: &str) -> CommandError {
    CommandError::new(ExitReason::Usage, format!("{label} has no committed checkpoint"))
        .hint(format!("`dtrain checkpoint ls {label}` lists all its checkpoints"))
}

fn unreadable(label: &str, reason: &str) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, format!("the checkpoints of {label} cannot be read"))
        .cause(reason)
}
