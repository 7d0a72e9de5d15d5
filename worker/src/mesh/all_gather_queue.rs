//! All-gather of weights in the middle of passes, where no error can be returned.

use super::CommQueue;
use super::peers::FirstFailure;
use crate::comm::ProcessGroup;
use std::sync::Arc;

/// A queue that all-gathers the weights of a shard group.
///
/// An error is stored, not returned, as in [`super::Peers`].
#[derive(Clone, Debug)]
pub struct AllGatherQueue {
    queue: Arc<CommQueue>,
    failure: FirstFailure,
}

impl AllGatherQueue {
    pub(super) fn of(group: Box<dyn ProcessGroup>, failure: FirstFailure) -> Self {
        Self { queue: Arc::new(CommQueue::start(group)), failure }
    }

    /// Returns the bytes that this rank has sent, without collectives in flight.
    pub fn bytes_sent(&self) -> u64 {
        self.queue.bytes_sent()
    }

    /// Returns the seconds that this rank has spent waiting for gathered weights.
    pub fn waited(&self) -> f64 {
        self.queue.waited()
    }

    /// Starts an all-gather of `packed`, in which this rank has filled its own block.
    pub fn start_all_gather(&self, packed: Vec<f32>) {
        self.queue.start_all_gather(packed);
    }

    /// Waits for the oldest buffer in flight, which has `length` values; returns zeros after an error.
    pub fn receive(&self, length: usize) -> Vec<f32> {
        match self.queue.wait() {
            Ok(packed) => packed,
            Err(failure) => {
                self.failure.keep(failure);
                vec![0.0; length]
            }
        }
    }
}
