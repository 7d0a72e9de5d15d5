//! One attempt: it is launched, listened to until it is gone, and what it left behind is read.

use super::{BEAT, Engine, SILENCE};
use crate::agent::spool::{SpoolEnd, SpoolReader};
use crate::agent::{AgentOrder, SpoolRecord};
use crate::driver::link::Link;
use crate::driver::watch::Watch;
use crate::driver::{DriveError, Launching};
use crate::launch::{NotLaunched, Reached, Unread, Usable};
use crate::machine::{ATTEMPTS_WITHOUT_PROGRESS, Input};
use crate::seen::{Seen, Status};
use dtrain_protocol::frame::FrameError;
use dtrain_protocol::{AttemptId, Failure, ResumePoint};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

/// How long before a host that could not be asked is asked again.
const AWAY: Duration = Duration::from_millis(500);

/// How long nothing may be heard of an attempt before its agent is asked whether it does its work.
const QUIET: Duration = Duration::from_secs(2);

impl Engine<'_> {
    /// Looks at the disks of the hosts that answer for checkpoints that no record told of.
    pub(super) fn look(&mut self) {
        self.usable = Some(self.launcher.usable());
        let folder = |attempt, step| self.folder.checkpoint(step, attempt);
        let is_wanted = |attempt, step| self.machine.would_adopt(attempt, step, &folder(attempt, step));
        let found = self.launcher.found(&is_wanted).into_iter();
        let found =
            found.map(|(attempt, step)| Input::Found { attempt, step, folder: folder(attempt, step) });
        self.inputs.retain(|input| !input.is_of_a_look());
        self.inputs.extend(found);
        self.inputs.push_back(Input::Looked);
    }

    pub(super) fn launch(&mut self, attempt: AttemptId, from: Option<ResumePoint>) -> Result<(), DriveError> {
        (self.link, self.read, self.kept, self.unlaunched) = (None, 0, 0, None);
        let unreadable = from.as_ref().and_then(|point| {
            let detail = self.launcher.verify(&point.folder).err()?;
            Some(Failure::CorruptCheckpoint { folder: point.folder.clone(), detail })
        });
        if let Some(failure) = unreadable {
            self.inputs.push_back(Input::LaunchFailed { attempt, failure });
            return Ok(());
        }
        let options = self.drive.options;
        let checkpoints = self.folder.checkpoints();
        let spent_seconds = self.trained.seconds();
        let step = from.as_ref().map(|point| point.step);
        let Usable { hosts, away } = self.usable.take().unwrap_or_else(|| self.launcher.usable());
        // What cannot be had may lie on a host that comes back, until this is the last attempt.
        let may_come_back = !away.is_empty() && self.machine.failures() + 1 < ATTEMPTS_WITHOUT_PROGRESS;
        if !away.is_empty() {
            self.show(Status::HostsAway { hosts, away })?;
        }
        let lowered =
            (self.drive.lower)(&Launching { attempt, from: from.clone(), spent_seconds, checkpoints, hosts });
        let assignments = match lowered {
            Ok(assignments) => assignments,
            Err(reason) => {
                let failure = Failure::Other(reason);
                self.inputs.push_back(Input::LaunchFailed { attempt, failure });
                return Ok(());
            }
        };
        let ranks = u32::try_from(assignments.len()).unwrap_or(u32::MAX);
        self.watch = Watch::of(&assignments);
        self.show(Status::Launching { attempt, ranks, from: step })?;
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
        };
        match self.launcher.launch(&order) {
            Ok(_) => self.listen(attempt),
            Err(NotLaunched::Unknown(reason)) => {
                self.unlaunched = Some(reason);
                self.listen(attempt)
            }
            Err(not_launched) => {
                let failure = match (not_launched, from) {
                    (NotLaunched::Checkpoint(detail), Some(point)) if !may_come_back => {
                        Failure::CorruptCheckpoint { folder: point.folder, detail }
                    }
                    (not_launched, _) => unlaunched(&not_launched.to_string()),
                };
                self.inputs.push_back(Input::LaunchFailed { attempt, failure });
                Ok(())
            }
        }
    }

    /// Connects to the agent of the open attempt; when it is gone, reads what it left behind and says so.
    pub(super) fn listen(&mut self, attempt: AttemptId) -> Result<(), DriveError> {
        self.link = None;
        let mut silent_until = Instant::now() + SILENCE;
        let (mut killed, mut is_told) = (false, false);
        let mut unread: Option<(u64, Instant)> = None;
        loop {
            match self.launcher.reach(attempt, self.read) {
                Reached::Connected(connection) => {
                    let agent = connection.agent;
                    (self.heard_at, self.followed) = (Instant::now(), Some(attempt));
                    self.link = Some(Link::of(attempt, self.read, connection, self.folder.path()));
                    return self.show(Status::Attached { attempt, agent });
                }
                Reached::Away(reason) => {
                    if self.drive.interrupts.count() > self.interrupts {
                        return Err(DriveError::Away { attempt, reason });
                    }
                    if !is_told {
                        is_told = true;
                        self.show(Status::Away { attempt, reason })?;
                    }
                    thread::sleep(AWAY);
                    silent_until = Instant::now() + SILENCE;
                }
                Reached::Silent if Instant::now() < silent_until => thread::sleep(Duration::from_millis(20)),
                Reached::Silent if killed => return Err(DriveError::Unreachable(attempt)),
                Reached::Silent => {
                    self.show(Status::Killing { attempt })?;
                    self.launcher.kill(attempt);
                    (silent_until, killed) = (Instant::now() + SILENCE, true);
                }
                reached @ (Reached::Gone | Reached::GoneWithItsHost(_)) => {
                    let Err(reason) = self.bury(attempt)? else { return Ok(()) };
                    // What this controller did not hear of an attempt that it followed is little, and the other hosts wait.
                    let is_little =
                        matches!(reached, Reached::GoneWithItsHost(_)) && self.followed == Some(attempt);
                    let patience = if is_little { Duration::ZERO } else { self.drive.options.patience };
                    let begun = unread.filter(|(read, _)| *read == self.read);
                    let (_, since) = *unread.insert(begun.unwrap_or((self.read, Instant::now())));
                    let is_over = since.elapsed() >= patience;
                    if is_over && self.may_give_up {
                        self.is_gone(attempt);
                        return self.show(Status::RecordLost { attempt, reason });
                    }
                    if is_over || self.drive.interrupts.count() > self.interrupts {
                        self.keep()?;
                        return Err(DriveError::Unread { attempt, reason });
                    }
                    if begun.is_none() {
                        let seconds = patience.as_secs_f64();
                        self.show(Status::RecordAway { attempt, reason, seconds })?;
                    }
                    thread::sleep(AWAY);
                }
            }
        }
    }

    /// Reads what an attempt left behind to its end, then tells the machine that nothing of it lives. The inner `Err` says why the
    /// rest cannot be read now; the machine is not told then.
    fn bury(&mut self, attempt: AttemptId) -> Result<Result<(), String>, DriveError> {
        let path = self.folder.spool(attempt);
        let leftover = match self.launcher.leftover(attempt, self.read) {
            Ok(leftover) => leftover,
            Err(Unread::Away(reason)) => return Ok(Err(reason)),
            Err(Unread::Failed(source)) => return Err(DriveError::Folder { doing: "read", path, source }),
        };
        let mut reader = SpoolReader::at(self.read, leftover);
        loop {
            match reader.next() {
                Ok(record) => {
                    self.take_in(attempt, reader.offset(), record)?;
                    if self.machine.open() != Some(attempt) {
                        return Ok(Ok(()));
                    }
                    // There may be more of it than memory.
                    self.keep_if_due()?;
                }
                Err(SpoolEnd::Damaged(FrameError::Io(error))) => return Ok(Err(error.to_string())),
                Err(SpoolEnd::Damaged(error)) => {
                    self.mention_damage(attempt, &error)?;
                    break;
                }
                Err(SpoolEnd::End) => break,
            }
            if self.drive.interrupts.count() > self.interrupts {
                return Ok(Err("interrupted while it was read".into()));
            }
        }
        self.is_gone(attempt);
        Ok(Ok(()))
    }

    /// Nothing of an attempt lives, and all it left behind that can be read was.
    fn is_gone(&mut self, attempt: AttemptId) {
        self.inputs.push_back(match self.unlaunched.take().filter(|_| self.read == 0) {
            Some(reason) => Input::LaunchFailed { attempt, failure: unlaunched(&reason) },
            None => Input::Gone { attempt },
        });
    }

    /// Says once that the spool cannot be read further.
    fn mention_damage(&mut self, attempt: AttemptId, error: &FrameError) -> Result<(), DriveError> {
        if self.is_deaf(attempt) {
            return Ok(());
        }
        let (spool, reason) = (self.folder.spool(attempt), error.to_string());
        self.damaged = Some((attempt, self.read));
        self.show(Status::SpoolDamaged { spool, offset: self.read, reason })
    }

    /// Whether what the agent says next is damaged on its disk: hearing it again would tell nothing.
    fn is_deaf(&self, attempt: AttemptId) -> bool {
        self.damaged == Some((attempt, self.read))
    }

    /// Waits for the end of an agent that cannot be heard any more.
    fn wait_out(&mut self, attempt: AttemptId, patience: Duration) -> Result<(), DriveError> {
        thread::sleep(patience);
        if self.heard_at.elapsed() < QUIET {
            return Ok(());
        }
        self.heard_at = Instant::now();
        match self.launcher.reach(attempt, self.read) {
            Reached::Gone | Reached::GoneWithItsHost(_) => self.listen(attempt),
            Reached::Connected(_) | Reached::Away(_) | Reached::Silent => Ok(()),
        }
    }

    /// Waits for what the agent says next, at most until something else is due.
    pub(super) fn hear(&mut self) -> Result<(), DriveError> {
        let now = self.now();
        let due = self.wakes.first().map_or(BEAT, |wake| Duration::from_millis(wake.0.saturating_sub(now.0)));
        let patience = due.min(BEAT);
        let Some(link) = &self.link else {
            thread::sleep(patience);
            return Ok(());
        };
        let attempt = link.attempt;
        if self.is_deaf(attempt) {
            return self.wait_out(attempt, patience);
        }
        match link.heard.recv_timeout(patience) {
            Ok(Ok((offset, record))) => {
                self.heard_at = Instant::now();
                self.take_in(attempt, offset, record)?;
                if self.machine.open() != Some(attempt) {
                    self.link.take_if(|link| link.attempt == attempt);
                }
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) if self.heard_at.elapsed() < QUIET => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                self.heard_at = Instant::now();
                if self.launcher.answers(attempt) { Ok(()) } else { self.listen(attempt) }
            }
            Ok(Err(SpoolEnd::Damaged(FrameError::Io(_)) | SpoolEnd::End))
            | Err(RecvTimeoutError::Disconnected) => self.listen(attempt),
            Ok(Err(SpoolEnd::Damaged(error))) => {
                self.heard_at = Instant::now();
                self.mention_damage(attempt, &error)
            }
        }
    }

    /// Takes in one record of the open attempt's spool. What the ledger already has is only told to the machine.
    fn take_in(&mut self, attempt: AttemptId, offset: u64, record: SpoolRecord) -> Result<(), DriveError> {
        self.read = offset;
        let is_new = offset > self.kept;
        if is_new {
            self.news.offset = Some((attempt, offset));
            self.news_since.get_or_insert_with(Instant::now);
        }
        let input = match record {
            SpoolRecord::Began { attempt, ranks } => Input::Began { attempt, ranks },
            SpoolRecord::Event(stamped) => {
                self.trained.note(&stamped);
                if is_new {
                    self.news.events.push(stamped.clone());
                    self.note(Seen::Event(stamped.clone()));
                    if let Some(status) = self.watch.note(&stamped) {
                        self.note(Seen::Status(status));
                    }
                }
                Input::Event(stamped)
            }
            SpoolRecord::Committed { attempt, step, folder } => Input::Committed { attempt, step, folder },
            SpoolRecord::CommitFailed { attempt, step, reason } => {
                if is_new {
                    self.note(Seen::Status(Status::CommitFailed { step, reason }));
                }
                Input::CommitFailed { attempt, step }
            }
            SpoolRecord::Unreadable { at, reason } => {
                self.note(Seen::Status(Status::RecordSkipped { at, reason }));
                return Ok(());
            }
            SpoolRecord::Over { attempt, ended } => Input::Over { attempt, ended },
        };
        self.tell(input)
    }
}

fn unlaunched(reason: &str) -> Failure {
    Failure::Other(format!("the attempt could not be launched: {reason}"))
}
