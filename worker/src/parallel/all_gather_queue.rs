//! Gathers weights in the middle of passes, where nothing can return an error.

use super::CommQueue;
use super::model_parallel_groups::FirstFailure;
use crate::comm::ProcessGroup;
use std::sync::Arc;

/// Carries packs of weights around a shard group, first in, first out.
///
/// An error is kept, not returned, as by [`super::Peers`].
#[derive(Clone, Debug)]
pub struct AllGatherQueue {
    queue: Arc<CommQueue>,
    failure: FirstFailure,
}

impl AllGatherQueue {
    pub(super) fn of(group: Box<dyn ProcessGroup>, failure: FirstFailure) -> Self {
        Self { queue: Arc::new(CommQueue::start(group)), failure }
    }

    /// Bytes this rank sent, not counting what is on its way.
    pub fn bytes_sent(&self) -> u64 {
        self.queue.bytes_sent()
    }

    /// Seconds that were waited for packs so far.
    pub fn waited(&self) -> f64 {
        self.queue.waited()
    }

    /// Begins to gather `packed`, of which this rank fills its own block.
    pub fn send(&self, packed: Vec<f32>) {
        self.queue.start_all_gather(packed);
    }

    /// Waits for the oldest pack, which has `length` values; zeros when something went wrong.
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
