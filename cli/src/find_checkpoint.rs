//! Search for an intact checkpoint of a trial, the newest or that of a given step: its files must match their
//! checksums.

use crate::checkpoint_sources::{CheckpointSelector, TrialCheckpoints, inventory};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::engine_checkpoints;
use crate::exit_code::ExitReason;
use crate::render::checkpoint::TransferBar;
use dtrain_protocol::StepId;
use dtrain_runner::checkpoints::{self, CheckpointStore, Inventory, pull};
use dtrain_runner::ledger::{Checkpoint, TrialDetails};
use std::path::{Path, PathBuf};

/// Returns an intact checkpoint of a trial on this machine; copies it from the trial's hosts if needed.
///
/// Reads the whole checkpoint and compares it with its checksums. Reports newer checkpoints that are damaged.
///
/// A checkpoint of a training engine is converted, and has the weights alone.
///
/// Returns `Err` if there is no such checkpoint or it is damaged; the error names the newest intact one.
pub(crate) fn find_intact(
    context: &Context,
    trial: &TrialDetails,
    wanted: CheckpointSelector,
) -> Result<Checkpoint, CommandError> {
    if trial.is_of_engine() {
        return engine_checkpoints::converted(context, trial, wanted);
    }
    let (included, others): (Vec<&Checkpoint>, Vec<&Checkpoint>) =
        trial.checkpoints.iter().rev().partition(|saved| wanted.includes(saved.step));
    let mut search = CheckpointSearch { context, trial, damaged: Vec::new(), missing: Vec::new() };
    let label = &trial.row.label;
    if let Some(found) = search.newest(&included)? {
        let damaged = search.damaged.iter();
        let damaged = damaged.map(|(step, reason)| (step, format!("is damaged ({reason})")));
        let missing = search.missing.iter().map(|step| (step, "is missing".to_owned()));
        for (step, state) in damaged.chain(missing) {
            let what = format!("the checkpoint at step {step} of {label} {state}");
            context.out.say(&format!("{what}; going back to step {}", found.step));
        }
        return Ok(found);
    }
    let mut damaged = std::mem::take(&mut search.damaged);
    // Older checkpoints may have been removed by the retention policy.
    if let (CheckpointSelector::Newest | CheckpointSelector::UpTo(_), Some(step)) =
        (wanted, search.missing.first())
    {
        damaged.insert(0, (*step, "its folder is missing".to_owned()));
    }
    let other = match wanted {
        CheckpointSelector::At(_) => search.newest(&others)?,
        CheckpointSelector::Newest | CheckpointSelector::UpTo(_) => None,
    };
    Err(no_intact_checkpoint(label, wanted, damaged, other.as_ref()))
}

/// Builds the error for the case that no checkpoint in `wanted` is intact; `other` is the newest intact one
/// of the rest.
fn no_intact_checkpoint(
    label: &str,
    wanted: CheckpointSelector,
    damaged: Vec<(StepId, String)>,
    other: Option<&Checkpoint>,
) -> CommandError {
    let hint = match other {
        Some(other) => format!("the newest intact checkpoint is of step {0}: {label}@{0}", other.step),
        None => format!("`dtrain checkpoint ls {label}` lists what there is"),
    };
    let failure = match (wanted, damaged.is_empty()) {
        (CheckpointSelector::At(step), true) => {
            CommandError::new(ExitReason::Usage, format!("{label} has no checkpoint of step {step}"))
        }
        (CheckpointSelector::Newest | CheckpointSelector::UpTo(_), true) => {
            CommandError::new(ExitReason::Usage, format!("{label} has no checkpoint"))
        }
        (CheckpointSelector::At(step), false) => CommandError::new(
            ExitReason::Infrastructure,
            format!("the checkpoint at step {step} of {label} is damaged"),
        ),
        (CheckpointSelector::Newest | CheckpointSelector::UpTo(_), false) => {
            CommandError::new(ExitReason::Infrastructure, format!("{label} has no intact checkpoint"))
        }
    };
    let cause = |failure: CommandError, (step, reason)| failure.cause(format!("step {step}: {reason}"));
    damaged.into_iter().fold(failure, cause).hint(hint)
}

/// State of the search for an intact checkpoint of a trial.
struct CheckpointSearch<'a> {
    context: &'a Context,
    trial: &'a TrialDetails,
    /// Checkpoints found damaged so far, each with step and reason.
    damaged: Vec<(StepId, String)>,
    /// Steps of the checkpoints that were not found so far.
    missing: Vec<StepId>,
}

/// Result of examining one checkpoint.
enum CheckpointIntegrity {
    Intact(Checkpoint),
    Damaged(String),
    /// The folder of the checkpoint does not exist; retention removes old checkpoints.
    Missing,
}

impl CheckpointSearch<'_> {
    /// Returns the first intact checkpoint in `all`, which is ordered newest first; `None` if there is none.
    fn newest(&mut self, all: &[&Checkpoint]) -> Result<Option<Checkpoint>, CommandError> {
        let mut all = all.iter();
        // The newest is usually on this machine, so that no host is contacted.
        let Some(first) = all.next() else { return Ok(None) };
        let here = match self.here(first) {
            CheckpointIntegrity::Intact(found) => return Ok(Some(found)),
            other => other,
        };
        let context = self.context;
        let mut kept = TrialCheckpoints::of_trial(context, self.trial.clone())?;
        let is_elsewhere = kept.is_elsewhere();
        let mut holders = kept.holders(context);
        let inventory = if is_elsewhere { Some(inventory(context, &mut holders)?) } else { None };
        let mut look = |search: &Self, saved: &Checkpoint, here| match (&inventory, here) {
            (Some(inventory), CheckpointIntegrity::Damaged(_) | CheckpointIntegrity::Missing)
                if saved.refused.is_none() =>
            {
                search.copied(&mut holders, inventory, saved)
            }
            (_, here) => Ok(here),
        };
        let mut found = look(self, first, here)?;
        let mut step = first.step;
        loop {
            match found {
                CheckpointIntegrity::Intact(found) => return Ok(Some(found)),
                CheckpointIntegrity::Damaged(reason) => self.damaged.push((step, reason)),
                CheckpointIntegrity::Missing => self.missing.push(step),
            }
            let Some(next) = all.next() else { return Ok(None) };
            let here = self.here(next);
            found = look(self, next, here)?;
            step = next.step;
        }
    }

    /// Examines a checkpoint on this machine: in the trial's folder, then at the path that the history has.
    fn here(&self, saved: &Checkpoint) -> CheckpointIntegrity {
        if let Some(reason) = &saved.refused {
            return CheckpointIntegrity::Damaged(reason.clone());
        }
        let mut found = CheckpointIntegrity::Missing;
        for folder in self.folders(saved) {
            match self.read(&folder, saved.step) {
                Ok(()) => return CheckpointIntegrity::Intact(Checkpoint { folder, ..saved.clone() }),
                // Retention may have removed it meanwhile.
                Err(reason) if folder.is_dir() => found = CheckpointIntegrity::Damaged(reason),
                Err(_) => {}
            }
        }
        found
    }

    /// Returns the local folders that may hold a checkpoint; they differ if the state folder was moved.
    fn folders(&self, saved: &Checkpoint) -> Vec<PathBuf> {
        let own = self.own(saved).filter(|own| *own != saved.folder);
        own.into_iter()
            .chain(std::iter::once(saved.folder.clone()))
            .filter(|folder| folder.is_dir())
            .collect()
    }

    fn own(&self, saved: &Checkpoint) -> Option<PathBuf> {
        let own = self.context.home.trial(&self.trial.row.id).checkpoints();
        Some(own.join(saved.folder.file_name()?))
    }

    fn read(&self, folder: &Path, step: StepId) -> Result<(), String> {
        let mut transfer = TransferBar::new(&self.context.out, format!("reading step {step}"));
        let read = checkpoints::verify_checksums(folder, &mut |done, total| transfer.set_done(done, total));
        transfer.end();
        read.map(drop)
    }

    /// Copies a checkpoint from the hosts that have it to this machine.
    fn copied(
        &self,
        holders: &mut [Box<dyn CheckpointStore + '_>],
        inventory: &Inventory,
        saved: &Checkpoint,
    ) -> Result<CheckpointIntegrity, CommandError> {
        let name = saved.folder.file_name().and_then(|name| name.to_str());
        let (Some(to), Some(name)) = (self.own(saved), name) else { return Ok(CheckpointIntegrity::Missing) };
        if !inventory.names().iter().any(|known| known == name) {
            return Ok(CheckpointIntegrity::Missing);
        }
        let own = to.parent().unwrap_or(&to);
        dtrain_runner::files::make_folder(own).map_err(|error| {
            CommandError::new(ExitReason::Infrastructure, format!("{}: {error}", own.display()))
        })?;
        let what = format!("copying step {} of {}", saved.step, self.trial.row.label);
        let mut transfer = TransferBar::new(&self.context.out, what);
        let copied = pull(holders, inventory, name, &to, &mut |done, total| transfer.set_done(done, total));
        transfer.end();
        Ok(match copied {
            Ok(()) => CheckpointIntegrity::Intact(Checkpoint { folder: to, ..saved.clone() }),
            Err(reason) => CheckpointIntegrity::Damaged(reason),
        })
    }
}
