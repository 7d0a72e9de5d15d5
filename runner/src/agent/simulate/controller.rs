//! The simulated controller: the real state machine, its history, and its view of machines that it may not
//! reach.

use super::World;
use super::bugs::Bug;
use super::fencing::name_of as name_of_machine;
use super::network::Endpoint;
use super::promises::{durable, name_of};
use super::ranks::AttemptTraining;
use super::reports::CHECKPOINTS;
use crate::agent::leader;
use crate::control_protocol::LaunchError;
use crate::fact::Fact;
use crate::fault_attribution::FailureReports;
use crate::launch::AttemptHosts;
use crate::machine::{Millis, TrialEffect, TrialInput, TrialMachine};
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{AttemptId, Failure, ResumePoint};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Maximum delay of a request that is not lost, in milliseconds.
const LATE: u64 = 20_000;

/// Number of ranks on each machine.
pub(super) const RANKS: u32 = 2;

/// A delayed request of the controller, with the time of its arrival.
pub(super) struct Late {
    due: u64,
    attempt: AttemptId,
    request: Request,
}

enum Request {
    Launch { placed: Vec<(usize, Range<u32>)>, resume: Option<String> },
    Stop,
}

/// The simulated controller, as the user started it.
pub(super) struct Controller {
    pub(super) machine: TrialMachine,
    pub(super) ledger: Vec<Fact>,
    /// The machines of each attempt, the leader first; stored on the controller's disk.
    pub(super) launched: BTreeMap<AttemptId, Vec<usize>>,
    /// Number of records of the open attempt that the state machine has received.
    pub(super) read: usize,
    /// The highest number of records that the history has had of each attempt.
    pub(super) kept: BTreeMap<AttemptId, usize>,
    pub(super) owed: VecDeque<TrialInput>,
    /// Answers of agents to launches, with their machines.
    pub(super) answers: Vec<(AttemptId, usize, Result<(), LaunchError>)>,
    pub(super) away_until: u64,
    /// Attempts whose leader's host was lost, so that its spool could not be read.
    pub(super) unread: BTreeSet<AttemptId>,
    /// Attempts that were given up after their leader was unreachable for too long: the leader may be alive.
    pub(super) given_up: BTreeSet<AttemptId>,
    /// Failures that the ranks of the open attempt reported to this controller.
    pub(super) reports: FailureReports,
    /// The hosts that may run attempts; their names are on the controller's disk.
    pub(super) hosts: AttemptHosts,
    /// Time at which returned hosts were last asked to end older attempts.
    pub(super) fenced_at: u64,
    /// The attempt whose agent the controller is connected to.
    pub(super) connected: Option<AttemptId>,
    /// True if the controller gave the leader's host of the newest attempt up.
    pub(super) has_given_up: bool,
    pub(super) unreachable_since: Option<u64>,
    /// Time at which the controller's clock began.
    began: u64,
}

impl Controller {
    pub(super) fn new() -> Self {
        let (machine, _) = TrialMachine::replay(&[]);
        Self {
            machine,
            ledger: Vec::new(),
            launched: BTreeMap::new(),
            read: 0,
            kept: BTreeMap::new(),
            owed: VecDeque::new(),
            answers: Vec::new(),
            away_until: 0,
            unread: BTreeSet::new(),
            given_up: BTreeSet::new(),
            reports: FailureReports::default(),
            hosts: AttemptHosts::default(),
            fenced_at: 0,
            connected: None,
            has_given_up: false,
            unreachable_since: None,
            began: 0,
        }
    }

    /// Returns `true` if the controller only waits for records.
    pub(super) fn is_idle(&self, now: u64) -> bool {
        let reads = self.machine.open_attempt().is_some() && self.unreachable_since.is_none();
        now >= self.away_until && self.owed.is_empty() && self.answers.is_empty() && reads
    }

    /// Returns the newest checkpoint that the controller counts.
    pub(super) fn newest(&self) -> Option<&ResumePoint> {
        self.machine.newest_checkpoint()
    }
}

impl World<'_> {
    /// Feeds a request of the user to the controller's state machine.
    pub(super) fn user(&mut self, input: TrialInput) {
        self.tell(input);
    }

    /// Resumes a trial that has ended, as a user would, since no controller resumes it by itself.
    pub(super) fn resume_what_stands_still(&mut self) {
        if self.controller.machine.open_attempt().is_none() && self.controller.machine.verdict().is_some() {
            self.tell(TrialInput::Resume);
        }
    }

    pub(super) fn tell(&mut self, input: TrialInput) {
        if let TrialInput::Gone { attempt, .. } = &input {
            self.reads_all(*attempt);
        }
        let moment = Millis(self.now - self.controller.began);
        let mut effects = self.controller.machine.step(moment, input);
        loop {
            let mut crashed = false;
            for effect in effects.drain(..) {
                if self.is_chaos && self.draw(self.setup.crash) == 0 {
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

    /// Kills the controller and restarts it immediately.
    pub(super) fn crash(&mut self) {
        let effects = self.replay();
        for effect in effects {
            self.perform(effect);
        }
    }

    fn replay(&mut self) -> Vec<TrialEffect> {
        let (machine, effects) = TrialMachine::replay(&self.controller.ledger);
        self.controller.machine = machine;
        (self.controller.read, self.controller.began) = (0, self.now);
        self.controller.owed.clear();
        self.controller.answers.clear();
        self.controller.reports = FailureReports::default();
        let names: Vec<String> = self.controller.hosts.names().map(str::to_owned).collect();
        self.controller.hosts = AttemptHosts::restore(names);
        (self.controller.connected, self.controller.has_given_up) = (None, false);
        // The restarted controller resumes the trial.
        self.controller.owed.push_back(TrialInput::Resume);
        effects
    }

    fn perform(&mut self, effect: TrialEffect) {
        match effect {
            TrialEffect::Record(fact) => self.record(fact),
            TrialEffect::Discover => self.look(),
            TrialEffect::Launch { attempt, from } => self.launch(attempt, from),
            TrialEffect::SendStop { attempt } => {
                if self.draw(4) == 0 {
                    let due = self.now + self.draw(LATE);
                    self.late.push(Late { due, attempt, request: Request::Stop });
                }
                self.ask_to_stop(attempt);
            }
            TrialEffect::Kill { attempt } => {
                self.reached.note("attempt killed");
                for machine in self.controller.launched.get(&attempt).cloned().unwrap_or_default() {
                    if self.talk(Endpoint::Controller, Endpoint::Machine(machine)) {
                        self.agents.remove(&(attempt, machine));
                    }
                }
            }
            TrialEffect::Done { .. } => self.fence_at_end(),
            TrialEffect::WakeAt(_) => {}
        }
    }

    fn record(&mut self, fact: Fact) {
        if let Some(name) = durable(&fact) {
            self.reached.note("durable checkpoint");
            self.counts(name);
        }
        self.attribute(&fact);
        self.controller.ledger.push(fact);
    }

    /// Searches the disks of all reachable machines for committed, complete checkpoints.
    fn look(&mut self) {
        self.controller.owed.retain(|input| !input.is_from_discovery());
        let reachable: Vec<bool> = (0..self.setup.machines)
            .map(|machine| self.talk(Endpoint::Controller, Endpoint::Machine(machine)))
            .collect();
        let disks = self.places.iter().zip(&reachable).filter(|(_, answers)| **answers);
        let names: BTreeSet<_> = disks.flat_map(|(place, _)| place.disk.committed()).collect();
        self.held.looked = None;
        for (attempt, step) in names {
            let folder = std::path::PathBuf::from(CHECKPOINTS).join(folder_name(step, attempt));
            let is_there = self.is_whole((attempt, step), &|machine| reachable[machine]);
            if is_there && self.controller.machine.would_adopt(attempt, step, &folder) {
                self.reached.note("found on a disk");
                self.held.looked = Some((attempt, step));
                if !self.has(Bug::FoundForgotten) {
                    self.controller.owed.push_back(TrialInput::Found { attempt, step, folder });
                }
            }
        }
        self.controller.owed.push_back(TrialInput::DiscoveryDone);
    }

    pub(super) fn leader_of(&self, attempt: AttemptId) -> Option<usize> {
        self.controller.launched.get(&attempt)?.first().copied()
    }

    fn launch(&mut self, attempt: AttemptId, from: Option<ResumePoint>) {
        let reachable = |machine: &usize| self.talk(Endpoint::Controller, Endpoint::Machine(*machine));
        let machines: Vec<usize> = (0..self.setup.machines).filter(reachable).take(self.setup.most).collect();
        self.controller.read = 0;
        self.controller.unreachable_since = None;
        self.controller.connected = None;
        self.controller.reports = FailureReports::default();
        if machines.is_empty() {
            self.reached.note("no machine answers");
            let failure = Failure::Infrastructure { host: None, detail: "no host answers".into() };
            return self.controller.owed.push_back(TrialInput::LaunchFailed { attempt, failure });
        }
        let ranks = (0u32..).map(|index| index * RANKS..(index + 1) * RANKS);
        let placed: Vec<_> = machines.iter().copied().zip(ranks).collect();
        let resume = from.as_ref().and_then(|point| point.folder.file_name()?.to_str().map(str::to_owned));
        self.reached.note(if resume.is_some() { "resumed" } else { "begun anew" });
        self.goes_on_from(from.as_ref().and_then(|point| name_of(&point.folder)));
        let step = from.map_or(0, |point| point.step.0);
        let learned = self.learned(resume.as_deref(), step);
        let step = if self.has(Bug::StepForgotten) && step > 0 { step + 1 } else { step };
        self.training.insert(attempt, AttemptTraining::new(&placed, step, learned));
        for machine in &machines {
            self.controller.hosts.launching(attempt, &name_of_machine(*machine));
        }
        self.report_on(attempt, &machines);
        self.controller.launched.insert(attempt, machines);
        self.controller.has_given_up = false;
        let draw = self.draw(12);
        if draw < 2 {
            // The request is delayed, or duplicated.
            let due = self.now + self.draw(LATE);
            let request = Request::Launch { placed: placed.clone(), resume: resume.clone() };
            self.late.push(Late { due, attempt, request });
        }
        if draw != 0 {
            self.launch_on(attempt, &placed, resume);
        }
    }

    fn ask_to_stop(&mut self, attempt: AttemptId) {
        if let Some(machine) = self.leader_of(attempt)
            && self.talk(Endpoint::Controller, Endpoint::Machine(machine))
        {
            self.reached.note("asked to stop");
            self.tell_leader(attempt, machine, leader::AttemptInput::Stop);
        }
    }

    /// Delivers delayed requests. A late launch finds the spool of its attempt, if that was launched or is
    /// known to be gone.
    pub(super) fn arrive_late(&mut self) {
        let now = self.now;
        let (due, late) = std::mem::take(&mut self.late).into_iter().partition(|late| late.due <= now);
        self.late = late;
        for Late { attempt, request, .. } in due {
            match request {
                Request::Stop => {
                    self.reached.note("asked to stop once more");
                    self.ask_to_stop(attempt);
                }
                Request::Launch { placed, resume } => {
                    let leader = placed[0].0;
                    let is_known = self.places[leader].disk.spools.contains_key(&attempt);
                    let is_fenced = |(machine, _): &(usize, Range<u32>)| {
                        self.agents.keys().any(|(of, on)| on == *machine && of > attempt)
                    };
                    if (is_known && !self.has(Bug::TombstoneIgnored)) || !self.is_up(leader) {
                        self.reached.note("late launch refused");
                    } else if placed.iter().any(is_fenced) {
                        self.reached.note("late launch finds a newer attempt");
                    } else {
                        self.reached.note("late launch");
                        self.launch_on(attempt, &placed, resume);
                    }
                }
            }
        }
    }
}
