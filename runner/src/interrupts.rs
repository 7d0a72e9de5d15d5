//! Interrupts by the user: counted in a signal handler, handled by the driver.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counter of the user's interrupts. Adding one is safe inside a signal handler.
#[derive(Debug, Default)]
pub struct Interrupts {
    added: AtomicU32,
    heeded: AtomicU32,
}

impl Interrupts {
    /// Counts another interrupt by the user.
    pub fn add(&self) {
        self.added.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of interrupts so far.
    pub fn count(&self) -> u32 {
        self.added.load(Ordering::SeqCst)
    }

    /// Returns `true` if any interrupt has not been acknowledged.
    pub fn is_pending(&self) -> bool {
        self.count() > self.heeded.load(Ordering::SeqCst)
    }

    /// Marks all interrupts so far as handled.
    pub fn acknowledge_all(&self) {
        self.heeded.store(self.count(), Ordering::SeqCst);
    }

    /// Marks one pending interrupt as handled.
    pub fn acknowledge(&self) {
        self.heeded.fetch_add(1, Ordering::SeqCst);
    }
}
