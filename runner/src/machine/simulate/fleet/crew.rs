//! The simulated hosts of the live attempt: they load, train, save and lose each other; the first one leads.

use super::{Fleet, Health, SILENCE, Stage};
use crate::fact::AttemptEnd;
use crate::machine::TrialInput;
use crate::machine::simulate::ranks::{figures, folder};
use dtrain_protocol::{Event, Failure, Rank, StepId, StopReason};

/// Milliseconds that ranks take to start and load.
const TO_LOAD: u64 = 200;

/// Milliseconds of a training step.
const STEP: u64 = 100;

/// Number of steps between two checkpoints.
const SAVE_EVERY: u64 = 2;

/// Milliseconds that the leader waits for other reports after it lost a host or a rank.
const LAST_WORDS: u64 = 200;

impl Fleet<'_> {
    /// Returns `true` if the host of a rank is up.
    pub(super) fn is_up(&self, rank: usize) -> bool {
        self.members.get(rank).is_some_and(|host| self.hosts[*host] == Health::Up)
    }

    /// Places the ranks of a new attempt on hosts that are up, and drops data of older attempts.
    pub(super) fn board(&mut self) {
        let Some(live) = self.world.live.as_ref().filter(|live| live.attempt != self.attempt) else { return };
        self.attempt = live.attempt;
        let up = (0..self.hosts.len()).filter(|host| self.hosts[*host] == Health::Up);
        self.members = up.take(live.ranks as usize).collect();
        assert_eq!(self.members.len(), live.ranks as usize, "an attempt is launched on hosts that are up");
        (self.stage, self.sick_since) = (Stage::Loading(self.clock + TO_LOAD), None);
        let attempt = self.attempt;
        self.world.saved.retain(|(of, ..)| *of == attempt);
        for (_, spool) in self.world.spools.iter_mut().filter(|(of, _)| **of < attempt) {
            spool.truncate(40);
            spool.shrink_to_fit();
        }
    }

    /// Carries out the pending work of the ranks and their leader.
    pub(super) fn work(&mut self) {
        if self.world.live.is_none() {
            return;
        }
        match (0..self.members.len()).find(|rank| !self.is_up(*rank)) {
            Some(rank) => return self.stand_still(rank),
            None if self.sick_since.take().is_some() => {
                self.world.reached.note("a fault healed before it was noticed");
            }
            None => {}
        }
        match self.stage.clone() {
            Stage::Loading(until) | Stage::Training(until) if self.clock < until => {}
            Stage::Loading(_) => {
                self.everybody(|_| Event::Ready {
                    step: StepId(0),
                    parameters: 1,
                    device: "cpu".into(),
                    train_samples: 1,
                    valid_samples: 1,
                    data_fingerprint: String::new(),
                    notice: None,
                });
                self.stage = Stage::Training(self.clock + STEP);
            }
            Stage::Training(_) => self.train(),
            Stage::Ending(when, how) => {
                if when.is_some_and(|when| self.clock >= when) {
                    self.over(how);
                }
            }
        }
    }

    /// Handles a rank whose host is not up: no rank gets past its next collective.
    fn stand_still(&mut self, rank: usize) {
        let since = *self.sick_since.get_or_insert(self.clock);
        let leads = rank != 0;
        let is_dead = matches!(self.hosts[self.members[rank]], Health::Dead(_));
        // The kernel or a reset closes a dead host's connections; a frozen or cut-off host is only silent.
        let notice = if is_dead { 100 } else { SILENCE };
        if self.clock < since + notice {
            return;
        }
        if leads && !matches!(self.stage, Stage::Ending(..)) {
            self.fail(rank, Failure::HostLost { host: format!("node{rank}"), detail: "silent".into() });
        } else if leads {
            let Stage::Ending(when, how) = self.stage.clone() else { return };
            if when.is_some_and(|when| self.clock >= when) {
                self.over(how);
            }
        } else {
            self.world.reached.note("agent lost");
            self.world.live = None;
        }
    }

    /// Loses a rank or its host; all other ranks report a lost peer.
    pub(super) fn fail(&mut self, rank: usize, failure: Failure) {
        let attempt = self.attempt;
        if matches!(self.stage, Stage::Loading(_)) {
            self.world.reached.note("fault while loading");
        }
        self.world.reached.note("rank lost");
        let lost = u32::try_from(rank).map(Rank).unwrap_or(Rank(0));
        self.world.say(attempt, lost, Event::Failed(failure.clone()));
        let silent = Failure::PeerLost { peer: Some(lost), detail: "it closed the connection".into() };
        for other in (0..self.members.len()).filter(|other| *other != rank) {
            self.world.say(attempt, Rank(other as u32), Event::Failed(silent.clone()));
        }
        let hangs = self.world.chance(50);
        if hangs {
            self.world.reached.note("hung agent");
        }
        self.stage = Stage::Ending((!hangs).then_some(self.clock + LAST_WORDS), Err(failure));
    }

    fn train(&mut self) {
        let Some(live) = &mut self.world.live else { return };
        let first = live.from.as_ref().map_or(0, |point| point.step.0);
        live.step = live.step.max(first) + 1;
        let (step, stops) = (live.step, live.asked_to_stop);
        self.everybody(|_| Event::Step(figures(step)));
        let is_last = step >= self.last || stops;
        if is_last || step.is_multiple_of(SAVE_EVERY) {
            self.save(StepId(step));
        }
        self.stage = Stage::Training(self.clock + STEP);
        if is_last {
            let reason = if stops { StopReason::Ordered } else { StopReason::Complete };
            self.everybody(|_| Event::Finished { step: StepId(step), reason });
            self.world.finished.insert(self.attempt);
            self.stage = Stage::Ending(Some(self.clock), Ok(reason));
        }
    }

    /// Saves a checkpoint on every rank, or on all but one with a full disk; then commits the checkpoint or
    /// reports the failure.
    fn save(&mut self, step: StepId) {
        let (attempt, at) = (self.attempt, folder(self.attempt, step));
        let full = self.full.take();
        let mut is_whole = true;
        for rank in 0..self.members.len() {
            let event = if full == Some(self.members[rank]) {
                is_whole = false;
                self.world.reached.note("disk full");
                Event::SaveFailed { step, reason: "no room".into(), retries: false }
            } else {
                self.world.saved.insert((attempt, step, Rank(rank as u32)));
                Event::Saved { step, folder: at.clone(), files: Vec::new(), stall_seconds: 0.0 }
            };
            self.world.say(attempt, Rank(rank as u32), event);
        }
        if is_whole {
            self.world.committed.insert((attempt, step));
            self.world.spool(attempt, TrialInput::Committed { attempt, step, folder: at });
        } else {
            self.world.spool(attempt, TrialInput::CommitFailed { attempt, step });
        }
    }

    /// Lets the leader report how the attempt ended, and ends all its processes.
    fn over(&mut self, how: Result<StopReason, Failure>) {
        let attempt = self.attempt;
        let ended = match how {
            Ok(reason) => AttemptEnd::Finished(reason),
            Err(failure) => AttemptEnd::Lost(failure),
        };
        self.world.spool(attempt, TrialInput::Over { attempt, ended });
        self.world.live = None;
    }

    fn everybody(&mut self, event: impl Fn(usize) -> Event) {
        for rank in 0..self.members.len() {
            self.world.say(self.attempt, Rank(rank as u32), event(rank));
        }
    }
}
