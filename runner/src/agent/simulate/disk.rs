//! The disk of a machine: checkpoints and spools, which are lost as far as they were not flushed when power fails.

use crate::agent::SpoolRecord;
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, StepId};
use std::collections::{BTreeMap, BTreeSet};

/// How far a checkpoint on a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Ranks write it.
    Partial,
    /// It has its table of contents, and all of it is durable.
    Prepared,
    /// It has its final name.
    Committed,
}

/// What lies on a disk of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) state: State,
    /// The names of its files that are here.
    pub(super) files: BTreeSet<String>,
    /// Its table of contents; empty until it is prepared.
    pub(super) manifest: String,
}

/// What an attempt wrote down.
#[derive(Clone, Debug, Default)]
pub(super) struct Spool {
    pub(super) records: Vec<SpoolRecord>,
    /// How many of them are flushed.
    pub(super) flushed: usize,
}

/// The disk of a machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// By attempt, then by step, as age goes.
    pub(super) checkpoints: BTreeMap<(AttemptId, StepId), Copy>,
    pub(super) spools: BTreeMap<AttemptId, Spool>,
    /// What the leaders of other machines wrote down.
    pub(super) mirrors: BTreeMap<AttemptId, Spool>,
    /// What was fetched for ranks alone, by the folder of the checkpoint: the names of the files.
    pub(super) parts: BTreeMap<String, BTreeSet<String>>,
    pub(super) full_until: u64,
    pub(super) slow_until: u64,
}

impl Disk {
    /// Power fails. Files of ranks are flushed before they say so, and folders that have a table of contents are durable.
    pub(super) fn lose_unflushed(&mut self) {
        self.parts.clear();
        for spool in self.spools.values_mut().chain(self.mirrors.values_mut()) {
            spool.records.truncate(spool.flushed);
        }
    }

    /// A rank writes its file.
    pub(super) fn write(&mut self, attempt: AttemptId, step: StepId, file: String) {
        let copy = self.checkpoints.entry((attempt, step)).or_insert_with(|| Copy {
            state: State::Partial,
            files: BTreeSet::new(),
            manifest: String::new(),
        });
        copy.files.insert(file);
    }

    /// A checkpoint by the name of its folder.
    pub(super) fn named(&self, folder: &str) -> Option<&Copy> {
        let (step, attempt) = parse_folder_name(folder)?;
        self.checkpoints.get(&(attempt, step))
    }

    /// The committed checkpoints, oldest first.
    pub(super) fn committed(&self) -> Vec<(AttemptId, StepId)> {
        let all = self.checkpoints.iter().filter(|(_, copy)| copy.state == State::Committed);
        all.map(|(name, _)| *name).collect()
    }

    /// Removes what older attempts left half-written.
    pub(super) fn remove_partial(&mut self, attempt: AttemptId) {
        self.checkpoints.retain(|(of, _), copy| copy.state == State::Committed || *of >= attempt);
    }
}
