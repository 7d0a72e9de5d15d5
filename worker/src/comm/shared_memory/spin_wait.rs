//! Waiting for a peer that may have no core: by spinning, yielding and sleeping.

use std::time::{Duration, Instant};

/// The state of one wait, from which the next pause follows: spin, yield or sleep.
pub(super) struct SpinWait {
    spins: u32,
    begun: Option<Instant>,
}

impl SpinWait {
    pub(super) fn new(spins: u32) -> Self {
        Self { spins, begun: None }
    }

    /// Pauses briefly; returns `true` when it is time to check that the peer is still alive.
    pub(super) fn pause(&mut self) -> bool {
        if self.spins > 0 {
            self.spins -= 1;
            std::hint::spin_loop();
            return false;
        }
        let waited = self.begun.get_or_insert_with(Instant::now).elapsed();
        if waited < Duration::from_micros(300) {
            std::thread::yield_now();
            return false;
        }
        std::thread::sleep((waited / 16).min(Duration::from_millis(2)));
        true
    }

    pub(super) fn waited(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }
}
