//! The leader of an attempt as a state machine: inputs in, effects out.
//!
//! It has no socket, clock, disk or process. It sends the same messages to its own host as to all others, and
//! a simulator can run it with hosts, disks and a network that fail.

mod commit;
mod hosts;
mod io;
mod launch;
mod rank_state;
mod shutdown;
mod target;
#[cfg(test)]
mod tests;

pub(super) use io::{AttemptConfig, AttemptEffect, AttemptInput, ClockReading, HostState, LEADER_HOST};

use super::messages::{HostMessage, LeaderMessage};
use crate::machine::{Millis, more_severe};
use crate::spool::SpoolRecord;
use commit::PendingCommit;
use dtrain_protocol::{Event, Failure, LeaveCause, Order, Rank, SavedFile, StampedEvent, StepId, StopReason};
use launch::PendingLaunch;
use rank_state::{RankState, stop_grace_ms};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use target::TargetWatch;

/// Milliseconds that ranks have to end by themselves after another rank was lost.
const RANK_LOSS_GRACE_MS: u64 = 2_000;

/// Milliseconds that ranks have to end after a whole host was lost: no rank can tell more than that.
const HOST_LOSS_GRACE_MS: u64 = 200;

/// Milliseconds that a host has to answer a request that needs no checkpoint work.
const ANSWER_TIMEOUT_MS: u64 = 60_000;

/// Milliseconds without progress of a host's checkpoint work after which the host counts as lost. Flushing
/// gigabytes to a slow disk takes minutes.
const WORK_STALL_MS: u64 = 300_000;

/// Milliseconds without progress of an agent's loop after which its host counts as lost.
const LOOP_STALL_MS: u64 = 30_000;

/// The phase of an attempt.
#[derive(Clone, Debug, PartialEq)]
enum AttemptPhase {
    Launching(PendingLaunch),
    Running,
    /// No rank is alive, and the mirror of the spool has been flushing since this time.
    Sealing(Millis),
    Over,
}

/// State machine of the leader of an attempt.
#[derive(Debug)]
pub(super) struct Leader {
    settings: AttemptConfig,
    hosts: BTreeMap<u32, HostState>,
    ranks: Vec<RankState>,
    phase: AttemptPhase,
    /// Files saved by each rank and not committed yet; `None` for a rank that failed to save.
    saved: BTreeMap<StepId, BTreeMap<Rank, Option<Vec<SavedFile>>>>,
    commits: BTreeMap<StepId, PendingCommit>,
    /// Number of times in a row that a rank failed to save, for ranks that did.
    failed_saves: BTreeMap<Rank, u32>,
    addresses: BTreeMap<Rank, String>,
    /// Progress of a foreign program towards its target.
    target: TargetWatch,
    /// The most severe failure so far; `None` before the first.
    cause: Option<Failure>,
    /// The reason for which the ranks were asked to stop; `None` if they were not.
    stopping: Option<StopReason>,
    /// True if the user asked the attempt to stop.
    is_stopped_by_user: bool,
    /// Hosts that leave, and why: the attempt ends, and the trial continues on the others.
    leaving: BTreeMap<u32, LeaveCause>,
    /// True if a controller ended the attempt, so that the next one runs on other hosts.
    is_regrouped: bool,
    /// Time at which the remaining ranks are killed, if they are to be.
    kill_at: Option<Millis>,
    /// Time of the last report of a training rank; `None` before the first step, while a rank waits for disk
    /// space, and for foreign programs, which may never report.
    last_report_at: Option<Millis>,
    now: ClockReading,
    effects: Vec<AttemptEffect>,
}

impl Leader {
    /// Creates the leader of `hosts`, in the order of their ranks; the first is the leader's own.
    pub(super) fn begin(
        settings: AttemptConfig,
        hosts: BTreeMap<u32, HostState>,
        are_foreign: bool,
        now: ClockReading,
    ) -> (Self, Vec<AttemptEffect>) {
        let world = hosts.values().map(|host| host.ranks.end).max().unwrap_or(0);
        let began = SpoolRecord::Began { attempt: settings.attempt, ranks: world };
        let mut leader = Self {
            settings,
            hosts,
            ranks: (0..world).map(|_| RankState::new(are_foreign)).collect(),
            phase: AttemptPhase::Over,
            saved: BTreeMap::new(),
            commits: BTreeMap::new(),
            failed_saves: BTreeMap::new(),
            addresses: BTreeMap::new(),
            target: TargetWatch::default(),
            cause: None,
            stopping: None,
            is_stopped_by_user: false,
            leaving: BTreeMap::new(),
            is_regrouped: false,
            kill_at: None,
            last_report_at: None,
            now,
            effects: vec![AttemptEffect::Spool(began)],
        };
        leader.launch();
        let effects = std::mem::take(&mut leader.effects);
        (leader, effects)
    }

    /// Handles one input and returns the effects, in order.
    pub(super) fn step(&mut self, now: ClockReading, input: AttemptInput) -> Vec<AttemptEffect> {
        self.now = now;
        if self.phase != AttemptPhase::Over {
            match input {
                AttemptInput::Host(host, message) => self.handle_message(host, message),
                AttemptInput::Lost(host, reason) => self.host_lost(host, &reason),
                AttemptInput::Beat(host, heartbeat) => self.heartbeat(host, heartbeat),
                AttemptInput::Stop => {
                    self.is_stopped_by_user = true;
                    self.stop(StopReason::Ordered);
                }
                AttemptInput::Regroup => self.regroup(),
                AttemptInput::Tick => self.tick(),
            }
            self.end_when_over();
        }
        std::mem::take(&mut self.effects)
    }

    fn are_foreign(&self) -> bool {
        self.ranks.first().is_some_and(RankState::is_foreign)
    }

    fn ask(&mut self, host: u32, message: LeaderMessage) {
        if self.hosts.get(&host).is_some_and(|host| !host.is_lost) {
            self.effects.push(AttemptEffect::Ask(host, message));
        }
    }

    /// Sends a message to every host that has ranks.
    fn ask_all(&mut self, message: impl Fn(&HostState) -> LeaderMessage) {
        let asked = self.hosts.iter().filter(|(_, host)| !host.is_lost && !host.only_lends());
        let asked: Vec<_> = asked.map(|(index, host)| (*index, message(host))).collect();
        self.effects.extend(asked.into_iter().map(|(host, message)| AttemptEffect::Ask(host, message)));
    }

    /// Handles a message from a host.
    fn handle_message(&mut self, host: u32, message: HostMessage) {
        let Some(known) = self.hosts.get(&host).filter(|host| !host.is_lost) else { return };
        if let Some(rank) = message.rank()
            && !known.ranks.contains(&rank.0)
        {
            return self.host_lost(host, &format!("it sent a message for rank {rank}, which is not its own"));
        }
        match message {
            // No rank is alive, but a poll for notices may fail.
            HostMessage::Event { .. } if matches!(self.phase, AttemptPhase::Sealing(_)) => {}
            HostMessage::Event { rank, event } => self.event(rank, event),
            HostMessage::OutputClosed { rank, garbled, last } => {
                if let Some(words) = garbled {
                    let words = format!("cannot decode a message from rank {rank}: {words}");
                    self.event(rank, Event::Failed(Failure::Other(words)));
                }
                self.rank(rank).close_output(last);
                self.report_rank_end(rank);
            }
            HostMessage::Exited { rank, exit } => {
                self.rank(rank).exit.get_or_insert(exit);
                self.report_rank_end(rank);
            }
            HostMessage::MirrorSealed { .. } => self.mirror_sealed(host),
            HostMessage::Prepared { step, outcome } => self.prepared(step, host, outcome),
            HostMessage::Committed { step, outcome } => self.committed(step, host, outcome),
            HostMessage::Terminated => self.host_leaves(host, LeaveCause::Termination),
            HostMessage::NoticeGiven => self.host_leaves(host, LeaveCause::Notice),
            HostMessage::Listed { .. }
            | HostMessage::Fetched { .. }
            | HostMessage::Reserved { .. }
            | HostMessage::Started { .. } => self.handle_launch_answer(host, message),
        }
    }

    /// Asks the ranks, once, to finish their step, save and stop, and sets a deadline.
    fn stop(&mut self, reason: StopReason) {
        match self.phase {
            AttemptPhase::Launching(_) => {
                self.refuse("it was stopped before its ranks were started".to_owned().into());
            }
            AttemptPhase::Running if self.stopping.is_none() => {
                self.stopping = Some(reason);
                self.order_all(Order::Stop);
                if self.are_foreign() {
                    self.kill_by(stop_grace_ms(&self.settings.first));
                } else {
                    // A rank that is silent from here on is killed like any silent rank, even before its
                    // first step.
                    self.last_report_at.get_or_insert(self.now.moment);
                }
            }
            AttemptPhase::Running | AttemptPhase::Sealing(_) | AttemptPhase::Over => {}
        }
    }

    fn order_all(&mut self, order: Order) {
        let order = Arc::new(order);
        self.ask_all(|_| LeaderMessage::Order { order: Arc::clone(&order) });
    }

    /// Spools an event, then acts on it.
    fn event(&mut self, rank: Rank, event: Event) {
        let event = self.with_host(rank, event);
        let (attempt, at_ms) = (self.settings.attempt, self.now.wall_ms);
        let sequence = self.rank(rank).next_sequence();
        let stamped = StampedEvent { attempt, rank, sequence, at_ms, event: event.clone() };
        let is_target = self.reaches_target(&stamped);
        self.effects.push(AttemptEffect::Spool(SpoolRecord::Event(stamped)));
        self.reset_stall_timer(&event);
        match event {
            Event::Listening(address) => {
                self.addresses.insert(rank, address);
                if self.addresses.len() == self.ranks.len() {
                    self.order_all(Order::Peers(self.addresses.values().cloned().collect()));
                }
            }
            Event::Saved { step, files, .. } => self.rank_saved(step, rank, Some(files)),
            // The rank tries again; the parts of the others stay.
            Event::SaveFailed { retries: true, reason, .. } => {
                self.save_failed(rank, &reason);
            }
            Event::SaveFailed { step, reason, .. } => {
                self.rank(rank).unsaved = Some(reason.clone());
                self.rank_saved(step, rank, None);
                self.save_failed(rank, &reason);
            }
            Event::Finished { reason, .. } => self.rank(rank).finished = Some(reason),
            Event::Failed(failure) => {
                self.rank(rank).has_failed = true;
                self.cause = Some(more_severe(self.cause.take(), failure));
                self.kill_by(RANK_LOSS_GRACE_MS);
            }
            Event::Step(_) | Event::Validated { .. } | Event::Metrics { .. } if is_target => {
                self.stop_at_target();
            }
            Event::Ready { .. }
            | Event::Step(_)
            | Event::Validated { .. }
            | Event::Validating { .. }
            | Event::Metrics { .. }
            | Event::Notice(_) => {}
        }
    }

    /// Resets the stall timer, the watchdog of a hung rank. Training ranks report every step; if all of
    /// them are silent, no rank notices, so the leader must.
    fn reset_stall_timer(&mut self, event: &Event) {
        let is_training = matches!(event, Event::Step(_)) && !self.are_foreign();
        let waits_for_room = matches!(event, Event::SaveFailed { retries: true, .. });
        let now = self.now.moment;
        self.last_report_at =
            self.last_report_at.or(is_training.then_some(now)).map(|_| now).filter(|_| !waits_for_room);
    }

    /// Ends an attempt if no rank has reported anything for the longest time that a rank may be idle.
    fn end_silent_ranks(&mut self) {
        let limits = self.settings.first.waits;
        let limit = Duration::from_secs_f64(limits.idle_seconds.max(0.0));
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        if self.last_report_at.is_none_or(|at| self.now.moment < at.after(limit_ms)) {
            return;
        }
        let expected = limits
            .step_seconds
            .map_or_else(String::new, |s| format!("; the plan expects a step of {s:.1} s"));
        let words = format!("no rank has reported anything for {} s{expected}", limit.as_secs());
        self.last_report_at = None;
        if self.stopping.is_some() {
            // No other attempt follows, so no failure is reported.
            self.effects
                .push(AttemptEffect::Note(format!("{words} since the order to stop; killing the ranks")));
            return self.kill_by(0);
        }
        if let Some((_, rank)) = self.living_ranks().first().copied() {
            self.event(rank, Event::Failed(Failure::Other(words)));
        }
    }

    /// Once a rank has ended and all its output was read, reports the end for it if it did not.
    fn report_rank_end(&mut self, rank: Rank) {
        let stopping = self.stopping;
        if let Some(event) = self.rank(rank).closing_event(rank, stopping) {
            self.event(rank, event);
        }
        if self.has_held_target() {
            self.stop_at_target();
        }
    }

    fn tick(&mut self) {
        let now = self.now.moment;
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            for (host, rank) in self.living_ranks() {
                self.rank(rank).was_killed = true;
                self.ask(host, LeaderMessage::Kill { rank });
            }
        }
        let stands_still = |host: &HostState| !host.is_lost && now >= host.turned_at.after(LOOP_STALL_MS);
        let still: Vec<u32> =
            self.hosts.iter().filter(|(_, host)| stands_still(host)).map(|(i, _)| *i).collect();
        for host in still.into_iter().filter(|host| *host != LEADER_HOST) {
            self.host_lost(host, &format!("its agent did nothing for {} s", LOOP_STALL_MS / 1000));
        }
        match self.phase {
            AttemptPhase::Launching(_) => self.check_launch_timeout(),
            AttemptPhase::Running => {
                self.check_commit_timeouts();
                self.end_silent_ranks();
            }
            AttemptPhase::Sealing(since) if now >= since.after(ANSWER_TIMEOUT_MS) => self.dismiss(),
            AttemptPhase::Sealing(_) | AttemptPhase::Over => {}
        }
    }

    /// Returns the ranks that have not ended, each with the index of its host.
    fn living_ranks(&self) -> Vec<(u32, Rank)> {
        let lives = |rank: &u32| self.ranks[*rank as usize].exit.is_none();
        let of = |(index, host): (&u32, &HostState)| {
            let index = *index;
            host.ranks.clone().filter(lives).map(move |rank| (index, Rank(rank))).collect::<Vec<_>>()
        };
        self.hosts.iter().flat_map(of).collect()
    }

    fn kill_by(&mut self, after_ms: u64) {
        let when = self.now.moment.after(after_ms);
        self.kill_at = Some(self.kill_at.map_or(when, |at| at.min(when)));
    }

    fn rank(&mut self, rank: Rank) -> &mut RankState {
        &mut self.ranks[rank.0 as usize]
    }
}
