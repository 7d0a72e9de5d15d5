//! Stores that hold the checkpoints of a trial: this machine, or the hosts on which it ran.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::kept_connections::LentHosts;
use crate::{hosts, trials};
use dtrain_protocol::{StepId, TrialId};
use dtrain_runner::checkpoints::{CheckpointStore, CheckpointWriter, Inventory, LocalStore};
use dtrain_runner::launch::relay::RemoteStore;
use dtrain_runner::ledger::{Checkpoint, TrialDetails};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Selection of one checkpoint of a trial.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CheckpointSelector {
    /// The newest intact checkpoint.
    Newest,
    /// The newest intact checkpoint at or before this step.
    UpTo(StepId),
    /// The checkpoint of exactly this step.
    At(StepId),
}

impl CheckpointSelector {
    /// Selects the checkpoint at `step`, or for `None` the newest.
    pub(crate) fn of(step: Option<StepId>) -> Self {
        step.map_or(Self::Newest, Self::At)
    }

    pub(crate) fn includes(self, step: StepId) -> bool {
        match self {
            Self::Newest => true,
            Self::UpTo(most) => step <= most,
            Self::At(only) => step == only,
        }
    }
}

/// A host that did not answer, with the reason.
#[derive(Serialize)]
pub(crate) struct UnreachableHost {
    pub(crate) host: String,
    pub(crate) reason: String,
}

impl From<(String, String)> for UnreachableHost {
    fn from((host, reason): (String, String)) -> Self {
        Self { host, reason }
    }
}

/// A trial with the stores that hold its checkpoints.
pub(crate) struct TrialCheckpoints {
    pub(crate) trial: TrialDetails,
    /// Hosts on which the trial ran; empty if it ran on this machine.
    hosts: LentHosts,
}

impl TrialCheckpoints {
    /// Finds the trial that the user typed, and connects to the stores of its checkpoints.
    pub(crate) fn of(context: &Context, name: &str) -> Result<Self, CommandError> {
        let history = trials::read_history(context)?;
        Self::of_trial(context, trials::trial(context, &history, name)?)
    }

    /// Connects to the stores of a trial's checkpoints.
    pub(crate) fn of_trial(context: &Context, trial: TrialDetails) -> Result<Self, CommandError> {
        context.check_trial(&trial.row.id)?;
        let hosts = hosts::connect_hosts_of_trial(context, &trial)?;
        Ok(Self { trial, hosts })
    }

    /// Returns `true` if the trial's checkpoints are on other hosts.
    pub(crate) fn is_elsewhere(&self) -> bool {
        !self.hosts.is_empty()
    }

    fn id(&self) -> TrialId {
        self.trial.row.id.clone()
    }

    /// Returns the writer of the trial's checkpoints.
    pub(crate) fn writer(&self) -> CheckpointWriter {
        if self.trial.is_of_engine() { CheckpointWriter::Engine } else { CheckpointWriter::Worker }
    }

    pub(crate) fn holders(&mut self, context: &Context) -> Vec<Box<dyn CheckpointStore + '_>> {
        let (id, writer) = (self.id(), self.writer());
        if self.hosts.is_empty() {
            return vec![Box::new(LocalStore::new(context.home.trial(&id)).of(writer))];
        }
        self.hosts
            .iter_mut()
            .map(|host| Box::new(RemoteStore::new(host, &id).of(writer)) as Box<dyn CheckpointStore>)
            .collect()
    }

    /// Returns the folder names of the trial's checkpoints in the history, oldest first.
    pub(crate) fn recorded_names(&self) -> Vec<String> {
        let name = |known: &Checkpoint| Some(known.folder.file_name()?.to_str()?.to_owned());
        self.trial.checkpoints.iter().filter_map(name).collect()
    }

    /// Returns the checkpoints that can no longer be used: folder name, and the reason.
    pub(crate) fn refused(&self) -> BTreeMap<String, String> {
        let name = |folder: &PathBuf| Some(folder.file_name()?.to_str()?.to_owned());
        let refused = self.trial.checkpoints.iter();
        refused.filter_map(|known| Some((name(&known.folder)?, known.refused.clone()?))).collect()
    }
}

/// Asks every store for its checkpoints; returns them and the stores that did not answer.
pub(crate) fn inventory(
    context: &Context,
    holders: &mut [Box<dyn CheckpointStore + '_>],
) -> Result<Inventory, CommandError> {
    let inventory = Inventory::collect(holders).map_err(|reason| {
        CommandError::new(ExitReason::Infrastructure, "no host answers about its checkpoints").cause(reason)
    })?;
    for (holder, reason) in &inventory.away {
        context.out.say(&format!("{holder} cannot be reached, so its files are not included: {reason}"));
    }
    Ok(inventory)
}
