//! The simulated connections between agents: messages arrive in order and late, or not at all while a
//! direction is cut.

use super::{MachineHealth, SILENCE, World};
use crate::agent::messages::{HostMessage, LeaderMessage};
use crate::agent::peers::heartbeat::Heartbeat;
use crate::agent::{follower, leader};
use dtrain_protocol::AttemptId;
use std::collections::VecDeque;

/// Milliseconds between two heartbeats.
const HEARTBEAT: u64 = 250;

/// Milliseconds until the peer of a dead process receives a reset of the connection.
const RESET: u64 = 100;

/// A sender or receiver of messages in the simulated network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Endpoint {
    Controller,
    Machine(usize),
}

/// A frame on a simulated connection.
#[derive(Clone, Debug)]
pub(super) enum LinkFrame<T> {
    Beat(Heartbeat),
    Message(T),
}

/// One direction of a simulated connection.
#[derive(Debug)]
struct OneWayQueue<T> {
    /// Frames with their times of arrival, unless the direction is cut at that time.
    queue: VecDeque<(u64, LinkFrame<T>)>,
    /// Time at which a frame last arrived.
    heard_at: u64,
    beat_at: u64,
    /// True if the receiver was told that the connection is lost.
    is_lost: bool,
}

impl<T> OneWayQueue<T> {
    fn new(now: u64) -> Self {
        Self { queue: VecDeque::new(), heard_at: now, beat_at: now, is_lost: false }
    }
}

/// The simulated connection of a leader and a follower.
#[derive(Debug)]
pub(super) struct FollowerConnection {
    leader: usize,
    /// Index of the follower's host in the attempt.
    host: u32,
    to_follower: OneWayQueue<LeaderMessage>,
    to_leader: OneWayQueue<HostMessage>,
}

impl FollowerConnection {
    pub(super) fn new(leader: usize, host: u32, now: u64) -> Self {
        Self { leader, host, to_follower: OneWayQueue::new(now), to_leader: OneWayQueue::new(now) }
    }

    /// Returns `true` if no frame is in transit on the connection.
    pub(super) fn is_idle(&self) -> bool {
        let (one, other) = (&self.to_follower, &self.to_leader);
        one.queue.is_empty() && other.queue.is_empty() && !one.is_lost && !other.is_lost
    }
}

impl World<'_> {
    /// Returns `true` if a message sent now would arrive.
    pub(super) fn gets_to(&self, from: Endpoint, to: Endpoint) -> bool {
        let is_cut = || {
            [from, to].iter().any(|node| self.cut_off.contains_key(node))
                || self.cuts.contains_key(&(from, to))
        };
        from == to || (self.cuts.is_empty() && self.cut_off.is_empty()) || !is_cut()
    }

    /// Returns `true` if both endpoints are up and reach each other.
    pub(super) fn talk(&self, one: Endpoint, other: Endpoint) -> bool {
        let is_up = |node| match node {
            Endpoint::Controller => true,
            Endpoint::Machine(machine) => self.is_up(machine),
        };
        is_up(one) && is_up(other) && self.gets_to(one, other) && self.gets_to(other, one)
    }

    /// Returns `true` if all machines are up and reach each other.
    pub(super) fn all_talk(&self, machines: &[(usize, std::ops::Range<u32>)]) -> bool {
        let has = |node: &Endpoint| machines.iter().any(|(machine, _)| *node == Endpoint::Machine(*machine));
        machines.iter().all(|(machine, _)| self.is_up(*machine))
            && (machines.len() < 2 || !self.cut_off.keys().any(&has))
            && !self.cuts.keys().any(|(from, to)| has(from) && has(to))
    }

    /// Returns the time at which a message sent to a machine now would arrive.
    fn due(&mut self, machine: usize) -> u64 {
        let most = if self.slow.contains_key(&Endpoint::Machine(machine)) { 1_500 } else { 100 };
        self.now + self.draw(most)
    }

    pub(super) fn send_to_follower(&mut self, attempt: AttemptId, machine: usize, message: LeaderMessage) {
        let due = self.due(machine);
        if let Some(cost) = &mut self.cost {
            cost.asked(&message);
        }
        if let Some(connection) = self.connections.get_mut(&(attempt, machine)) {
            connection.to_follower.queue.push_back((due, LinkFrame::Message(message)));
        }
    }

    pub(super) fn send_to_leader(&mut self, attempt: AttemptId, machine: usize, message: HostMessage) {
        let due = self.due(machine);
        if let Some(cost) = &mut self.cost {
            cost.told(&message);
        }
        if let Some(connection) = self.connections.get_mut(&(attempt, machine)) {
            connection.to_leader.queue.push_back((due, LinkFrame::Message(message)));
        }
    }

    /// Delivers all messages of all connections that are due.
    pub(super) fn deliver(&mut self) {
        let all: Vec<(AttemptId, usize)> = self.connections.keys().collect();
        for key in all {
            self.beat_over(key);
            self.deliver_to_follower(key);
            self.deliver_to_leader(key);
            let both_lost =
                self.connections.get(&key).is_none_or(|one| one.to_leader.is_lost && one.to_follower.is_lost);
            if both_lost {
                self.connections.remove(&key);
            }
        }
    }

    /// Sends a heartbeat from both ends of a connection, unless they are frozen.
    fn beat_over(&mut self, key: (AttemptId, usize)) {
        let now = self.now;
        let leader = self.connections[&key].leader;
        let heartbeat =
            |world: &Self, machine| world.agents.get(&(key.0, machine)).map(|agent| agent.heartbeat);
        let [of_leader, of_follower] = [leader, key.1].map(|machine| {
            heartbeat(self, machine).filter(|_| self.places[machine].health == MachineHealth::Up)
        });
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if let Some(heartbeat) = of_leader.filter(|_| now >= connection.to_follower.beat_at + HEARTBEAT) {
            connection.to_follower.beat_at = now;
            connection.to_follower.queue.push_back((now, LinkFrame::Beat(heartbeat)));
        }
        if let Some(heartbeat) = of_follower.filter(|_| now >= connection.to_leader.beat_at + HEARTBEAT) {
            connection.to_leader.beat_at = now;
            connection.to_leader.queue.push_back((now, LinkFrame::Beat(heartbeat)));
        }
    }

    fn deliver_to_follower(&mut self, key: (AttemptId, usize)) {
        let (attempt, machine) = key;
        let Some(connection) = self.connections.get(&key) else { return };
        let leader = connection.leader;
        let is_open =
            self.gets_to(Endpoint::Machine(leader), Endpoint::Machine(machine)) && self.is_up(machine);
        while is_open
            && let Some(connection) = self.connections.get_mut(&key)
            && !connection.to_follower.is_lost
            && connection.to_follower.queue.front().is_some_and(|(due, _)| *due <= self.now)
        {
            let (_, wire) = connection.to_follower.queue.pop_front().expect("it was just looked at");
            connection.to_follower.heard_at = self.now;
            self.messages += 1;
            self.tell_follower(
                attempt,
                machine,
                match wire {
                    LinkFrame::Beat(heartbeat) => follower::HostInput::Beat(heartbeat),
                    LinkFrame::Message(message) => follower::HostInput::Leader(message),
                },
            );
        }
        let Some(connection) = self.connections.get(&key) else { return };
        if let Some(reason) = self.lost(attempt, leader, machine, &connection.to_follower) {
            self.connections.get_mut(&key).expect("it was just looked at").to_follower.is_lost = true;
            self.tell_follower(attempt, machine, follower::HostInput::LeaderLost(reason));
        }
    }

    fn deliver_to_leader(&mut self, key: (AttemptId, usize)) {
        let (attempt, machine) = key;
        let Some(connection) = self.connections.get(&key) else { return };
        let leader = connection.leader;
        let is_open =
            self.gets_to(Endpoint::Machine(machine), Endpoint::Machine(leader)) && self.is_up(leader);
        let host = connection.host;
        while is_open
            && let Some(connection) = self.connections.get_mut(&key)
            && !connection.to_leader.is_lost
            && connection.to_leader.queue.front().is_some_and(|(due, _)| *due <= self.now)
        {
            let (_, wire) = connection.to_leader.queue.pop_front().expect("it was just looked at");
            connection.to_leader.heard_at = self.now;
            self.messages += 1;
            self.tell_leader(
                attempt,
                leader,
                match wire {
                    LinkFrame::Beat(heartbeat) => leader::AttemptInput::Beat(host, heartbeat),
                    LinkFrame::Message(message) => leader::AttemptInput::Host(host, message),
                },
            );
        }
        let Some(connection) = self.connections.get(&key) else { return };
        if let Some(reason) = self.lost(attempt, machine, leader, &connection.to_leader) {
            self.connections.get_mut(&key).expect("it was just looked at").to_leader.is_lost = true;
            self.tell_leader(attempt, leader, leader::AttemptInput::Lost(host, reason));
        }
    }

    /// Returns the reason why the end at `to` now counts the end at `from` as lost; empty if its own process
    /// is gone.
    fn lost<T>(&self, attempt: AttemptId, from: usize, to: usize, way: &OneWayQueue<T>) -> Option<String> {
        if way.is_lost || !self.is_up(to) {
            return None;
        }
        if !self.agents.contains_key(&(attempt, to)) {
            return Some(String::new());
        }
        let is_gone = !self.agents.contains_key(&(attempt, from));
        let is_open = self.gets_to(Endpoint::Machine(from), Endpoint::Machine(to));
        if is_gone && is_open && self.now >= way.heard_at + RESET && way.queue.is_empty() {
            return Some("it closed the connection".to_owned());
        }
        (self.now > way.heard_at + SILENCE.max(2 * self.setup.beat)).then(|| "no heartbeat".to_owned())
    }

    /// Freezes a machine. After it wakes up it suspects itself first, and not its peers.
    pub(super) fn freeze(&mut self, machine: usize, until: u64) {
        self.places[machine].health = MachineHealth::Frozen(until);
        for ((_, follower), connection) in self.connections.iter_mut() {
            if follower == machine {
                connection.to_follower.heard_at = connection.to_follower.heard_at.max(until);
            }
            if connection.leader == machine {
                connection.to_leader.heard_at = connection.to_leader.heard_at.max(until);
            }
        }
    }
}
