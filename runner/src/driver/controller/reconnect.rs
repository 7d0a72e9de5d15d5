//! Reconnection to an attempt: finds its agent, waits for it, or reads the spool that it left behind.

use super::{SILENCE, TrialController};
use crate::control_protocol::LaunchError;
use crate::driver::DriveError;
use crate::driver::agent_connection::AgentConnection;
use crate::fault_attribution::launch_failure;
use crate::launch::{AgentContact, SpoolUnreadable};
use crate::machine::TrialInput;
use crate::spool::{SpoolEnd, SpoolReader, SpoolRecord};
use crate::trial_event::ControllerStatus;
use dtrain_protocol::frame::FrameError;
use dtrain_protocol::{AttemptId, Failure};
use std::io::Read;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Delay before an unreachable host is asked again.
const AWAY: Duration = Duration::from_millis(500);

/// Interval between checks for interrupts while a record is read.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Maximum number of records that queue between the thread that reads a spool left behind and the
/// controller's loop.
const QUEUE: usize = 256;

/// State of the search for an attempt without a connection.
struct ReconnectState {
    /// Deadline for a living agent that is silent, and whether the agent was killed for it.
    silent_until: Instant,
    is_killed: bool,
    /// Time since which no host of the attempt has been reachable or has confirmed that the attempt runs.
    away_since: Option<Instant>,
    /// What was shown about unreachable hosts: whether their ranks train. `None` if nothing was.
    shown: Option<bool>,
    /// Spool offset at which reading got stuck, and the time since when.
    unread: Option<(u64, Instant)>,
}

impl TrialController<'_> {
    /// Connects to the agent of the open attempt; if it is gone, reads its spool and reports the loss.
    pub(super) fn reconnect(&mut self, attempt: AttemptId) -> Result<(), DriveError> {
        self.link = None;
        let mut search = ReconnectState {
            silent_until: Instant::now() + SILENCE,
            is_killed: false,
            away_since: None,
            shown: None,
            unread: None,
        };
        loop {
            let read = self.read;
            match self.with_launcher(|launcher| launcher.reach(attempt, read))? {
                AgentContact::Connected(connection) => {
                    let agent = connection.agent;
                    (self.heard_at, self.followed) = (Instant::now(), Some(attempt));
                    self.is_cancelled = false;
                    self.link = Some(AgentConnection::of(attempt, self.read, connection, self.folder.path()));
                    return self.show(ControllerStatus::Attached { attempt, agent });
                }
                AgentContact::Away { reason, is_at_work } => {
                    self.wait_for_hosts(attempt, reason, is_at_work, &mut search)?;
                }
                AgentContact::Silent if Instant::now() < search.silent_until => {
                    thread::sleep(Duration::from_millis(20));
                }
                AgentContact::Silent if search.is_killed => return Err(DriveError::Unreachable(attempt)),
                AgentContact::Silent => {
                    self.show(ControllerStatus::Killing { attempt })?;
                    self.with_launcher(|launcher| launcher.kill(attempt))?;
                    (search.silent_until, search.is_killed) = (Instant::now() + SILENCE, true);
                }
                AgentContact::Gone => {
                    if self.finish_lost_attempt(attempt, None, &mut search)? {
                        return Ok(());
                    }
                }
                AgentContact::GoneWithItsHost { host, reason } => {
                    let lost = Failure::HostLost { host, detail: reason };
                    if self.finish_lost_attempt(attempt, Some(lost), &mut search)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Waits a moment for unreachable hosts; gives them up after a while, unless other hosts say that the
    /// agent works.
    fn wait_for_hosts(
        &mut self,
        attempt: AttemptId,
        reason: String,
        is_at_work: bool,
        search: &mut ReconnectState,
    ) -> Result<(), DriveError> {
        if self.is_cancelled || self.drive.interrupts.is_pending() {
            return Err(DriveError::Away { attempt, reason });
        }
        let lost_after = self.drive.options.lost_after;
        let since = *search.away_since.get_or_insert_with(Instant::now);
        if is_at_work {
            search.away_since = None;
        } else if self.may_give_up && since.elapsed() >= lost_after {
            if self.with_launcher(|launcher| launcher.pool().is_some_and(|pool| pool.give_up(attempt)))? {
                self.show(ControllerStatus::HostLost { attempt, reason, seconds: lost_after.as_secs_f64() })?;
                return Ok(());
            }
            search.away_since = None;
        }
        if search.shown.replace(is_at_work) != Some(is_at_work) {
            self.show(ControllerStatus::Unreachable { attempt, reason, is_at_work })?;
        }
        thread::sleep(AWAY);
        search.silent_until = Instant::now() + SILENCE;
        Ok(())
    }

    /// Reads the spool of an attempt that is gone, then tells the state machine; returns `true` if it did so.
    /// As long as the rest of the spool is unreadable, the machine is not told, until the spool's host is
    /// given up. `lost` is the failure if that host is already gone.
    fn finish_lost_attempt(
        &mut self,
        attempt: AttemptId,
        lost: Option<Failure>,
        search: &mut ReconnectState,
    ) -> Result<bool, DriveError> {
        let read = self.read;
        let leftover = self.with_launcher(|launcher| launcher.spool_remainder(attempt, read))?;
        let unread = match leftover {
            Ok(leftover) => self.read_leftover(attempt, leftover)?.err(),
            Err(SpoolUnreadable::Away(reason)) => Some(reason),
            Err(SpoolUnreadable::Failed(source)) => {
                let path = self.folder.spool(attempt);
                return Err(DriveError::Folder { doing: "read", path, source });
            }
        };
        // Another host may have more of the spool than one that is gone, or that came back without its disk.
        let read = self.read;
        let mut is_mirrored = false;
        if self.machine.open_attempt() == Some(attempt)
            && let Some(mirror) =
                self.with_launcher(|launcher| launcher.pool()?.mirrored_spool(attempt, read))?
        {
            // A damaged mirror is not worth waiting for.
            is_mirrored = self.read_leftover(attempt, mirror)?.is_ok() && self.read > read;
        }
        let Some(reason) = unread.filter(|_| self.machine.open_attempt() == Some(attempt)) else {
            self.report_attempt_gone(attempt, lost);
            return Ok(true);
        };
        // An attempt that this controller launched or followed, or whose mirror was read, has few unread records, and the
        // other hosts wait.
        let is_little = lost.is_some() && (is_mirrored || self.followed == Some(attempt));
        let patience = if is_little { Duration::ZERO } else { self.drive.options.patience };
        let begun = search.unread.filter(|(read, _)| *read == self.read);
        let (_, since) = *search.unread.insert(begun.unwrap_or((self.read, Instant::now())));
        let is_over = since.elapsed() >= patience;
        if is_over && self.may_give_up {
            self.report_attempt_gone(attempt, lost);
            self.show(ControllerStatus::SpoolLost { attempt, reason })?;
            return Ok(true);
        }
        if is_over || self.is_cancelled || self.drive.interrupts.is_pending() {
            self.flush()?;
            return Err(DriveError::Unread { attempt, reason });
        }
        if begun.is_none() {
            let seconds = patience.as_secs_f64();
            self.show(ControllerStatus::SpoolUnavailable { attempt, reason, seconds })?;
        }
        thread::sleep(AWAY);
        Ok(false)
    }

    /// Reads the rest of an attempt's spool. The inner `Err` says why it cannot be read now.
    fn read_leftover(
        &mut self,
        attempt: AttemptId,
        leftover: Box<dyn Read + Send>,
    ) -> Result<Result<(), String>, DriveError> {
        let mut reader = SpoolReader::at(self.read, leftover);
        let (sender, records) = sync_channel::<(u64, Result<SpoolRecord, SpoolEnd>)>(QUEUE);
        thread::spawn(move || {
            loop {
                let next = reader.next();
                let is_end = next.is_err();
                if sender.send((reader.offset(), next)).is_err() || is_end {
                    return;
                }
            }
        });
        loop {
            let (offset, next) = match records.recv_timeout(LOOK_EVERY) {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) => {
                    if self.drive.interrupts.is_pending() {
                        return Ok(Err("interrupted while it was read".into()));
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("the end of it is sent"),
            };
            match next {
                Ok(record) => {
                    self.process_record(attempt, offset, record)?;
                    if self.machine.open_attempt() != Some(attempt) {
                        return Ok(Ok(()));
                    }
                    // The spool may be larger than memory.
                    self.flush_if_due()?;
                }
                Err(SpoolEnd::Damaged(FrameError::Io(error))) => return Ok(Err(error.to_string())),
                Err(SpoolEnd::Damaged(error)) => {
                    self.report_damage(attempt, &error)?;
                    return Ok(Ok(()));
                }
                Err(SpoolEnd::End) => return Ok(Ok(())),
            }
            if self.drive.interrupts.is_pending() {
                return Ok(Err("interrupted while it was read".into()));
            }
        }
    }

    /// Reports that an attempt is gone and that its spool was read as far as possible.
    fn report_attempt_gone(&mut self, attempt: AttemptId, lost: Option<Failure>) {
        if self.machine.open_attempt() != Some(attempt) {
            return;
        }
        // The loss of the host says more than the launch without an answer.
        let unlaunched = self.unlaunched.take().filter(|_| self.read == 0 && lost.is_none());
        self.inputs.push_back(match unlaunched {
            Some(reason) => {
                TrialInput::LaunchFailed { attempt, failure: launch_failure(&LaunchError::Unknown(reason)) }
            }
            None => TrialInput::Gone { attempt, lost },
        });
    }
}
