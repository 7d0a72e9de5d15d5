//! The promises of the whole system, and their checks.
//!
//! | promise | meaning | where it is checked |
//! |---|---|---|
//! | NL-1 | no acknowledged data is lost | `reads_all`, `counts`, `outlives` |
//! | NL-2 | no step that a complete, committed checkpoint has is trained twice | `goes_on_from` |
//! | NL-3 | the final weights are those of a run without faults | `learned`, `holds_at_the_end` |
//! | NL-4 | every sample is in the committed steps as often as without faults | `holds_at_the_end` |
//! | NL-5 | no process is alive after the end | `holds_at_the_end` |
//! | NL-6 | an attempt that is over changes nothing, and ends | `returns`, `counts`,
//! [`World::step`](super::World) |
//! | NL-7 | ten minutes after the end, nothing is alive but on hosts that were named then | `left_alone` |
//! | NL-8 | a strike names a host, or a pair with one, that had a fault | `attribute` |

use super::disk::{CheckpointId, RankFileSet, State};
use super::fencing::name_of as name_of_machine;
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

/// Milliseconds that a reachable agent of an older attempt may stay alive.
const TO_FENCE: u64 = 5_000;

/// Milliseconds after the end of a trial from which on nothing of it is alive.
pub(super) const TO_END: u64 = 600_000;

/// The state of a trained model, represented by two numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrainingDigest {
    /// Number that depends on every step and their order, like weights.
    weights: u64,
    /// Number that depends on every step but not on their order, like a multiset of samples.
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

/// State that the checks of the promises keep between two rounds.
#[derive(Default)]
pub(super) struct PromiseTracker {
    at: u64,
    changes: u64,
    newest: Option<CheckpointId>,
    /// The files of each checkpoint, with the checkpoint's manifest.
    files: BTreeMap<CheckpointId, (Arc<str>, RankFileSet)>,
    /// Time since which each agent of an older attempt has been reachable.
    returned: BTreeMap<AttemptOnMachine, u64>,
    /// Time of the end of the trial, and the names of the hosts that were then said not to answer.
    pub(super) ended: Option<(u64, Vec<String>)>,
    /// The digest of each attempt's training at the time of each save.
    pub(super) learned: BTreeMap<CheckpointId, TrainingDigest>,
    /// The newest checkpoint that the last search found complete.
    pub(super) looked: Option<CheckpointId>,
}

/// Parses the name of a checkpoint folder.
pub(super) fn name_of(folder: &Path) -> Option<CheckpointId> {
    let (step, attempt) = parse_folder_name(folder.file_name()?.to_str()?)?;
    Some((attempt, step))
}

impl World<'_> {
    /// Checks the invariants of all promises, once a second.
    pub(super) fn holds(&mut self) {
        if self.now < self.held.at + 1000 {
            return;
        }
        self.held.at = self.now;
        self.returns();
        self.left_alone();
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

    /// NL-6: checks that a host that comes back with an older attempt is fenced.
    fn returns(&mut self) {
        let Some(newest) = self.controller.launched.keys().next_back().copied() else { return };
        // A controller that looks for the open attempt does not know which attempts are over, and none is left at the end.
        let is_here = self.now >= self.controller.away_until
            && self.controller.machine.verdict().is_none()
            && self.oldest_alive().is_some();
        let spared = self.spared();
        let returned: Vec<AttemptOnMachine> = self
            .agents
            .keys()
            .filter(|(attempt, on)| {
                is_here
                    && *attempt < newest
                    && !spared.contains(on)
                    && self.talk(Endpoint::Controller, Endpoint::Machine(*on))
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

    /// NL-7: checks that nothing is alive ten minutes after the end, except where the user was told that it may be.
    fn left_alone(&mut self) {
        let Some((at, unanswered)) =
            self.held.ended.clone().filter(|_| self.controller.machine.verdict().is_some())
        else {
            return;
        };
        // An agent that a late request starts after the end is not one that fencing missed.
        let is_left = |cell: &AttemptOnMachine| {
            self.agents[cell].began <= at && !unanswered.contains(&name_of_machine(cell.1))
        };
        let left = self.agents.keys().find(is_left).filter(|_| self.now > at + TO_END);
        if let Some((attempt, machine)) = left {
            self.breaks(|| {
                format!("NL-7: attempt {attempt} lives on machine {machine} ten minutes after the end")
            });
        }
    }

    /// NL-1: checks that the checkpoint `name`, or a newer one on the disks, survives the loss of any one
    /// machine.
    pub(super) fn outlives(&mut self, name: CheckpointId) {
        let committed = self.places.iter().flat_map(|place| place.disk.committed());
        let newer: std::collections::BTreeSet<_> = committed.filter(|other| *other >= name).collect();
        // A checkpoint found on one disk gets copies only at the next launch.
        let is_alone = !self.committed.contains(&name)
            || self.controller.launched.get(&name.0).is_none_or(|machines| machines.len() < 2);
        // Machines that all these checkpoints need; `None` if none is complete even with all machines.
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

    /// Returns the machines that a checkpoint needs to be complete; `None` if it is incomplete even with all
    /// machines.
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

    /// Returns the files in the checkpoint's manifest. NL-6: checks that it is the same on all machines.
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

    /// Returns `true` if the machines that match `of` together have the whole prepared checkpoint.
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

    /// Checks that a checkpoint counts as saved only if it is committed and complete, and never after one of
    /// a newer attempt (NL-1, NL-6).
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

    /// NL-1: checks that the spool of an attempt that is over was read to its end, or its mirror if its host
    /// was lost.
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

    /// NL-2: checks that an attempt resumes from the newest complete checkpoint found.
    pub(super) fn goes_on_from(&mut self, from: Option<CheckpointId>) {
        if let Some(looked) = self.held.looked.filter(|looked| from.is_none_or(|from| from < *looked)) {
            self.breaks(|| format!("NL-2: {looked:?} was found, and training goes on from {from:?}"));
        }
    }

    /// NL-3: returns the digest saved in the checkpoint, and checks its step.
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

    /// Checks the promises fifteen seconds after the end of the trial.
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

/// Returns the checkpoint that a fact makes durable.
pub(super) fn durable(fact: &Fact) -> Option<CheckpointId> {
    match fact {
        Fact::CheckpointCommitted { attempt, step, .. } => Some((*attempt, *step)),
        _ => None,
    }
}
