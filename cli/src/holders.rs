//! Who holds the checkpoints of a trial: this machine, or the hosts that it ran on.

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::render::checkpoint::Transfer;
use crate::{hosts, trials};
use dtrain_protocol::{StepId, TrialId};
use dtrain_runner::checkpoints::{self, Here, Holder, Inventory, pull};
use dtrain_runner::files;
use dtrain_runner::launch::relay::{RemoteHost, There};
use dtrain_runner::ledger::{Checkpoint, Trial};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A trial, and who holds its checkpoints.
pub(crate) struct Kept {
    pub(crate) trial: Trial,
    /// Those of a trial on hosts; none when it is on this machine.
    hosts: Vec<RemoteHost>,
}

impl Kept {
    /// The trial that the user typed.
    pub(crate) fn of(context: &Context, name: &str) -> Result<Self, Failure> {
        let history = trials::read_history(context)?;
        Self::of_trial(context, trials::trial(context, &history, name)?)
    }

    fn of_trial(context: &Context, trial: Trial) -> Result<Self, Failure> {
        let hosts = hosts::of_trial(context, &trial)?;
        Ok(Self { trial, hosts })
    }

    fn id(&self) -> TrialId {
        self.trial.row.id.clone()
    }

    pub(crate) fn holders(&mut self, context: &Context) -> Vec<Box<dyn Holder + '_>> {
        let id = self.id();
        if self.hosts.is_empty() {
            return vec![Box::new(Here::new(context.home.trial(&id)))];
        }
        self.hosts.iter_mut().map(|host| Box::new(There::new(host, &id)) as Box<dyn Holder>).collect()
    }

    /// The checkpoints that no longer count, by the name of their folder, each with why not.
    pub(crate) fn refused(&self) -> BTreeMap<String, String> {
        let name = |folder: &PathBuf| Some(folder.file_name()?.to_str()?.to_owned());
        let refused = self.trial.checkpoints.iter();
        refused.filter_map(|known| Some((name(&known.folder)?, known.refused.clone()?))).collect()
    }
}

/// Asks all holders what they have; says which could not be asked.
pub(crate) fn inventory(
    context: &Context,
    holders: &mut [Box<dyn Holder + '_>],
) -> Result<Inventory, Failure> {
    let inventory = Inventory::take(holders)
        .map_err(|reason| Failure::new(Exit::Infrastructure, "nobody tells of checkpoints").cause(reason))?;
    for (holder, reason) in &inventory.away {
        context.out.say(&format!("{holder} cannot be reached, so its files are not included: {reason}"));
    }
    Ok(inventory)
}

/// The newest intact checkpoint of a trial, or that of `step`, in a folder of this machine: copied from the hosts that have it where it
/// is on other hosts.
pub(crate) fn checkpoint_here(
    context: &Context,
    trial: &Trial,
    step: Option<StepId>,
) -> Result<Checkpoint, Failure> {
    let label = &trial.row.label;
    let is_wanted =
        |saved: &&Checkpoint| saved.refused.is_none() && step.is_none_or(|step| saved.step == step);
    let wanted: Vec<Checkpoint> = trial.checkpoints.iter().rev().filter(is_wanted).cloned().collect();
    let own = context.home.trial(&trial.row.id).checkpoints();
    let here = |saved: &Checkpoint| {
        let copy = saved.folder.file_name().map(|name| own.join(name));
        let folder = std::iter::once(saved.folder.clone()).chain(copy);
        let folder = folder.into_iter().find(|folder| checkpoints::verify(folder).is_ok())?;
        Some(Checkpoint { folder, ..saved.clone() })
    };
    let none = || {
        let of = step.map_or(String::new(), |step| format!(" of step {step}"));
        Failure::new(Exit::Usage, format!("{label} has no checkpoint{of}"))
            .hint(format!("`dtrain checkpoint ls {label}` lists what there is"))
    };
    let newest = wanted.first().ok_or_else(none)?;
    if let Some(found) = here(newest) {
        return Ok(found);
    }
    let mut kept = Kept::of_trial(context, trial.clone())?;
    if kept.hosts.is_empty() {
        return wanted.iter().find_map(here).ok_or_else(none);
    }
    let mut holders = kept.holders(context);
    let inventory = inventory(context, &mut holders)?;
    let mut reasons = Vec::new();
    for saved in &wanted {
        let Some(name) = saved.folder.file_name().and_then(|name| name.to_str()) else { continue };
        let to = own.join(name);
        files::make_folder(&own)
            .map_err(|error| Failure::new(Exit::Infrastructure, format!("{}: {error}", own.display())))?;
        let mut transfer = Transfer::new(&context.out, format!("copying step {} of {label}", saved.step));
        let copied = pull(&mut holders, &inventory, name, &to, &mut |done, total| transfer.tell(done, total));
        transfer.end();
        match copied {
            Ok(()) => return Ok(Checkpoint { folder: to, ..saved.clone() }),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.into_iter().fold(none(), Failure::cause))
}
