//! The controller: the machine that ships, its history, and what it finds out about machines that it may not reach.

use super::bugs::Bug;
use super::network::Node;
use super::ranks::Training;
use super::{World, durable, input_of};
use crate::agent::SpoolRecord;
use crate::agent::leader;
use crate::fact::Fact;
use crate::launch::NotLaunched;
use crate::machine::{Effect, Input, Machine, Moment};
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{AttemptId, Failure, ResumePoint};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long a host may not answer before others are asked about it.
const TO_ANSWER: u64 = 3_000;

/// Records that are read in one beat.
const READ: usize = 64;

/// Ranks of each machine.
const RANKS: u32 = 2;

/// The program that the user typed.
pub(super) struct Controller {
    pub(super) machine: Machine,
    pub(super) ledger: Vec<Fact>,
    /// Where each attempt was launched, the leader first; on the disk of the controller.
    pub(super) launched: BTreeMap<AttemptId, Vec<usize>>,
    /// Records of the open attempt that the machine was told.
    pub(super) read: usize,
    /// The most records of each attempt that the history has.
    pub(super) kept: BTreeMap<AttemptId, usize>,
    owed: VecDeque<Input>,
    /// What agents answer to launches, from their machines.
    pub(super) answers: Vec<(AttemptId, usize, Result<(), NotLaunched>)>,
    pub(super) away_until: u64,
    unreachable_since: Option<u64>,
    /// Since when the controller's clock counts.
    began: u64,
}

impl Controller {
    pub(super) fn new() -> Self {
        let (machine, _) = Machine::replay(&[]);
        Self {
            machine,
            ledger: Vec::new(),
            launched: BTreeMap::new(),
            read: 0,
            kept: BTreeMap::new(),
            owed: VecDeque::new(),
            answers: Vec::new(),
            away_until: 0,
            unreachable_since: None,
            began: 0,
        }
    }

    /// The newest checkpoint that counts.
    pub(super) fn newest(&self) -> Option<&ResumePoint> {
        self.machine.newest()
    }
}

impl World<'_> {
    /// The user asks for something.
    pub(super) fn user(&mut self, input: Input) {
        self.tell(input);
    }

    /// Resumes a trial that stands still with nobody to go on.
    pub(super) fn resume_what_stands_still(&mut self) {
        if self.controller.machine.open().is_none() && self.controller.machine.verdict().is_some() {
            self.tell(Input::Resume);
        }
    }

    pub(super) fn tell(&mut self, input: Input) {
        let moment = Moment(self.now - self.controller.began);
        let mut effects = self.controller.machine.step(moment, input);
        loop {
            let mut crashed = false;
            for effect in effects.drain(..) {
                if self.is_chaos && self.draw(200) == 0 {
                    crashed = true;
                    break;
                }
                self.perform(effect);
            }
            if !crashed {
                return;
            }
            self.reached.note("controller crash between effects");
            effects = self.replay();
        }
    }

    /// The controller is killed, and started again at once.
    pub(super) fn crash(&mut self) {
        let effects = self.replay();
        for effect in effects {
            self.perform(effect);
        }
    }

    fn replay(&mut self) -> Vec<Effect> {
        let (machine, effects) = Machine::replay(&self.controller.ledger);
        self.controller.machine = machine;
        (self.controller.read, self.controller.began) = (0, self.now);
        self.controller.owed.clear();
        self.controller.answers.clear();
        // Whoever starts it again resumes the trial.
        self.controller.owed.push_back(Input::Resume);
        effects
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Record(fact) => self.record(fact),
            Effect::Look => self.look(),
            Effect::Launch { attempt, from } => self.launch(attempt, from),
            Effect::SendStop { attempt } => {
                if let Some(machine) = self.leader_of(attempt)
                    && self.talk(Node::Controller, Node::Machine(machine))
                {
                    self.reached.note("asked to stop");
                    self.tell_leader(attempt, machine, leader::Input::Stop);
                }
            }
            Effect::Kill { attempt } => {
                self.reached.note("attempt killed");
                for machine in self.controller.launched.get(&attempt).cloned().unwrap_or_default() {
                    if self.talk(Node::Controller, Node::Machine(machine)) {
                        self.agents.remove(&(attempt, machine));
                    }
                }
            }
            Effect::WakeAt(_) | Effect::Done { .. } => {}
        }
    }

    fn record(&mut self, fact: Fact) {
        if let Some(name) = durable(&fact) {
            self.reached.note("durable checkpoint");
            if !self.committed.contains(&name) && !self.is_whole(name, &|_| true) {
                self.breaks(|| format!("a checkpoint counts only once it was committed: {name:?}"));
            }
            self.holds_for(name);
        }
        self.controller.ledger.push(fact);
    }

    /// Asks the disks of all machines that answer what is committed and whole.
    fn look(&mut self) {
        self.controller.owed.retain(|input| !input.is_of_a_look());
        let reachable: Vec<bool> = (0..self.setup.machines)
            .map(|machine| self.talk(Node::Controller, Node::Machine(machine)))
            .collect();
        let disks = self.places.iter().zip(&reachable).filter(|(_, answers)| **answers);
        let names: BTreeSet<_> = disks.flat_map(|(place, _)| place.disk.committed()).collect();
        for (attempt, step) in names {
            let folder = std::path::PathBuf::from("checkpoints").join(folder_name(step, attempt));
            let is_there = self.is_whole((attempt, step), &|machine| reachable[machine]);
            if is_there && self.controller.machine.would_adopt(attempt, step, &folder) {
                self.reached.note("found on a disk");
                self.controller.owed.push_back(Input::Found { attempt, step, folder });
            }
        }
        self.controller.owed.push_back(Input::Looked);
    }

    fn leader_of(&self, attempt: AttemptId) -> Option<usize> {
        self.controller.launched.get(&attempt)?.first().copied()
    }

    fn launch(&mut self, attempt: AttemptId, from: Option<ResumePoint>) {
        let reachable = |machine: &usize| self.talk(Node::Controller, Node::Machine(*machine));
        let machines: Vec<usize> = (0..self.setup.machines).filter(reachable).take(self.setup.most).collect();
        self.controller.read = 0;
        self.controller.unreachable_since = None;
        if machines.is_empty() {
            self.reached.note("no machine answers");
            let failure = Failure::Infrastructure { host: None, detail: "no host answers".into() };
            return self.controller.owed.push_back(Input::LaunchFailed { attempt, failure });
        }
        let ranks = (0u32..).map(|index| index * RANKS..(index + 1) * RANKS);
        let placed: Vec<_> = machines.iter().copied().zip(ranks).collect();
        let resume = from.as_ref().and_then(|point| point.folder.file_name()?.to_str().map(str::to_owned));
        self.reached.note(if resume.is_some() { "resumed" } else { "begun anew" });
        self.training.insert(attempt, Training::new(&placed, from.map_or(0, |point| point.step.0)));
        self.controller.launched.insert(attempt, machines);
        self.launch_on(attempt, &placed, resume);
    }

    /// A leader writes a record down.
    pub(super) fn spool(&mut self, attempt: AttemptId, machine: usize, record: SpoolRecord) {
        if let SpoolRecord::Committed { step, .. } = &record {
            self.committed.insert((attempt, *step));
        }
        let is_momentous = record.is_momentous();
        let spool = self.places[machine].disk.spools.entry(attempt).or_default();
        spool.records.push(record);
        // Others are flushed within a second.
        if is_momentous || self.now.is_multiple_of(1000) {
            spool.flushed = spool.records.len();
        }
    }

    /// The controller does what is due, and reads what it can reach.
    pub(super) fn attend(&mut self) {
        if self.now < self.controller.away_until {
            return;
        }
        self.tell(Input::Tick);
        while let Some(input) = self.controller.owed.pop_front() {
            self.tell(input);
        }
        self.hear_answers();
        let Some(open) = self.controller.machine.open() else { return };
        if self.controller.owed.iter().any(|input| matches!(input, Input::LaunchFailed { .. })) {
            return;
        }
        let Some(machines) = self.controller.launched.get(&open).cloned() else {
            // It crashed after the launch was recorded and before it happened.
            return self.tell(Input::Gone { attempt: open, lost: None });
        };
        let leader = machines[0];
        if self.talk(Node::Controller, Node::Machine(leader)) {
            self.controller.unreachable_since = None;
            return self.read(open, leader);
        }
        let now = self.now;
        let since = *self.controller.unreachable_since.get_or_insert(now);
        let is_patient = now < since + TO_ANSWER && !self.has(Bug::GoneWhenSilent);
        let says_gone = |machine: &usize| {
            self.talk(Node::Controller, Node::Machine(*machine))
                && !self.agents.contains_key(&(open, *machine))
        };
        let is_lost = self.has(Bug::GoneWhenSilent) || machines[1..].iter().any(says_gone);
        if !is_patient && is_lost {
            let mirror = machines.get(1).filter(|mirror| says_gone(mirror)).copied();
            self.reached.note("spool out of reach");
            if let Some(mirror) = mirror {
                self.read_mirror(open, mirror);
            }
            self.tell(Input::Gone { attempt: open, lost: None });
        }
    }

    fn hear_answers(&mut self) {
        for (attempt, machine, answer) in std::mem::take(&mut self.controller.answers) {
            let is_open = self.controller.machine.open() == Some(attempt);
            let (Err(reason), true) = (answer, is_open) else { continue };
            if !self.talk(Node::Controller, Node::Machine(machine)) {
                continue;
            }
            let failure = match reason {
                NotLaunched::Checkpoint(detail) => {
                    let folder =
                        self.controller.newest().map(|point| point.folder.clone()).unwrap_or_default();
                    self.may_refuse(attempt, &folder, &detail);
                    Failure::CorruptCheckpoint { folder, detail }
                }
                other => Failure::Infrastructure { host: None, detail: other.to_string() },
            };
            self.tell(Input::LaunchFailed { attempt, failure });
        }
    }

    /// Reads the spool of an attempt whose leader's machine answers.
    fn read(&mut self, open: AttemptId, leader: usize) {
        let is_alive = self.agents.contains_key(&(open, leader));
        for _ in 0..READ {
            let spool = self.places[leader].disk.spools.entry(open).or_default();
            let published =
                if is_alive && !self.setup.bug.is_some_and(|bug| bug == Bug::PublishedBeforeFlushed) {
                    spool.flushed
                } else {
                    spool.records.len()
                };
            if self.controller.read < published {
                let record = spool.records[self.controller.read].clone();
                self.controller.read += 1;
                let read = self.controller.read;
                let kept = self.controller.kept.entry(open).or_default();
                *kept = (*kept).max(read);
                if let Some(input) = input_of(record) {
                    self.tell(input);
                }
                if self.controller.machine.open() != Some(open) {
                    return;
                }
            } else {
                break;
            }
        }
        let records = self.places[leader].disk.spools[&open].records.len();
        if self.controller.kept.get(&open).is_some_and(|kept| *kept > records) {
            return self.breaks(|| format!("what a controller was told is on disk: attempt {open}"));
        }
        if !is_alive && self.controller.read >= records {
            self.reached.note("found gone");
            self.tell(Input::Gone { attempt: open, lost: None });
        }
    }

    /// A checkpoint may be refused only where it is not there.
    fn may_refuse(&mut self, attempt: AttemptId, folder: &std::path::Path, detail: &str) {
        let name = folder.file_name().and_then(|name| name.to_str());
        let Some((step, of)) = name.and_then(dtrain_protocol::checkpoint::parse_folder_name) else { return };
        let machines = self.controller.launched.get(&attempt).cloned().unwrap_or_default();
        if self.is_whole((of, step), &|machine| machines.contains(&machine)) {
            let name = folder_name(step, of);
            self.breaks(|| format!("a checkpoint that is whole is not refused: {name}, {detail}"));
        }
    }
}
