//! What is promised of the whole, held against the world.
//!
//! | promise | says | where it is asserted |
//! |---|---|---|
//! | NL-1 | nothing that was acknowledged is lost | `reads_all`, `counts`, `outlives` |
//! | NL-2 | nothing is trained twice that a whole, committed checkpoint has | `goes_on_from` |
//! | NL-3 | the final weights are those of a run without faults | `learned`, `holds_at_the_end` |
//! | NL-4 | every sample is in the committed steps as often as without faults | `holds_at_the_end` |
//! | NL-5 | nothing lives after the end | `holds_at_the_end` |
//! | NL-6 | an attempt that is over changes nothing, and ends | `returns`, `counts`, [`World::step`](super::World) |

use super::disk::{CheckpointId, RankFileSet, State};
use super::grid::AttemptOnMachine;
use super::network::Endpoint;
use super::{KEEP, World};
use crate::fact::Fact;
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{AttemptId, Manifest};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// How long an agent of an attempt that is over may live where the controller reaches it, in milliseconds.
const TO_FENCE: u64 = 5_000;

/// What a model learned, in two numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrainingDigest {
    /// Depends on every step and on their order, as weights do.
    weights: u64,
    /// Depends on every step however they follow each other, as a multiset of samples does.
    samples: u64,
}

impl TrainingDigest {
    pub(super) fn step(self, step: u64) -> Self {
        Self {
            weights: splitmix64(self.weights, step),
            samples: self.samples.wrapping_add(splitmix64(7, step)),
        }
    }
}

/// What is remembered from one look at the world to the next.
#[derive(Default)]
pub(super) struct PromiseTracker {
    at: u64,
    changes: u64,
    newest: Option<CheckpointId>,
    /// The files of each checkpoint, by its table of contents.
    files: BTreeMap<CheckpointId, (Arc<str>, RankFileSet)>,
    /// Since when each agent of an attempt that is over can be reached.
    returned: BTreeMap<AttemptOnMachine, u64>,
    /// What the ranks of each attempt had learned when they saved.
    pub(super) learned: BTreeMap<CheckpointId, TrainingDigest>,
    /// The newest checkpoint that the last look found whole.
    pub(super) looked: Option<CheckpointId>,
}

/// The checkpoint in a folder.
pub(super) fn name_of(folder: &Path) -> Option<CheckpointId> {
    let (step, attempt) = parse_folder_name(folder.file_name()?.to_str()?)?;
    Some((attempt, step))
}

impl World<'_> {
    /// What must be true at any time, looked at once in a second.
    pub(super) fn holds(&mut self) {
        if self.now < self.held.at + 1000 {
            return;
        }
        self.held.at = self.now;
        self.returns();
        let newest = self.controller.newest().and_then(|point| name_of(&point.folder));
        let changes = self.places.iter().map(|place| place.disk.changes()).sum();
        if (self.held.changes, self.held.newest) == (changes, newest) {
            return;
        }
        (self.held.changes, self.held.newest) = (changes, newest);
        if let Some(name) = newest {
            self.outlives(name);
        }
    }

    /// NL-6: whoever comes back finds a newer attempt, and ends.
    fn returns(&mut self) {
        let Some(newest) = self.controller.launched.keys().next_back().copied() else { return };
        let is_here = self.now >= self.controller.away_until;
        let returned: Vec<AttemptOnMachine> = self
            .agents
            .keys()
            .filter(|(attempt, on)| {
                is_here && *attempt < newest && self.talk(Endpoint::Controller, Endpoint::Machine(*on))
            })
            .collect();
        self.held.returned.retain(|cell, _| returned.contains(cell));
        for cell in returned {
            let since = *self.held.returned.entry(cell).or_insert(self.now);
            if self.now > since + TO_FENCE + self.setup.beat {
                let words =
                    format!("NL-6: attempt {} lives on machine {} beside attempt {newest}", cell.0, cell.1);
                return self.breaks(|| words);
            }
        }
    }

    /// NL-1: a checkpoint that counts, or a newer one that is found on the disks, can be read whatever one machine is lost.
    pub(super) fn outlives(&mut self, name: CheckpointId) {
        let committed = self.places.iter().flat_map(|place| place.disk.committed());
        let newer: std::collections::BTreeSet<_> = committed.filter(|other| *other >= name).collect();
        // What was found on one disk is on others after the next launch only.
        let is_alone = !self.committed.contains(&name)
            || self.controller.launched.get(&name.0).is_none_or(|machines| machines.len() < 2);
        // Without which machine none of them is whole; `None` where that is so with all of them.
        let mut lost: Option<Vec<usize>> = None;
        for name in newer.into_iter().rev() {
            let needed = self.needed(name);
            lost = match (lost, needed) {
                (lost, None) => lost,
                (None, needed) => needed,
                (Some(lost), Some(needed)) => {
                    Some(lost.into_iter().filter(|machine| needed.contains(machine)).collect())
                }
            };
            if lost.as_ref().is_some_and(Vec::is_empty) {
                return;
            }
        }
        let lost = match lost {
            Some(_) if is_alone => return,
            lost => lost,
        };
        let copy = |place: &super::MachineState| {
            place.disk.checkpoints().get(&name).map(|copy| (copy.state, copy.files.clone()))
        };
        let copies: Vec<_> = self.places.iter().map(copy).collect();
        let launched = self.controller.launched.get(&name.0);
        let words = format!(
            "NL-1: a checkpoint that counts outlives any one machine: {name:?} without {lost:?}; {copies:?}; {launched:?}"
        );
        self.breaks(|| words);
    }

    /// The machines without which a checkpoint is not whole; `None` where it is not whole with all of them.
    fn needed(&mut self, name: CheckpointId) -> Option<Vec<usize>> {
        let wanted = self.files_of(name)?;
        let copies: Vec<_> = (0..self.places.len())
            .filter_map(|machine| Some((machine, self.places[machine].disk.checkpoints().get(&name)?)))
            .filter(|(_, copy)| copy.state > State::Partial)
            .collect();
        let (mut once, mut twice) = (RankFileSet::default(), RankFileSet::default());
        for (_, copy) in &copies {
            twice.extend(&once.and(&copy.files));
            once.extend(&copy.files);
        }
        if !wanted.without(&once).is_empty() {
            return None;
        }
        let single = wanted.without(&twice);
        let is_needed = |files: &RankFileSet| copies.len() == 1 || !single.and(files).is_empty();
        Some(copies.iter().filter(|(_, copy)| is_needed(&copy.files)).map(|(machine, _)| *machine).collect())
    }

    /// The files of a checkpoint, as its table of contents on any machine has them. NL-6: all say the same.
    pub(super) fn files_of(&mut self, name: CheckpointId) -> Option<RankFileSet> {
        let copies = self.places.iter().filter_map(|place| place.disk.checkpoints().get(&name));
        let texts: Vec<_> = copies
            .filter(|copy| copy.state > State::Partial)
            .map(|copy| Arc::clone(&copy.manifest))
            .collect();
        let text = texts.first()?;
        if texts.iter().any(|other| !Arc::ptr_eq(other, text) && other != text) {
            self.breaks(|| format!("NL-6: the table of contents of {name:?} does not change"));
        }
        if let Some((known, files)) = self.held.files.get(&name)
            && (Arc::ptr_eq(known, text) || known == text)
        {
            return Some(files.clone());
        }
        let manifest: Manifest = serde_json::from_str(text).ok()?;
        let mut files = RankFileSet::default();
        manifest
            .files
            .iter()
            .filter_map(|file| RankFileSet::rank(&file.name))
            .for_each(|rank| files.insert(rank));
        self.held.files.insert(name, (Arc::clone(text), files.clone()));
        Some(files)
    }

    /// Whether some machines together have a checkpoint as all hosts prepared it.
    pub(super) fn is_whole(&mut self, name: CheckpointId, of: &dyn Fn(usize) -> bool) -> bool {
        let Some(wanted) = self.files_of(name) else { return false };
        let mut there = RankFileSet::default();
        let mut is_any = false;
        for (_, place) in self.places.iter().enumerate().filter(|(machine, _)| of(*machine)) {
            if let Some(copy) = place.disk.checkpoints().get(&name)
                && copy.state > State::Partial
            {
                is_any = true;
                there.extend(&copy.files);
            }
        }
        is_any && wanted.without(&there).is_empty()
    }

    /// NL-1 and NL-6: a checkpoint counts only once it was committed and is whole, and never after one of a newer attempt.
    pub(super) fn counts(&mut self, name: CheckpointId) {
        if !self.committed.contains(&name) && !self.is_whole(name, &|_| true) {
            self.breaks(|| format!("NL-1: a checkpoint counts only once it was committed: {name:?}"));
        }
        let ledger = &self.controller.ledger;
        let is_refused = |name: &CheckpointId| {
            let of = |fact: &Fact| matches!(fact, Fact::CheckpointRefused { folder, .. } if name_of(folder) == Some(*name));
            ledger.iter().any(of)
        };
        let newest = ledger.iter().rev().filter_map(durable).find(|name| !is_refused(name));
        if let Some(newer) = newest.filter(|newer| newer.0 > name.0) {
            self.breaks(|| format!("NL-6: {name:?} counts after {newer:?} of a newer attempt"));
        }
        self.outlives(name);
    }

    /// NL-1: an attempt is over only once its record was read to its end. Where its host was lost, its mirror was.
    pub(super) fn reads_all(&mut self, attempt: AttemptId) {
        let Some(leader) = self.leader_of(attempt) else { return };
        let mirrored = self.mirror_of(attempt).and_then(|on| self.places[on].disk.mirrors.get(&attempt));
        let (read, mirrored) = (self.controller.read, mirrored.map_or(0, |mirror| mirror.records.len()));
        if read < mirrored {
            self.breaks(|| {
                format!("NL-1: attempt {attempt} is over with {read} of {mirrored} records in a mirror read")
            });
        }
        let flushed = self.places[leader].disk.spools.get(&attempt).map_or(0, |spool| spool.flushed);
        let read = self.controller.kept.get(&attempt).copied().unwrap_or(0);
        if read < flushed && !self.controller.unread.contains(&attempt) {
            self.breaks(|| format!("NL-1: attempt {attempt} is over with {read} of {flushed} records read"));
        }
    }

    /// NL-2: an attempt goes on from the newest checkpoint that was found whole.
    pub(super) fn goes_on_from(&mut self, from: Option<CheckpointId>) {
        if let Some(looked) = self.held.looked.filter(|looked| from.is_none_or(|from| from < *looked)) {
            self.breaks(|| format!("NL-2: {looked:?} was found, and training goes on from {from:?}"));
        }
    }

    /// NL-3: what the ranks of an attempt begin with is what was saved at that step.
    pub(super) fn learned(&mut self, resume: Option<&str>, step: u64) -> TrainingDigest {
        let Some(name) = resume.and_then(|folder| name_of(Path::new(folder))) else {
            return TrainingDigest::default();
        };
        if name.1.0 != step {
            self.breaks(|| {
                format!("NL-3: training is to go on after step {step} with the weights of {name:?}")
            });
        }
        self.held.learned.get(&name).copied().unwrap_or_default()
    }

    /// What must be true fifteen seconds after the end.
    pub(super) fn holds_at_the_end(&mut self) {
        let left = self.agents.keys().next();
        if let Some((attempt, machine)) = left {
            return self.breaks(|| {
                format!("NL-5: nothing lives after the end: attempt {attempt} on machine {machine}")
            });
        }
        let Some(newest) = self.controller.newest().and_then(|point| name_of(&point.folder)) else {
            return self.breaks(|| "NL-1: a completed trial has a checkpoint".to_owned());
        };
        let last = self.last;
        if newest.1.0 < last {
            return self.breaks(|| {
                format!("NL-1: completed means that the last step can be read: {newest:?} of {last}")
            });
        }
        let expected = (1..=newest.1.0).fold(TrainingDigest::default(), TrainingDigest::step);
        let found = self.held.learned.get(&newest).copied().unwrap_or_default();
        if found.weights != expected.weights {
            return self.breaks(|| format!("NL-3: the weights of {newest:?} are not those of one run"));
        }
        if found.samples != expected.samples {
            return self.breaks(|| format!("NL-4: the samples of {newest:?} are not those of one run"));
        }
        let last = self.controller.machine.attempt();
        for (machine, place) in self.places.iter().enumerate() {
            let kept = place.disk.committed().filter(|(attempt, _)| *attempt == last).count();
            let is_left = place
                .disk
                .checkpoints()
                .iter()
                .any(|((attempt, _), copy)| *attempt == last && copy.state < State::Committed);
            if kept > KEEP as usize {
                return self.breaks(|| format!("old checkpoints are removed: {kept} on machine {machine}"));
            }
            if is_left {
                return self.breaks(|| format!("what was not committed is cleared away: machine {machine}"));
            }
        }
    }
}

/// Steps of a durable checkpoint.
pub(super) fn durable(fact: &Fact) -> Option<CheckpointId> {
    match fact {
        Fact::CheckpointCommitted { attempt, step, .. } => Some((*attempt, *step)),
        _ => None,
    }
}
