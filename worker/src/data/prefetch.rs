//! Prefetching: the next batch of samples is read while the current one is used.

use super::{Batch, DataError, SampleSource};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// A thread that reads batches ahead of their use: it keeps one ready and reads another.
#[derive(Debug)]
pub struct Prefetch {
    /// Receiver of the batches; taken on drop, so that the thread notices that it is gone.
    batches: Option<Receiver<Result<Batch, DataError>>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// Starts a thread that reads the batches of `indices`, in order, and stops after the first error.
    pub fn new(
        source: Arc<dyn SampleSource>,
        indices: impl Iterator<Item = Vec<u64>> + Send + 'static,
    ) -> Self {
        let (to, batches) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            for indices in indices {
                let batch = source.read(&indices);
                let is_last = batch.is_err();
                if to.send(batch).is_err() || is_last {
                    return;
                }
            }
        });
        Self { batches: Some(batches), thread: Some(thread) }
    }
}

impl Iterator for Prefetch {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.as_ref().and_then(|batches| batches.recv().ok())
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the reader was already reported on stderr, and ended the batches.
            drop(thread.join());
        }
    }
}
