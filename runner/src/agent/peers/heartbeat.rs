//! Heartbeats between the leader and a follower, and the detection of missed ones.
//!
//! A side that receives nothing for [`HEARTBEAT_TIMEOUT`] counts the other as lost. TCP does not report a
//! frozen peer or dropped packets; heartbeats do. Each is a [`Heartbeat`], so that a peer with a stuck loop
//! is noticed even if its thread still sends.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest time between two heartbeats on a connection.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);

/// Silence after which a peer counts as lost.
pub(in crate::agent) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay of a wake-up after which this process suspects itself and not the peer.
const MAX_SCHEDULING_DELAY: Duration = Duration::from_millis(250);

/// A heartbeat: the progress of the agent's loop and of its checkpoint work. A thread that sends heartbeats
/// proves nothing by itself; a counter that does not change shows that the agent is stuck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct Heartbeat {
    /// Number of turns of the agent's loop.
    pub(in crate::agent) turns: u64,
    /// Number of units of checkpoint work: chunks fetched, files flushed.
    pub(in crate::agent) work: u64,
}

/// Progress counters of this agent, sent in its heartbeats.
#[derive(Debug, Default)]
pub(in crate::agent) struct LoopCounters {
    turns: AtomicU64,
    work: AtomicU64,
}

impl LoopCounters {
    /// Counts a turn of the agent's loop.
    pub(in crate::agent) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a unit of checkpoint work.
    pub(in crate::agent) fn work(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current values of the counters as a heartbeat.
    pub(in crate::agent) fn now(&self) -> Heartbeat {
        Heartbeat { turns: self.turns.load(Ordering::Relaxed), work: self.work.load(Ordering::Relaxed) }
    }
}

/// Times of the last heartbeat sent and of the last bytes received on one connection.
pub(super) struct HeartbeatClock {
    sent_at: Instant,
    heard_at: Instant,
}

impl HeartbeatClock {
    /// Returns the clock of a new connection.
    pub(super) fn start() -> Self {
        let now = Instant::now();
        Self { sent_at: now, heard_at: now }
    }

    /// Returns `true` if a heartbeat is due, which then counts as sent.
    pub(super) fn take_due(&mut self) -> bool {
        let is_due = self.sent_at.elapsed() >= HEARTBEAT_INTERVAL;
        if is_due {
            self.sent_at = Instant::now();
        }
        is_due
    }

    /// Returns the time until the next heartbeat is due.
    pub(super) fn until_due(&self) -> Duration {
        HEARTBEAT_INTERVAL.saturating_sub(self.sent_at.elapsed())
    }

    /// Records that the peer has just sent something.
    pub(super) fn heard(&mut self) {
        self.heard_at = Instant::now();
    }

    /// Returns the time since the peer last sent something if it is too long; `None` otherwise.
    pub(super) fn missed(&self) -> Option<Duration> {
        let silent = self.heard_at.elapsed();
        (silent > HEARTBEAT_TIMEOUT).then_some(silent)
    }

    /// Leaves out the delay `late`, by which this process woke up late, from the silence of the peer.
    pub(super) fn excuse(&mut self, late: Duration) {
        if late > MAX_SCHEDULING_DELAY {
            self.heard_at += late;
        }
    }
}
