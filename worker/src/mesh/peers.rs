//! Groups for communication in the middle of a pass, where no error can be returned.

use crate::comm::{CommError, Communicator, Incoming, Outgoing};
use burn::tensor::{Device, Tensor};
use dtrain_protocol::Failure;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The first communication error between this rank and any other.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstFailure(Arc<Mutex<Option<Failure>>>);

impl FirstFailure {
    /// Returns the first communication error, if there was one.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let seen = self.0.lock().expect("no thread panics while it holds the failure");
        seen.clone().map_or(Ok(()), Err)
    }

    /// Stores `failure`, unless there was an earlier one.
    pub(super) fn keep(&self, failure: Failure) {
        self.0.lock().expect("no thread panics while it holds the failure").get_or_insert(failure);
    }
}

/// A group for communication in the middle of a pass.
///
/// An error is stored, not returned: values are then meaningless, and later calls do nothing. The caller of
/// the pass must call [`crate::mesh::Mesh::check`] afterwards.
#[derive(Clone)]
pub struct Peers {
    rank: u32,
    size: u32,
    group: Arc<Mutex<Communicator>>,
    failure: FirstFailure,
    /// Nanoseconds spent communicating so far.
    waited: Arc<AtomicU64>,
}

impl Peers {
    pub(super) fn of(group: Communicator, failure: FirstFailure) -> Self {
        let (rank, size) = (group.rank(), group.size());
        Self { rank, size, group: Arc::new(Mutex::new(group)), failure, waited: Arc::default() }
    }

    /// Returns the index of this rank in the group.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks in the group, this one included.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the bytes that this rank has sent to the group.
    pub fn bytes_sent(&self) -> u64 {
        self.group.lock().expect("no thread panics while it holds the group").bytes_sent()
    }

    /// Returns the seconds spent communicating so far, by all users of this group.
    pub fn waited(&self) -> f64 {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Replaces `values` by their sum over the ranks.
    pub fn all_reduce(&self, values: &mut [f32]) {
        self.with(|group| group.host().all_reduce(values));
    }

    /// Replaces this rank's part of `values` by its sum over the ranks, see [`crate::comm::rank_range`].
    pub fn reduce_scatter(&self, values: &mut [f32]) {
        self.with(|group| group.host().reduce_scatter(values).map(drop));
    }

    /// Fills the other ranks' parts of `values`.
    pub fn all_gather(&self, values: &mut [f32]) {
        self.with(|group| group.host().all_gather(values));
    }

    /// Returns the sum of `values` over the ranks, on their device.
    pub fn all_reduce_tensor(&self, values: Tensor<1>) -> Tensor<1> {
        if self.size == 1 {
            return values;
        }
        let (length, device) = (values.dims()[0], values.device());
        let sum = self.with(|group| group.all_reduce(values));
        sum.unwrap_or_else(|| Tensor::zeros([length], &device))
    }

    /// Returns this rank's part of the sum of `values` over the ranks, which divide them evenly, on their
    /// device.
    pub fn reduce_scatter_tensor(&self, values: Tensor<1>) -> Tensor<1> {
        let (part, device) = (values.dims()[0] / self.size as usize, values.device());
        let sum = self.with(|group| group.reduce_scatter(values));
        sum.unwrap_or_else(|| Tensor::zeros([part], &device))
    }

    /// Returns the parts of all ranks, joined in rank order, on their device; this rank contributes `part`.
    /// All have the same length.
    pub fn all_gather_tensor(&self, part: Tensor<1>) -> Tensor<1> {
        let (whole, device) = (part.dims()[0] * self.size as usize, part.device());
        let all = self.with(|group| group.all_gather(part));
        all.unwrap_or_else(|| Tensor::zeros([whole], &device))
    }

    /// Sends values to one rank and receives `recv` values from one, at once and both on `device`.
    pub fn exchange_tensors(
        &self,
        send: Option<(u32, Tensor<1>)>,
        recv: Option<(u32, usize)>,
        device: &Device,
    ) -> Option<Tensor<1>> {
        let received = self.with(|group| group.exchange(send, recv, device)).flatten();
        received.or_else(|| recv.map(|(_, values)| Tensor::zeros([values], device)))
    }

    /// Sends block `p` of `send` to rank `p` and receives block `p` of `recv` from it.
    pub fn all_to_all(&self, send: &[f32], recv: &mut [f32]) {
        self.with(|group| group.host().all_to_all(send, recv));
    }

    /// Sends a message to one rank and receives one from a rank, both at once.
    pub fn exchange(&self, send: Option<Outgoing<'_>>, recv: Option<Incoming<'_>>) {
        self.with(|group| group.host().exchange(send, recv));
    }

    /// Runs `work` here while `talk` communicates in a thread of its own; only the time of `talk` beyond
    /// the work counts as waiting.
    pub(crate) fn meanwhile<A: Send, B>(
        &self,
        talk: impl FnOnce(&Self) -> A + Send,
        work: impl FnOnce() -> B,
    ) -> (A, B) {
        std::thread::scope(|scope| {
            let uncounted = Self { waited: Arc::default(), ..self.clone() };
            let talking = scope.spawn(move || talk(&uncounted));
            let done = work();
            let began = Instant::now();
            let told = talking.join().expect("errors of a group are kept, not raised");
            self.count(began);
            (told, done)
        })
    }

    /// Counts the time since `began` as waiting for other ranks.
    fn count(&self, began: Instant) {
        let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns the result of `act` on the group; `None` if there is no other rank, or after an error.
    fn with<T>(&self, act: impl FnOnce(&mut Communicator) -> Result<T, CommError>) -> Option<T> {
        if self.size == 1 || self.failure.check().is_err() {
            return None;
        }
        let mut group: MutexGuard<'_, _> =
            self.group.lock().expect("no thread panics while it holds the group");
        let began = Instant::now();
        let done = act(&mut group);
        self.count(began);
        done.map_err(|error| self.failure.keep(error.failure())).ok()
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peers({} of {})", self.rank, self.size)
    }
}
