//! The disk of a machine: checkpoints and spools, which are lost as far as they were not flushed when power fails.

use crate::agent::SpoolRecord;
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, StepId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// A checkpoint: who wrote it, and after how many steps. Age goes by attempt, then by step.
pub(super) type CheckpointId = (AttemptId, StepId);

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

/// The files of a checkpoint, by the rank that wrote each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RankFileSet(Vec<u64>);

impl RankFileSet {
    /// The name of the file of a rank.
    pub(super) fn name(rank: u32) -> String {
        format!("rank-{rank:05}.safetensors")
    }

    /// The rank that wrote the file of a name.
    pub(super) fn rank(name: &str) -> Option<u32> {
        name.strip_prefix("rank-")?.strip_suffix(".safetensors")?.parse().ok()
    }

    pub(super) fn insert(&mut self, rank: u32) {
        let word = (rank / 64) as usize;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (rank % 64);
    }

    pub(super) fn contains(&self, rank: u32) -> bool {
        self.0.get((rank / 64) as usize).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    pub(super) fn names(&self) -> Vec<String> {
        let ranks = 0..u32::try_from(self.0.len() * 64).expect("few ranks");
        ranks.filter(|rank| self.contains(*rank)).map(Self::name).collect()
    }

    /// Adds those of another place.
    pub(super) fn extend(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    /// What is in both.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one & other).collect())
    }

    /// What is not in the other.
    pub(super) fn without(&self, other: &Self) -> Self {
        let others = other.0.iter().chain(std::iter::repeat(&0));
        Self(self.0.iter().zip(others).map(|(one, other)| one & !other).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// What lies on a disk of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct CheckpointCopy {
    pub(super) state: State,
    /// Its files that are here.
    pub(super) files: RankFileSet,
    /// Its table of contents; empty until it is prepared.
    pub(super) manifest: Arc<str>,
}

/// What an attempt wrote down.
#[derive(Clone, Debug, Default)]
pub(super) struct CrashableSpool {
    pub(super) records: Vec<SpoolRecord>,
    /// How many of them are flushed.
    pub(super) flushed: usize,
    flushed_at: u64,
}

impl CrashableSpool {
    /// Everything is on disk now.
    pub(super) fn flush(&mut self, now: u64) {
        (self.flushed, self.flushed_at) = (self.records.len(), now);
    }

    /// Whether something waits longer to be on disk than anything may.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.flushed < self.records.len() && now >= self.flushed_at + 1000
    }
}

/// The disk of a machine.
#[derive(Clone, Debug, Default)]
pub(super) struct CrashableDisk {
    /// Oldest first.
    checkpoints: BTreeMap<CheckpointId, CheckpointCopy>,
    /// Changes of the checkpoints so far.
    changes: u64,
    pub(super) spools: BTreeMap<AttemptId, CrashableSpool>,
    /// What the leaders of other machines wrote down.
    pub(super) mirrors: BTreeMap<AttemptId, CrashableSpool>,
    /// The files of which something was fetched for ranks alone, of each checkpoint.
    pub(super) parts: BTreeMap<CheckpointId, RankFileSet>,
    pub(super) full_until: u64,
    pub(super) slow_until: u64,
}

impl CrashableDisk {
    /// Power fails. Files of ranks are flushed before they say so, and folders that have a table of contents are durable.
    pub(super) fn lose_unflushed(&mut self) {
        self.parts.clear();
        for spool in self.spools.values_mut().chain(self.mirrors.values_mut()) {
            spool.records.truncate(spool.flushed);
        }
    }

    pub(super) fn checkpoints(&self) -> &BTreeMap<CheckpointId, CheckpointCopy> {
        &self.checkpoints
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    fn change(&mut self, name: CheckpointId) -> Entry<'_, CheckpointId, CheckpointCopy> {
        self.changes += 1;
        self.checkpoints.entry(name)
    }

    /// A file of a rank is written.
    pub(super) fn write(&mut self, name: CheckpointId, rank: u32) {
        let empty =
            || CheckpointCopy { state: State::Partial, files: RankFileSet::default(), manifest: "".into() };
        self.change(name).or_insert_with(empty).files.insert(rank);
    }

    /// A checkpoint gets as far as `state`, with this table of contents.
    pub(super) fn finish(&mut self, name: CheckpointId, manifest: Option<Arc<str>>, state: State) {
        let empty = || CheckpointCopy { state, files: RankFileSet::default(), manifest: "".into() };
        let copy = self.change(name).or_insert_with(empty);
        copy.state = copy.state.max(state);
        copy.manifest = manifest.unwrap_or_else(|| Arc::clone(&copy.manifest));
    }

    pub(super) fn remove(&mut self, name: CheckpointId) {
        self.changes += u64::from(self.checkpoints.remove(&name).is_some());
    }

    /// A checkpoint by the name of its folder.
    pub(super) fn named(&self, folder: &str) -> Option<&CheckpointCopy> {
        let (step, attempt) = parse_folder_name(folder)?;
        self.checkpoints.get(&(attempt, step))
    }

    /// The committed checkpoints, oldest first.
    pub(super) fn committed(&self) -> impl Iterator<Item = CheckpointId> {
        let all = self.checkpoints.iter().filter(|(_, copy)| copy.state == State::Committed);
        all.map(|(name, _)| *name)
    }

    /// Removes what older attempts left half-written.
    pub(super) fn remove_partial(&mut self, attempt: AttemptId) {
        let before = self.checkpoints.len();
        self.checkpoints.retain(|(of, _), copy| copy.state == State::Committed || *of >= attempt);
        self.changes += u64::from(self.checkpoints.len() != before);
    }
}
