//! Waiting for a peer that may have no core.

use std::time::{Duration, Instant};

/// How long a rank has waited, and what it does in the meantime.
pub(super) struct SpinWait {
    spins: u32,
    begun: Option<Instant>,
}

impl SpinWait {
    pub(super) fn new(spins: u32) -> Self {
        Self { spins, begun: None }
    }

    /// Lets a little time pass; true when it is time to ask whether the peer is still there.
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
