//! A way to tell whoever waits for a host that its answer is no longer wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a wait looks whether it was cancelled.
pub(super) const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Ends the waits of one [`super::Launcher`]. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<AtomicBool>);

impl CancellationToken {
    /// Ends what waits now, and whatever begins to wait until [`CancellationToken::reset`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Lets the next operation wait again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Whether the answer is no longer wanted.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
