//! The simulated disk of a machine: checkpoints and spools, whose unflushed data is lost in a power failure.

use crate::spool::SpoolRecord;
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, StepId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Identifies a checkpoint by attempt and step, which also order checkpoints by age.
pub(super) type CheckpointId = (AttemptId, StepId);

/// State of a checkpoint on a simulated disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Ranks are writing the checkpoint.
    Partial,
    /// The checkpoint has its manifest and is durable.
    Prepared,
    /// The checkpoint has its final name.
    Committed,
}

/// A set of checkpoint files, as a bit set of the ranks that wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RankFileSet(Vec<u64>);

impl RankFileSet {
    /// Returns the name of the file that `rank` writes.
    pub(super) fn name(rank: u32) -> String {
        format!("rank-{rank:05}.safetensors")
    }

    /// Returns the rank that wrote the file `name`.
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

    /// Adds all files of another set to this one.
    pub(super) fn extend(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    /// Returns the files that are in both sets.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one & other).collect())
    }

    /// Returns the files of this set that are not in the other.
    pub(super) fn without(&self, other: &Self) -> Self {
        let others = other.0.iter().chain(std::iter::repeat(&0));
        Self(self.0.iter().zip(others).map(|(one, other)| one & !other).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// The copy of a checkpoint on one disk.
#[derive(Clone, Debug)]
pub(super) struct CheckpointCopy {
    pub(super) state: State,
    /// Files of the checkpoint that are present on the disk.
    pub(super) files: RankFileSet,
    /// Manifest of the checkpoint; empty until the checkpoint is prepared.
    pub(super) manifest: Arc<str>,
}

/// The spool of an attempt on a simulated disk; a power failure loses unflushed records.
#[derive(Clone, Debug, Default)]
pub(super) struct CrashableSpool {
    pub(super) records: Vec<SpoolRecord>,
    /// Number of flushed records.
    pub(super) flushed: usize,
    flushed_at: u64,
}

impl CrashableSpool {
    /// Flushes all records to the disk.
    pub(super) fn flush(&mut self, now: u64) {
        (self.flushed, self.flushed_at) = (self.records.len(), now);
    }

    /// Returns `true` if a record has waited longer for its flush than allowed.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.flushed < self.records.len() && now >= self.flushed_at + 1000
    }
}

/// The simulated disk of a machine.
#[derive(Clone, Debug, Default)]
pub(super) struct CrashableDisk {
    /// Checkpoints on the disk, oldest first.
    checkpoints: BTreeMap<CheckpointId, CheckpointCopy>,
    /// Number of changes to checkpoints so far.
    changes: u64,
    pub(super) spools: BTreeMap<AttemptId, CrashableSpool>,
    /// Mirrors of the spools of other machines.
    pub(super) mirrors: BTreeMap<AttemptId, CrashableSpool>,
    /// For each checkpoint of which only parts were fetched for ranks, the files concerned.
    pub(super) parts: BTreeMap<CheckpointId, RankFileSet>,
    pub(super) full_until: u64,
    pub(super) slow_until: u64,
}

impl CrashableDisk {
    /// Simulates a power failure. Ranks flush files before they report them, and folders with a manifest are
    /// durable.
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

    /// Writes the file of a rank into a checkpoint.
    pub(super) fn write(&mut self, name: CheckpointId, rank: u32) {
        let empty =
            || CheckpointCopy { state: State::Partial, files: RankFileSet::default(), manifest: "".into() };
        self.change(name).or_insert_with(empty).files.insert(rank);
    }

    /// Sets the state of a checkpoint, and its manifest.
    pub(super) fn finish(&mut self, name: CheckpointId, manifest: Option<Arc<str>>, state: State) {
        let empty = || CheckpointCopy { state, files: RankFileSet::default(), manifest: "".into() };
        let copy = self.change(name).or_insert_with(empty);
        copy.state = copy.state.max(state);
        copy.manifest = manifest.unwrap_or_else(|| Arc::clone(&copy.manifest));
    }

    pub(super) fn remove(&mut self, name: CheckpointId) {
        self.changes += u64::from(self.checkpoints.remove(&name).is_some());
    }

    /// Returns the copy of a checkpoint by the name of its folder.
    pub(super) fn named(&self, folder: &str) -> Option<&CheckpointCopy> {
        let (step, attempt) = parse_folder_name(folder)?;
        self.checkpoints.get(&(attempt, step))
    }

    /// Returns the committed checkpoints on the disk, oldest first.
    pub(super) fn committed(&self) -> impl Iterator<Item = CheckpointId> {
        let all = self.checkpoints.iter().filter(|(_, copy)| copy.state == State::Committed);
        all.map(|(name, _)| *name)
    }

    /// Removes partial checkpoints of older attempts.
    pub(super) fn remove_partial(&mut self, attempt: AttemptId) {
        let before = self.checkpoints.len();
        self.checkpoints.retain(|(of, _), copy| copy.state == State::Committed || *of >= attempt);
        self.changes += u64::from(self.checkpoints.len() != before);
    }
}
