//! Heartbeats: tell a rank that computes for a long time from one that is gone.
//!
//! A thread of every rank sends beats: each says that the rank lives, and how many beats ago it last made
//! progress (joined a collective, prepared some of the data), or saw a rank that it waits for do so. A rank
//! is lost when its beats stop; it is given up, much later, when its beats go on without progress. The
//! transport carries the beats.
//!
//! Time is counted in beats of this rank, not in seconds: if all ranks are stopped together and continue
//! later, no rank counts as silent.

use super::CommError;
use dtrain_protocol::{Rank, WaitLimits};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Number of beats without a heartbeat from a rank, after which the rank counts as lost.
const SILENT_BEATS: u64 = 12;

/// Number of beats that a message from another rank may take. Higher than the real delay, so that ranks that
/// wait for each other in a circle do not keep old progress reports young.
const LATENCY: u64 = 2;

/// A counter of this rank's progress; long work between two collectives counts each of its parts.
#[derive(Clone, Debug, Default)]
pub struct WorkCounter(Arc<AtomicU64>);

impl WorkCounter {
    /// Records that one more piece of work was done.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of pieces of work done so far.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The time limits for waiting on other ranks, and the progress counter of this rank.
#[derive(Clone, Debug)]
pub struct WaitPolicy {
    /// Time limits for waiting on other ranks.
    pub limits: WaitLimits,
    /// Progress counter of this rank.
    pub progress: WorkCounter,
}

impl WaitPolicy {
    /// Creates a policy with these limits and a progress counter of zero.
    pub fn new(limits: WaitLimits) -> Self {
        Self { limits, progress: WorkCounter::default() }
    }

    /// Returns the longest time that a peer may send no heartbeat.
    pub(super) fn silence(&self) -> Duration {
        Duration::from_secs_f64(self.limits.silence_seconds)
    }

    /// Returns the longest time that a peer may make no progress.
    pub(super) fn idle(&self) -> Duration {
        Duration::from_secs_f64(self.limits.idle_seconds)
    }
}

/// The state of all heartbeats: the latest of each peer, and this rank's own progress. Times are in beats
/// of this rank.
#[derive(Debug)]
pub(super) struct Liveness {
    waits: WaitPolicy,
    now: AtomicU64,
    /// Beat at which this rank last made progress, or saw a rank that it waits for do so.
    worked: AtomicU64,
    peers: Vec<PeerLiveness>,
}

#[derive(Debug, Default)]
struct PeerLiveness {
    /// Beat at which the peer's last heartbeat arrived.
    heard: AtomicU64,
    /// Beat at which the peer last made progress, as far as is known here.
    worked: AtomicU64,
}

impl Liveness {
    fn new(waits: &WaitPolicy, ranks: u32) -> Self {
        let peers = (0..ranks).map(|_| PeerLiveness::default()).collect();
        Self { waits: waits.clone(), now: AtomicU64::new(0), worked: AtomicU64::new(0), peers }
    }

    fn interval(&self) -> f64 {
        self.waits.limits.silence_seconds / SILENT_BEATS as f64
    }

    fn seconds(&self, beats: u64) -> f64 {
        beats as f64 * self.interval()
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Returns the beats since this rank last made progress, or saw a rank that it waits for do so: the
    /// content of a beat.
    pub(super) fn idle(&self) -> u64 {
        self.now().saturating_sub(self.worked.load(Ordering::Relaxed))
    }

    /// Records a beat of `rank`, which has made no progress for `idle` beats.
    pub(super) fn record_beat(&self, rank: Rank, idle: u64) {
        let (now, peer) = (self.now(), &self.peers[rank.0 as usize]);
        peer.heard.store(now, Ordering::Relaxed);
        peer.worked.fetch_max(now.saturating_sub(idle.saturating_add(LATENCY)), Ordering::Relaxed);
    }

    /// Records that this rank joins a collective, or that data moved in it; returns the beat at which its
    /// wait starts.
    pub(super) fn begin(&self) -> u64 {
        self.waits.progress.advance();
        self.now()
    }

    /// Returns an error if this rank, which has waited for `peer` since beat `begun`, must give up waiting.
    pub(super) fn check(&self, peer: Rank, begun: u64, operation: &'static str) -> Result<(), CommError> {
        let PeerLiveness { heard, worked } = &self.peers[peer.0 as usize];
        let (heard, worked) = (heard.load(Ordering::Relaxed), worked.load(Ordering::Relaxed));
        let now = self.now();
        self.worked.fetch_max(worked, Ordering::Relaxed);
        let silent = now.saturating_sub(begun.max(heard));
        if silent >= SILENT_BEATS {
            return Err(CommError::Silent { peer, seconds: self.seconds(silent), operation });
        }
        let seconds = self.seconds(now.saturating_sub(begun.max(worked)));
        let WaitLimits { idle_seconds, step_seconds, .. } = self.waits.limits;
        if seconds >= idle_seconds {
            return Err(CommError::Idle { peer, seconds, operation, step_seconds });
        }
        Ok(())
    }

    /// Advances the clock by one beat.
    fn tick(&self, counted: &mut u64) {
        let count = self.waits.progress.count();
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        if *counted != count {
            *counted = count;
            self.worked.store(now, Ordering::Relaxed);
        }
    }
}

/// The handle of the thread that sends the heartbeats; the thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct HeartbeatThread {
    pulse: Arc<Liveness>,
    _beating: Sender<()>,
}

impl HeartbeatThread {
    /// Starts the heartbeats among `ranks` ranks. In each beat, `beat` receives those of the peers and
    /// sends one to them.
    pub(super) fn start(
        waits: &WaitPolicy,
        ranks: u32,
        mut beat: impl FnMut(&Liveness) + Send + 'static,
    ) -> Result<Self, CommError> {
        let pulse = Arc::new(Liveness::new(waits, ranks));
        let (_beating, over) = channel::<()>();
        let own = Arc::clone(&pulse);
        let interval = Duration::from_secs_f64(pulse.interval());
        let run = move || {
            let mut counted = 0;
            loop {
                beat(&own);
                if over.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                own.tick(&mut counted);
            }
        };
        let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(run);
        thread.map_err(|error| CommError::Link(format!("no thread for heartbeats: {error}")))?;
        Ok(Self { pulse, _beating })
    }

    pub(super) fn pulse(&self) -> &Liveness {
        &self.pulse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Rank = Rank(1);

    /// Creates the state of two ranks with a limit of a hundred idle beats.
    fn pulse() -> Liveness {
        let limits =
            WaitLimits { silence_seconds: SILENT_BEATS as f64, idle_seconds: 100.0, step_seconds: Some(2.1) };
        Liveness::new(&WaitPolicy::new(limits), 2)
    }

    fn pass(pulse: &Liveness, beats: u64) {
        let mut counted = pulse.waits.progress.count();
        (0..beats).for_each(|_| pulse.tick(&mut counted));
    }

    #[test]
    fn a_peer_that_beats_and_works_is_waited_for_however_long_it_takes() {
        let pulse = pulse();
        let begun = pulse.begin();
        for _ in 0..1_000 {
            pass(&pulse, SILENT_BEATS - 1);
            pulse.record_beat(PEER, 50);
            pulse.check(PEER, begun, "all-reduce").expect("it works");
        }
    }

    #[test]
    fn a_peer_is_lost_for_its_silence_and_given_up_for_idleness_and_the_words_tell_them_apart() {
        let pulse = pulse();
        let begun = pulse.begin();
        pass(&pulse, SILENT_BEATS - 1);
        pulse.check(PEER, begun, "all-reduce").expect("it may still come");
        pass(&pulse, 1);
        let error = pulse.check(PEER, begun, "all-reduce").expect_err("it is silent");
        assert_eq!(error.to_string(), "rank 1 sent no heartbeat for 12.0 s during all-reduce");
        // Its first beat came after twelve of this rank's, and was taken for two older.
        for idle in 0..98 {
            pulse.record_beat(PEER, idle);
            pulse.check(PEER, begun, "all-reduce").expect("it lives");
            pass(&pulse, 1);
        }
        pulse.record_beat(PEER, 98);
        let error = pulse.check(PEER, begun, "all-reduce").expect_err("it does nothing");
        let words =
            "rank 1 is alive but has not joined the all-reduce for 100.0 s; the plan expects a step of 2.1 s";
        assert_eq!(error.to_string(), words);
    }

    #[test]
    fn who_waits_for_one_that_works_counts_as_working_and_who_waits_in_a_circle_does_not() {
        let pulses = [pulse(), pulse()];
        let begun = pulses.each_ref().map(Liveness::begin);
        pulses.iter().for_each(|pulse| pass(pulse, 50));
        pulses[0].record_beat(PEER, 3);
        pulses[0].check(PEER, begun[0], "exchange").expect("it works");
        assert_eq!(pulses[0].idle(), 3 + LATENCY);
        // From now on each rank only repeats the progress that the other reported.
        let ends = (0..200).find(|_| {
            pulses.iter().for_each(|pulse| pass(pulse, 1));
            let idle = pulses.each_ref().map(Liveness::idle);
            pulses[0].record_beat(PEER, idle[1]);
            pulses[1].record_beat(PEER, idle[0]);
            let checked = pulses.iter().zip(begun).map(|(pulse, begun)| pulse.check(PEER, begun, "exchange"));
            checked.filter_map(Result::err).any(|error| matches!(error, CommError::Idle { .. }))
        });
        assert!(ends.is_some_and(|beats| beats < 120), "{ends:?}");
    }
}
