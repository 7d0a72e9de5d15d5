//! What is promised of the whole, held against the world.

use super::disk::State;
use super::{KEEP, World};
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, StepId};
use std::collections::BTreeSet;

impl World<'_> {
    /// What must be true at any time.
    pub(super) fn holds(&mut self) {
        if !self.now.is_multiple_of(1000) {
            return;
        }
        let newest = self.controller.newest().and_then(|point| {
            parse_folder_name(point.folder.file_name()?.to_str()?).map(|(step, attempt)| (attempt, step))
        });
        if let Some(name) = newest {
            self.holds_for(name);
        }
    }

    /// A checkpoint that counts, or a newer one that is found on the disks, can be read whatever one machine is lost.
    pub(super) fn holds_for(&mut self, name: (AttemptId, StepId)) {
        let committed = self.places.iter().flat_map(|place| place.disk.committed());
        let newer: BTreeSet<_> = committed.filter(|other| *other >= name).collect();
        let survives = |lost: Option<usize>| {
            newer.iter().any(|name| self.is_whole(*name, &|machine| Some(machine) != lost))
        };
        // What was found on one disk is on others after the next launch only.
        let is_alone = !self.committed.contains(&name)
            || self.controller.launched.get(&name.0).is_none_or(|machines| machines.len() < 2);
        let machines = if is_alone { 0 } else { self.setup.machines };
        let lost = std::iter::once(None).chain((0..machines).map(Some)).find(|lost| !survives(*lost));
        if let Some(lost) = lost {
            let copy = |place: &super::Place| {
                place.disk.checkpoints.get(&name).map(|copy| (copy.state, copy.files.clone()))
            };
            let copies: Vec<_> = self.places.iter().map(copy).collect();
            let words = format!(
                "a checkpoint that counts outlives any one machine: {name:?} without {lost:?}; {copies:?}; {:?}",
                self.controller.launched
            );
            self.broken_by(words);
        }
    }

    /// What must be true fifteen seconds after the end.
    pub(super) fn holds_at_the_end(&mut self) {
        if let Some((attempt, machine)) = self.agents.keys().next().copied() {
            return self
                .breaks(|| format!("nothing lives after the end: attempt {attempt} on machine {machine}"));
        }
        let Some(newest) = self.controller.newest().map(|point| point.step) else {
            return self.breaks(|| "a completed trial has a checkpoint".to_owned());
        };
        if newest.0 < self.last {
            let last = self.last;
            return self
                .breaks(|| format!("completed means that the last step can be read: {newest} of {last}"));
        }
        let last = self.controller.machine.attempt();
        for (machine, place) in self.places.iter().enumerate() {
            let kept = place.disk.committed().iter().filter(|(attempt, _)| *attempt == last).count();
            if kept > KEEP as usize {
                return self.broken_by(format!("old checkpoints are removed: {kept} on machine {machine}"));
            }
            let of_last = |((attempt, _), copy): (&(AttemptId, StepId), &super::disk::Copy)| {
                *attempt == last && copy.state < State::Committed
            };
            if place.disk.checkpoints.iter().any(of_last) {
                return self.broken_by(format!("what was not committed is cleared away: machine {machine}"));
            }
        }
    }

    fn broken_by(&mut self, words: String) {
        self.breaks(|| words);
    }
}
