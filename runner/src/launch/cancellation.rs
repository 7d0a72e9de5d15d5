//! Cancellation of waits for hosts, from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two checks for cancellation during a wait.
pub(super) const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A token that cancels the waits of one [`super::Launcher`]. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<AtomicBool>);

impl CancellationToken {
    /// Cancels all waits, present and future, until [`CancellationToken::reset`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Ends the cancellation: later waits are possible again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Returns `true` after [`CancellationToken::cancel`], until [`CancellationToken::reset`].
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
