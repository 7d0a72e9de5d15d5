//! The leader of an attempt as a state machine: what happens goes in, what is to be done comes out.
//!
//! It has no socket, clock, disk or process. Its own host is a host like the others: it asks all of them with the same
//! messages, and a simulator can run it with hosts, disks and a network that fail.

mod commit;
mod end;
mod io;
mod launch;
mod ranks;
mod target;
#[cfg(test)]
mod tests;

pub(super) use io::{Effect, Host, Input, Now, OWN, Settings};

use super::messages::{HostMessage, LeaderMessage, Pulse};
use super::order::SpoolRecord;
use crate::machine::{Moment, graver};
use commit::Commit;
use dtrain_protocol::{Event, Failure, Order, Rank, SavedFile, Stamped, StepId, StopReason};
use launch::Launch;
use ranks::RankState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use target::TargetWatch;

/// How long ranks may take to end by themselves once another was lost, in milliseconds.
const AFTER_A_LOSS_MS: u64 = 2_000;

/// The same once a whole host was lost: nobody knows more of it than that.
const AFTER_A_HOST_MS: u64 = 200;

/// How long the ranks may take to stop before they are killed: those of a foreign program always, others when the system wants an
/// agent to end.
pub const TO_STOP: Duration = Duration::from_millis(TO_STOP_MS);
const TO_STOP_MS: u64 = 30_000;

/// How long a host may take to answer a question that needs no work on checkpoints.
const TO_ANSWER_MS: u64 = 60_000;

/// How long the work of a host on checkpoints may stand still. One flush of gigabytes to a slow disk takes minutes.
const TO_WORK_MS: u64 = 300_000;

/// How long the loop of an agent may stand still before its host is taken for lost.
const TO_TURN_MS: u64 = 30_000;

/// Where an attempt stands.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Launching(Launch),
    Running,
    /// No rank lives, and the host that mirrors the spool puts it on disk; since when.
    Sealing(Moment),
    Over,
}

/// An attempt as its leader sees it.
#[derive(Debug)]
pub(super) struct Leader {
    settings: Settings,
    hosts: BTreeMap<u32, Host>,
    ranks: Vec<RankState>,
    phase: Phase,
    /// What the ranks saved and nobody committed yet; nothing of a rank that could not.
    saved: BTreeMap<StepId, BTreeMap<Rank, Option<Vec<SavedFile>>>>,
    commits: BTreeMap<StepId, Commit>,
    addresses: BTreeMap<Rank, String>,
    /// How near the ranks of a script are to their target.
    target: TargetWatch,
    /// The gravest failure so far.
    cause: Option<Failure>,
    /// Why the ranks were asked to stop, once they were.
    stopping: Option<StopReason>,
    /// When whatever still lives is killed.
    kill_at: Option<Moment>,
    /// When a rank that trains last said something; `None` before the first step, while a rank waits for room on its disk, and for
    /// foreign programs, which may have nothing to say.
    heard_at: Option<Moment>,
    now: Now,
    effects: Vec<Effect>,
}

impl Leader {
    /// Begins an attempt on `hosts`, the first of which is the leader's own, with the ranks in the order of their hosts.
    pub(super) fn begin(
        settings: Settings,
        hosts: BTreeMap<u32, Host>,
        are_foreign: bool,
        now: Now,
    ) -> (Self, Vec<Effect>) {
        let world = hosts.values().map(|host| host.ranks.end).max().unwrap_or(0);
        let began = SpoolRecord::Began { attempt: settings.attempt, ranks: world };
        let mut leader = Self {
            settings,
            hosts,
            ranks: (0..world).map(|_| RankState::new(are_foreign)).collect(),
            phase: Phase::Over,
            saved: BTreeMap::new(),
            commits: BTreeMap::new(),
            addresses: BTreeMap::new(),
            target: TargetWatch::default(),
            cause: None,
            stopping: None,
            kill_at: None,
            heard_at: None,
            now,
            effects: vec![Effect::Spool(began)],
        };
        leader.launch();
        let effects = std::mem::take(&mut leader.effects);
        (leader, effects)
    }

    /// Takes in what happened and says what to do, in order.
    pub(super) fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.now = now;
        if self.phase != Phase::Over {
            match input {
                Input::Host(host, message) => self.hear(host, message),
                Input::Lost(host, reason) => self.lose(host, &reason),
                Input::Beat(host, pulse) => self.beat(host, pulse),
                Input::Stop => self.stop(StopReason::Ordered),
                Input::Tick => self.tick(),
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
            self.effects.push(Effect::Ask(host, message));
        }
    }

    /// Asks every host that has ranks.
    fn ask_all(&mut self, message: impl Fn(&Host) -> LeaderMessage) {
        let asked = self.hosts.iter().filter(|(_, host)| !host.is_lost && !host.only_lends());
        let asked: Vec<_> = asked.map(|(index, host)| (*index, message(host))).collect();
        self.effects.extend(asked.into_iter().map(|(host, message)| Effect::Ask(host, message)));
    }

    /// Takes in what a host says.
    fn hear(&mut self, host: u32, message: HostMessage) {
        let Some(known) = self.hosts.get(&host).filter(|host| !host.is_lost) else { return };
        if let Some(rank) = message.rank()
            && !known.ranks.contains(&rank.0)
        {
            return self.lose(host, &format!("it sent a message for rank {rank}, which is not its own"));
        }
        match message {
            HostMessage::Event { rank, event } => self.event(rank, event),
            HostMessage::OutputClosed { rank, garbled, last } => {
                if let Some(words) = garbled {
                    let words = format!("cannot decode a message from rank {rank}: {words}");
                    self.event(rank, Event::Failed(Failure::Other(words)));
                }
                self.rank(rank).close_output(last);
                self.conclude(rank);
            }
            HostMessage::Exited { rank, exit } => {
                self.rank(rank).exit.get_or_insert(exit);
                self.conclude(rank);
            }
            HostMessage::MirrorSealed { .. } => self.sealed(host),
            HostMessage::Prepared { step, outcome } => self.prepared(step, host, outcome),
            HostMessage::Committed { step, outcome } => self.committed(step, host, outcome),
            HostMessage::Terminated if self.phase == Phase::Running => {
                self.stop(StopReason::Ordered);
                self.kill_by(TO_STOP_MS);
            }
            HostMessage::Terminated if matches!(self.phase, Phase::Sealing(_)) => {}
            HostMessage::Terminated => self.refuse("the system ended the agent of a host".to_owned().into()),
            HostMessage::Listed { .. }
            | HostMessage::Fetched { .. }
            | HostMessage::Reserved { .. }
            | HostMessage::Started { .. } => self.answered(host, message),
        }
    }

    /// A host is lost, and its ranks with it.
    fn lose(&mut self, host: u32, reason: &str) {
        let Some(lost) = self.hosts.get_mut(&host).filter(|host| !host.is_lost) else { return };
        lost.is_lost = true;
        let (name, ranks) = (lost.peer.name.clone(), lost.ranks.clone());
        if let Phase::Launching(_) = self.phase {
            return self.lost_while_launching(host, &name, reason);
        }
        if let Phase::Sealing(_) = self.phase {
            return self.sealed(host);
        }
        let mut first = None;
        for rank in ranks.map(Rank) {
            if self.rank(rank).lose() {
                first = first.or(Some(rank));
            }
        }
        self.give_up_commits(&format!("{name} was lost before it was committed: {reason}"));
        if let Some(rank) = first {
            let detail = reason.to_owned();
            self.event(rank, Event::Failed(Failure::HostLost { host: name, detail }));
            self.kill_by(AFTER_A_HOST_MS);
        }
    }

    fn beat(&mut self, host: u32, pulse: Pulse) {
        let now = self.now.moment;
        let Some(host) = self.hosts.get_mut(&host) else { return };
        if pulse.turns != host.pulse.turns {
            host.turned_at = now;
        }
        if pulse.work != host.pulse.work {
            host.worked_at = now;
        }
        host.pulse = pulse;
    }

    /// Asks the ranks, once, to finish their step, save and stop, and sees to it that they end.
    fn stop(&mut self, reason: StopReason) {
        match self.phase {
            Phase::Launching(_) => {
                self.refuse("it was stopped before its ranks were started".to_owned().into());
            }
            Phase::Running if self.stopping.is_none() => {
                self.stopping = Some(reason);
                self.order_all(Order::Stop);
                if self.are_foreign() {
                    self.kill_by(TO_STOP_MS);
                } else {
                    // One that says nothing from here on is ended as any other silent rank, though it may never have trained.
                    self.heard_at.get_or_insert(self.now.moment);
                }
            }
            Phase::Running | Phase::Sealing(_) | Phase::Over => {}
        }
    }

    fn order_all(&mut self, order: Order) {
        let order = Arc::new(order);
        self.ask_all(|_| LeaderMessage::Order { order: Arc::clone(&order) });
    }

    /// Spools an event, then does what follows from it.
    fn event(&mut self, rank: Rank, event: Event) {
        let event = self.with_host(rank, event);
        let (attempt, at_ms) = (self.settings.attempt, self.now.wall_ms);
        let sequence = self.rank(rank).next_sequence();
        let stamped = Stamped { attempt, rank, sequence, at_ms, event: event.clone() };
        let is_target = self.reaches_target(&stamped);
        self.effects.push(Effect::Spool(SpoolRecord::Event(stamped)));
        self.note_life(&event);
        match event {
            Event::Listening(address) => {
                self.addresses.insert(rank, address);
                if self.addresses.len() == self.ranks.len() {
                    self.order_all(Order::Peers(self.addresses.values().cloned().collect()));
                }
            }
            Event::Saved { step, files, .. } => self.rank_saved(step, rank, Some(files)),
            // The rank tries again, and what the others saved stays.
            Event::SaveFailed { retries: true, .. } => {}
            Event::SaveFailed { step, reason, .. } => {
                self.rank(rank).unsaved = Some(reason);
                self.rank_saved(step, rank, None);
            }
            Event::Finished { reason, .. } => self.rank(rank).finished = Some(reason),
            Event::Failed(failure) => {
                self.rank(rank).has_failed = true;
                self.cause = Some(graver(self.cause.take(), failure));
                self.kill_by(AFTER_A_LOSS_MS);
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

    /// Ranks that train say something now and then: each other they wait for, but nobody waits for all of them.
    fn note_life(&mut self, event: &Event) {
        let is_training = matches!(event, Event::Step(_)) && !self.are_foreign();
        let waits_for_room = matches!(event, Event::SaveFailed { retries: true, .. });
        let now = self.now.moment;
        self.heard_at = self.heard_at.or(is_training.then_some(now)).map(|_| now).filter(|_| !waits_for_room);
    }

    /// Ends an attempt none of whose ranks has said anything for as long as a rank may do nothing.
    fn end_silent_ranks(&mut self) {
        let limits = self.settings.first.waits;
        let limit = Duration::from_secs_f64(limits.idle_seconds.max(0.0));
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        if self.heard_at.is_none_or(|at| self.now.moment < at.after(limit_ms)) {
            return;
        }
        let expected = limits
            .step_seconds
            .map_or_else(String::new, |s| format!("; the plan expects a step of {s:.1} s"));
        let words = format!("no rank has reported anything for {} s{expected}", limit.as_secs());
        self.heard_at = None;
        if self.stopping.is_some() {
            // Another attempt is not wanted, so that there is nobody to tell of a failure.
            self.effects.push(Effect::Note(format!("{words} since the order to stop; killing the ranks")));
            return self.kill_by(0);
        }
        if let Some((_, rank)) = self.living().first().copied() {
            self.event(rank, Event::Failed(Failure::Other(words)));
        }
    }

    /// Once a rank has ended and all it said was heard: says for it what it did not say.
    fn conclude(&mut self, rank: Rank) {
        let stopping = self.stopping;
        if let Some(event) = self.rank(rank).last_word(rank, stopping) {
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
            for (host, rank) in self.living() {
                self.rank(rank).was_killed = true;
                self.ask(host, LeaderMessage::Kill { rank });
            }
        }
        let stands_still = |host: &Host| !host.is_lost && now >= host.turned_at.after(TO_TURN_MS);
        let still: Vec<u32> =
            self.hosts.iter().filter(|(_, host)| stands_still(host)).map(|(i, _)| *i).collect();
        for host in still.into_iter().filter(|host| *host != OWN) {
            self.lose(host, &format!("its agent did nothing for {} s", TO_TURN_MS / 1000));
        }
        match self.phase {
            Phase::Launching(_) => self.launch_in_time(),
            Phase::Running => {
                self.commits_in_time();
                self.end_silent_ranks();
            }
            Phase::Sealing(since) if now >= since.after(TO_ANSWER_MS) => self.dismiss(),
            Phase::Sealing(_) | Phase::Over => {}
        }
    }

    /// The ranks that have not ended, with their hosts.
    fn living(&self) -> Vec<(u32, Rank)> {
        let lives = |rank: &u32| self.ranks[*rank as usize].exit.is_none();
        let of = |(index, host): (&u32, &Host)| {
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

    /// The host of a rank.
    fn host_of(&self, rank: Rank) -> u32 {
        let has = |host: &&Host| host.ranks.contains(&rank.0);
        self.hosts.values().find(has).map_or(OWN, |host| host.peer.host)
    }

    /// The event; data that cannot be used on one of several hosts may be usable on another.
    fn with_host(&self, rank: Rank, event: Event) -> Event {
        match event {
            Event::Failed(Failure::Data(detail)) if self.with_ranks().len() > 1 => {
                let host = self.hosts.get(&self.host_of(rank)).map(|host| &host.peer);
                let host = host.filter(|peer| peer.host != OWN).map(|peer| peer.name.clone());
                Event::Failed(Failure::DataOn { host, detail })
            }
            event => event,
        }
    }
}
