//! Snapshots: values that stay unchanged while their owner goes on (copy on write).

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Values as they were when the snapshot was taken. Taking it is free unless it is a copy: a later change of
/// the values copies them first.
#[derive(Clone, Debug)]
pub(crate) enum Snapshot {
    /// A copy of the values in memory of its own.
    Copy(Vec<f32>),
    /// A copy of the values in lent memory, to be given back.
    Lent(Vec<f32>),
    /// A range of a shared vector.
    Vector(Arc<Vec<f32>>, Range<usize>),
    /// A range of a tensor on the host.
    Tensor(FlexTensor, Range<usize>),
}

impl Snapshot {
    /// Takes a snapshot of elements `range` of a tensor of one dimension; the values are copied unless they
    /// are in host memory.
    pub(crate) fn tensor(values: &Tensor<1>, range: Range<usize>, is_on_host: bool) -> Self {
        if is_on_host {
            let values = values.clone().try_into_primitive::<Flex>();
            return Self::Tensor(values.expect("the values are on the host"), range);
        }
        Self::Copy(values.clone().slice([range]).into_data().try_to_vec().expect("values are f32"))
    }

    /// Converts the snapshot to a copy, in memory lent by `room` unless it is a copy already.
    pub(crate) fn copy(self, room: impl FnOnce() -> Vec<f32>) -> Self {
        if matches!(self, Self::Copy(_) | Self::Lent(_)) {
            return self;
        }
        let (values, mut room) = (self.as_slice(), room());
        room.clear();
        room.reserve_exact(values.len());
        room.extend_from_slice(values);
        Self::Lent(room)
    }

    /// Returns the lent memory of the snapshot, if there is any.
    pub(crate) fn give_back(self) -> Option<Vec<f32>> {
        if let Self::Lent(room) = self { Some(room) } else { None }
    }

    /// Returns the values of the snapshot.
    pub(crate) fn as_slice(&self) -> &[f32] {
        match self {
            Self::Copy(values) | Self::Lent(values) => values,
            Self::Vector(values, range) => &values[range.clone()],
            Self::Tensor(values, range) => &values.storage()[range.clone()],
        }
    }
}

/// A signal to the owner of a state that it has been copied, so that it may change.
#[derive(Debug, Default)]
pub(crate) struct CopyCompletion {
    progress: Mutex<CopyState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct CopyState {
    has_ended: bool,
    /// Start of the owner's wait; `None` if it does not wait.
    waits_since: Option<Instant>,
    /// Time that the owner has waited.
    stalled: Duration,
}

impl CopyCompletion {
    /// Waits until the state is copied: it may change from then on.
    pub(crate) fn wait(&self) {
        let mut progress = self.progress();
        if !progress.has_ended {
            progress.waits_since = Some(Instant::now());
        }
        drop(self.ended.wait_while(progress, |progress| !progress.has_ended));
    }

    /// Returns the time that the owner has waited, once the copying has ended.
    pub(crate) fn stalled(&self) -> Duration {
        self.progress().stalled
    }

    fn progress(&self) -> MutexGuard<'_, CopyState> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guard that ends the copying when it is dropped, in a panic too.
pub(crate) struct CopyEndGuard<'a>(pub(crate) &'a CopyCompletion);

impl Drop for CopyEndGuard<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.has_ended = true;
        progress.stalled = progress.waits_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.0.ended.notify_all();
    }
}
