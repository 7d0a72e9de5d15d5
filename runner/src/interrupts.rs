//! How often the user asked to stop: counted by a signal handler, read by the driver.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the user's interrupts. Adding one is safe inside a signal handler.
#[derive(Debug, Default)]
pub struct Interrupts(AtomicU32);

impl Interrupts {
    /// Notes one more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// How many there were.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}
