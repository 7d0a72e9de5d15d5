//! How often the user asked to stop: counted by a signal handler, heeded by the driver.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the user's interrupts. Adding one is safe inside a signal handler.
#[derive(Debug, Default)]
pub struct Interrupts {
    added: AtomicU32,
    heeded: AtomicU32,
}

impl Interrupts {
    /// Notes one more.
    pub fn add(&self) {
        self.added.fetch_add(1, Ordering::SeqCst);
    }

    /// How many there were.
    pub fn count(&self) -> u32 {
        self.added.load(Ordering::SeqCst)
    }

    /// Whether there is one that nobody did anything about.
    pub fn is_pending(&self) -> bool {
        self.count() > self.heeded.load(Ordering::SeqCst)
    }

    /// What all of them asked for has come about.
    pub fn acknowledge_all(&self) {
        self.heeded.store(self.count(), Ordering::SeqCst);
    }

    /// Something is done about one that was pending.
    pub fn acknowledge(&self) {
        self.heeded.fetch_add(1, Ordering::SeqCst);
    }
}
