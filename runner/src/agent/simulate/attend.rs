//! The simulated controller at work: it reads answers and spools, and finds out which attempts are lost.

use super::World;
use super::bugs::Bug;
use super::controller::Controller;
use super::fencing::name_of;
use super::network::Endpoint;
use crate::control_protocol::LaunchError;
use crate::machine::TrialInput;
use crate::spool::SpoolRecord;
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{AttemptId, Failure};

/// Number of records that the controller reads in one tick for each machine; at least `READ_LEAST` in all.
const READ: usize = 16;
const READ_LEAST: usize = 64;

/// Milliseconds that a leader has to answer while a follower reports the attempt as over.
const TO_ANSWER: u64 = 3_000;

impl World<'_> {
    /// Carries out the controller's pending work, and reads the spools that it can reach.
    pub(super) fn attend(&mut self) {
        if self.now < self.controller.away_until {
            return;
        }
        self.tell(TrialInput::Tick);
        self.fence_returned();
        while let Some(input) = self.controller.owed.pop_front() {
            self.tell(input);
        }
        self.hear_answers();
        let Some(open) = self.controller.machine.open_attempt() else {
            self.controller.connected = None;
            return;
        };
        if self.controller.owed.iter().any(|input| matches!(input, TrialInput::LaunchFailed { .. })) {
            return;
        }
        let Some(machines) = self.controller.launched.get(&open).cloned() else {
            // The controller crashed after the launch was recorded and before it happened.
            return self.tell(TrialInput::Gone { attempt: open, lost: None });
        };
        let leader = machines[0];
        let is_alive = self.agents.contains_key(&(open, leader));
        let is_reached = self.talk(Endpoint::Controller, Endpoint::Machine(leader));
        self.controller.connected = (is_reached && is_alive).then_some(open);
        if is_reached {
            self.controller.unreachable_since = None;
            return self.read(open, leader);
        }
        let now = self.now;
        let since = *self.controller.unreachable_since.get_or_insert(now);
        if self.has(Bug::GoneWhenSilent) {
            return self.tell(TrialInput::Gone { attempt: open, lost: None });
        }
        let answers = |machine: &&usize| self.talk(Endpoint::Controller, Endpoint::Machine(**machine));
        let followers: Vec<usize> = machines[1..].iter().filter(answers).copied().collect();
        let is_over = followers.iter().any(|machine| !self.agents.contains_key(&(open, *machine)));
        if is_over && now >= since + TO_ANSWER {
            self.reached.note("lost with its host");
            self.lose(open, &machines, &followers);
        } else if now >= since + self.setup.lost_after {
            self.reached.note("given up");
            self.controller.given_up.insert(open);
            self.controller.has_given_up = true;
            self.lose(open, &machines, &followers);
        }
    }

    /// Counts the leader's host as lost: kills the reachable followers and reads the mirror.
    fn lose(&mut self, attempt: AttemptId, machines: &[usize], followers: &[usize]) {
        self.controller.unread.insert(attempt);
        for machine in followers {
            self.agents.remove(&(attempt, *machine));
        }
        self.read_mirror(attempt);
        let lost = Failure::HostLost { host: name_of(machines[0]), detail: "it is away".into() };
        if self.controller.machine.open_attempt() == Some(attempt) {
            self.tell(TrialInput::Gone { attempt, lost: Some(lost) });
        }
    }

    fn hear_answers(&mut self) {
        for (attempt, machine, answer) in std::mem::take(&mut self.controller.answers) {
            let is_open = self.controller.machine.open_attempt() == Some(attempt);
            let (Err(reason), true) = (answer, is_open) else { continue };
            if !self.talk(Endpoint::Controller, Endpoint::Machine(machine)) {
                continue;
            }
            let failure = match reason {
                LaunchError::Checkpoint(detail) => {
                    let folder =
                        self.controller.newest().map(|point| point.folder.clone()).unwrap_or_default();
                    self.may_refuse(attempt, &folder, &detail);
                    Failure::CorruptCheckpoint { folder, detail }
                }
                other => self.launch_failure(other, machine),
            };
            self.tell(TrialInput::LaunchFailed { attempt, failure });
        }
    }

    /// Reads the spool of an attempt whose leader's machine answers.
    fn read(&mut self, open: AttemptId, leader: usize) {
        let is_alive = self.agents.contains_key(&(open, leader));
        for _ in 0..READ_LEAST.max(READ * self.setup.machines) {
            // A request about a dead attempt creates its spool, which prevents a late launch.
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
                if let Some(input) = self.controller.input_of(record) {
                    self.tell(input);
                }
                if self.controller.machine.open_attempt() != Some(open) {
                    return;
                }
            } else {
                break;
            }
        }
        let records = self.places[leader].disk.spools[&open].records.len();
        if self.controller.kept.get(&open).is_some_and(|kept| *kept > records) {
            return self.breaks(|| format!("NL-1: what a controller was told is on disk: attempt {open}"));
        }
        let is_read = self.controller.read >= records || self.has(Bug::GoneBeforeRead);
        if !is_alive && is_read {
            self.reached.note("found gone");
            // Its host may have come back without the end of the spool.
            self.read_mirror(open);
            if self.controller.machine.open_attempt() == Some(open) {
                self.tell(TrialInput::Gone { attempt: open, lost: None });
            }
        }
    }

    /// Checks that a checkpoint is refused only if it is incomplete.
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

impl Controller {
    /// Returns the state machine's input for a record of the open attempt's spool, and remembers a failure in it.
    pub(super) fn input_of(&mut self, record: SpoolRecord) -> Option<TrialInput> {
        Some(match record {
            SpoolRecord::Began { attempt, ranks } => TrialInput::Began { attempt, ranks },
            SpoolRecord::Event(stamped) => {
                self.reports.observe(&stamped);
                TrialInput::Event(stamped)
            }
            SpoolRecord::Committed { attempt, step, folder } => {
                TrialInput::Committed { attempt, step, folder }
            }
            SpoolRecord::CommitFailed { attempt, step, .. } => TrialInput::CommitFailed { attempt, step },
            SpoolRecord::Over { attempt, ended } => {
                TrialInput::Over { attempt, ended: self.reports.with_leader(ended) }
            }
            SpoolRecord::TargetReached { .. } | SpoolRecord::Unreadable { .. } => return None,
        })
    }
}
