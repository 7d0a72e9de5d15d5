//! One attempt: its launch, and the processing of its records.

use super::fault_attribution::ChosenHosts;
use super::{BEAT, TrialController};
use crate::audit::AuditedAction;
use crate::control_protocol::{AgentOrder, LaunchError};
use crate::driver::anomaly::AnomalyDetector;
use crate::driver::{DriveError, LaunchContext};
use crate::fault_attribution::{FailureReports, launch_failure};
use crate::launch::{AgentContact, AvailableHosts};
use crate::machine::{ATTEMPTS_FOR_A_HOST, Blame, TrialInput};
use crate::spool::{SpoolEnd, SpoolRecord};
use crate::trial_event::{ControllerStatus, TrialEvent};
use dtrain_protocol::frame::FrameError;
use dtrain_protocol::{AttemptId, Failure, ResumePoint};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

/// Silence after which the controller asks if the agent still works.
const QUIET: Duration = Duration::from_secs(2);

impl TrialController<'_> {
    pub(super) fn launch(&mut self, attempt: AttemptId, from: Option<ResumePoint>) -> Result<(), DriveError> {
        self.lock.set_waiting(false);
        (self.link, self.read, self.kept, self.unlaunched) = (None, 0, 0, None);
        self.reports = FailureReports::default();
        if let Some(folder) = from.as_ref().map(|point| point.folder.clone())
            && let Err(detail) = self.with_launcher(|launcher| launcher.verify(&folder))?
        {
            let failure = Failure::CorruptCheckpoint { folder, detail };
            self.inputs.push_back(TrialInput::LaunchFailed { attempt, failure });
            return Ok(());
        }
        if let Some(audit) = &self.drive.audit {
            let failed = |source| DriveError::Audit { path: audit.path().to_owned(), source };
            audit.write(AuditedAction::Launch, Some(attempt)).map_err(failed)?;
        }
        let options = self.drive.options;
        let checkpoints = self.folder.checkpoints();
        let spent_seconds = self.trained.seconds();
        let step = from.as_ref().map(|point| point.step);
        let usable = match self.usable.take() {
            Some(usable) => usable,
            None => self.with_launcher(AvailableHosts::of)?,
        };
        let ChosenHosts { names, mut left_out, drained } = self.choose_hosts(&usable)?;
        let AvailableHosts { hosts, away, .. } = usable;
        // A checkpoint that is missing now may be on a host that comes back.
        let lost = self.machine.failures(Blame::Machines);
        let may_come_back = !away.is_empty() && lost < ATTEMPTS_FOR_A_HOST;
        let is_complete = away.is_empty();
        if !away.is_empty() {
            self.show(ControllerStatus::HostsUnreachable { hosts, unreachable: away })?;
        }
        let launching = |hosts| LaunchContext {
            attempt,
            from: from.clone(),
            spent_seconds,
            checkpoints: checkpoints.clone(),
            hosts,
        };
        let limits = options.hosts;
        let undrained = hosts.saturating_sub(u32::try_from(drained.len()).unwrap_or(hosts));
        if undrained < limits.least {
            let failure = infrastructure(too_few_hosts(undrained, limits.least, &drained));
            self.inputs.push_back(TrialInput::LaunchFailed { attempt, failure });
            return Ok(());
        }
        let lowered = loop {
            let left = u32::try_from(left_out.len()).unwrap_or(undrained);
            let offered = undrained.saturating_sub(left).max(limits.least).min(limits.most);
            let lowered = (self.drive.lower)(&launching(offered));
            // A host with strikes is better than none: the least bad one comes back first.
            if lowered.is_ok() || left_out.pop().is_none() {
                break lowered;
            }
        };
        let assignments = match lowered {
            Ok(assignments) => assignments,
            Err(reason) => {
                let failure = if is_complete { Failure::Other(reason) } else { infrastructure(reason) };
                self.inputs.push_back(TrialInput::LaunchFailed { attempt, failure });
                return Ok(());
            }
        };
        let ranks = u32::try_from(assignments.len()).unwrap_or(u32::MAX);
        self.watch = AnomalyDetector::of(&assignments);
        self.reports = FailureReports::of(&assignments, &names);
        self.report_excluded_hosts(left_out);
        self.show(ControllerStatus::Launching { attempt, ranks, from: step })?;
        let order = AgentOrder {
            trial: self.trial(),
            attempt,
            folder: self.folder.path().to_owned(),
            worker: self.drive.programs.worker.clone(),
            assignments,
            link: options.link.clone(),
            keep: options.keep,
            seat: None,
            others: Vec::new(),
            notice: options.notice.clone(),
        };
        self.followed = Some(attempt);
        match self.with_launcher(|launcher| launcher.launch(&order))? {
            Ok(_) => self.reconnect(attempt),
            Err(LaunchError::Unknown(reason)) => {
                self.unlaunched = Some(reason);
                self.reconnect(attempt)
            }
            Err(not_launched) => {
                let failure = match (not_launched, from) {
                    (LaunchError::Checkpoint(detail), Some(point)) if !may_come_back => {
                        Failure::CorruptCheckpoint { folder: point.folder, detail }
                    }
                    (not_launched, _) => launch_failure(&not_launched),
                };
                self.inputs.push_back(TrialInput::LaunchFailed { attempt, failure });
                Ok(())
            }
        }
    }

    /// Reports once that the rest of the spool cannot be read.
    pub(super) fn report_damage(&mut self, attempt: AttemptId, error: &FrameError) -> Result<(), DriveError> {
        if self.is_at_damaged_record(attempt) {
            return Ok(());
        }
        let (spool, reason) = (self.folder.spool(attempt), error.to_string());
        self.damaged = Some((attempt, self.read));
        self.show(ControllerStatus::SpoolDamaged { spool, offset: self.read, reason })
    }

    /// Returns `true` if the agent's next record is damaged on its disk, so that another connection would not
    /// help.
    fn is_at_damaged_record(&self, attempt: AttemptId) -> bool {
        self.damaged == Some((attempt, self.read))
    }

    /// Waits for the end of an agent whose records can no longer be read.
    fn wait_for_agent_end(&mut self, attempt: AttemptId, patience: Duration) -> Result<(), DriveError> {
        thread::sleep(patience);
        if self.heard_at.elapsed() < QUIET {
            return Ok(());
        }
        self.heard_at = Instant::now();
        let read = self.read;
        match self.with_launcher(|launcher| launcher.reach(attempt, read))? {
            AgentContact::Gone | AgentContact::GoneWithItsHost { .. } => self.reconnect(attempt),
            AgentContact::Connected(_) | AgentContact::Away { .. } | AgentContact::Silent => Ok(()),
        }
    }

    /// Waits for the agent's next record, at most until something else is due.
    pub(super) fn receive_record(&mut self) -> Result<(), DriveError> {
        let now = self.now();
        let due = self.wakes.first().map_or(BEAT, |wake| Duration::from_millis(wake.0.saturating_sub(now.0)));
        let patience = due.min(BEAT);
        let Some(link) = &self.link else {
            thread::sleep(patience);
            return Ok(());
        };
        let attempt = link.attempt;
        if self.is_at_damaged_record(attempt) {
            return self.wait_for_agent_end(attempt, patience);
        }
        match link.heard.recv_timeout(patience) {
            Ok(Ok((offset, record))) => {
                self.heard_at = Instant::now();
                self.process_record(attempt, offset, record)?;
                if self.machine.open_attempt() != Some(attempt) {
                    self.link.take_if(|link| link.attempt == attempt);
                }
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) if self.heard_at.elapsed() < QUIET => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                self.heard_at = Instant::now();
                let answers = self.with_launcher(|launcher| launcher.is_responsive(attempt))?;
                if answers || self.is_cancelled { Ok(()) } else { self.reconnect(attempt) }
            }
            Ok(Err(SpoolEnd::Damaged(FrameError::Io(_)) | SpoolEnd::End))
            | Err(RecvTimeoutError::Disconnected) => self.reconnect(attempt),
            Ok(Err(SpoolEnd::Damaged(error))) => {
                self.heard_at = Instant::now();
                self.report_damage(attempt, &error)
            }
        }
    }

    /// Processes one record of the open attempt's spool. Records that the ledger has go to the state machine
    /// only.
    pub(super) fn process_record(
        &mut self,
        attempt: AttemptId,
        offset: u64,
        record: SpoolRecord,
    ) -> Result<(), DriveError> {
        self.read = offset;
        let is_new = offset > self.kept;
        if is_new {
            self.news.offset = Some((attempt, offset));
            self.news_since.get_or_insert_with(Instant::now);
        }
        let input = match record {
            SpoolRecord::Began { attempt, ranks } => TrialInput::Began { attempt, ranks },
            SpoolRecord::Event(stamped) => {
                self.trained.observe(&stamped);
                self.regrouping.observe(&stamped);
                self.reports.observe(&stamped);
                if is_new {
                    self.news.events.push(stamped.clone());
                    self.queue_event(TrialEvent::Event(stamped.clone()));
                    if let Some(status) = self.watch.observe(&stamped) {
                        self.queue_event(TrialEvent::Status(status));
                    }
                    if let Some((rank, detail)) = self.watch.take_straggler() {
                        self.add_slow_strike(rank, detail);
                    }
                }
                TrialInput::Event(stamped)
            }
            SpoolRecord::Committed { attempt, step, folder } => {
                if is_new {
                    self.grow_if_it_pays(attempt)?;
                }
                TrialInput::Committed { attempt, step, folder }
            }
            SpoolRecord::CommitFailed { attempt, step, reason } => {
                if is_new {
                    self.queue_event(TrialEvent::Status(ControllerStatus::CommitFailed { step, reason }));
                }
                TrialInput::CommitFailed { attempt, step }
            }
            SpoolRecord::TargetReached { attempt } => {
                if is_new {
                    self.queue_event(TrialEvent::Status(ControllerStatus::target_reached(attempt)));
                }
                return Ok(());
            }
            SpoolRecord::Unreadable { at, reason } => {
                self.queue_event(TrialEvent::Status(ControllerStatus::SpoolRecordSkipped {
                    offset: at,
                    reason,
                }));
                return Ok(());
            }
            SpoolRecord::Over { attempt, ended } => {
                TrialInput::Over { attempt, ended: self.reports.with_leader(ended) }
            }
        };
        self.feed(input)
    }
}

/// Returns the reason why no attempt is launched on `hosts` hosts, where `least` are needed.
fn too_few_hosts(hosts: u32, least: u32, drained: &[String]) -> String {
    let drained =
        if drained.is_empty() { String::new() } else { format!("; drained: {}", drained.join(", ")) };
    format!("hosts that answer and are not drained: {hosts}, needed: {least}{drained}")
}

fn infrastructure(detail: String) -> Failure {
    Failure::Infrastructure { host: None, detail }
}
