//! Communication queue: a thread runs collectives while the rank computes.
//!
//! The thread runs them in the order in which they were started. That order is the same on all ranks,
//! because all of them follow the same actions.

use super::half_precision::{self, HalfFormat};
use crate::comm::{CommError, Communicator, ProcessGroup, QueuedTensor};
use burn::tensor::Tensor;
use dtrain_protocol::Failure;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The kind of a collective in the queue, which works on one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collective {
    /// Replaces the buffer by the sum over all ranks.
    AllReduce,
    /// Replaces the buffer by the sum over all ranks, sending each value in 16 bits.
    HalfAllReduce(HalfFormat),
    /// Replaces this rank's part of the buffer by its sum over all ranks.
    ReduceScatter,
    /// Fills the other ranks' parts of the buffer.
    AllGather,
    /// Waits for all ranks.
    Barrier,
}

/// A collective that is handed to the queue's thread.
enum QueueJob {
    Host(Collective, Vec<f32>),
    /// An all-reduce of values on a device, or the error from locating them in its memory.
    Device(Result<QueuedTensor, CommError>),
}

/// The buffer after a collective.
#[derive(Debug)]
enum CollectiveOutput {
    Host(Vec<f32>),
    /// The sum of an all-reduce, on its device.
    Device(Tensor<1>),
}

/// A queue of collectives of one group, first in, first out.
#[derive(Debug)]
pub struct CommQueue {
    rank: u32,
    ranks: u32,
    /// Bytes sent, up to the last completed collective.
    sent: Arc<AtomicU64>,
    collectives: Sender<QueueJob>,
    /// Results of completed collectives; behind a lock, so that several threads may share the queue.
    done: Mutex<Receiver<Result<CollectiveOutput, CommError>>>,
    /// Nanoseconds spent in [`CommQueue::wait`].
    waited: AtomicU64,
}

impl CommQueue {
    /// Starts a queue and its thread for `group`, for values in host memory. The thread ends when the queue
    /// is dropped.
    pub fn start(group: Box<dyn ProcessGroup>) -> Self {
        Self::over(Communicator::staged(group))
    }

    /// Starts a queue and its thread for `group`, for values in host memory and on devices.
    pub fn over(group: Communicator) -> Self {
        let (rank, ranks) = (group.rank(), group.size());
        let (collectives, inbox) = channel();
        let (outbox, done) = channel();
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let travel = move || serve(group, &inbox, &outbox, &count);
        std::thread::Builder::new()
            .name("collectives".into())
            .spawn(travel)
            .expect("a process may start a thread");
        Self { rank, ranks, sent, collectives, done: Mutex::new(done), waited: AtomicU64::new(0) }
    }

    /// Returns the index of this rank in the group.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks in the group.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the bytes that this rank has sent, without collectives in flight.
    pub fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Starts to sum `values` over the ranks; [`CommQueue::wait`] returns the sum.
    pub fn start_all_reduce(&self, values: Vec<f32>) {
        self.send(Collective::AllReduce, values);
    }

    /// Starts to sum `values` on a device, whose kernels this thread queued; [`CommQueue::wait_for_tensor`]
    /// returns the sum. Kernels that this thread queues later are not waited for.
    pub fn start_all_reduce_of_tensor(&self, values: Tensor<1>) {
        drop(self.collectives.send(QueueJob::Device(QueuedTensor::of(values))));
    }

    /// Starts to sum `values` over the ranks, sending every value in 16 bits.
    pub fn start_half_all_reduce(&self, values: Vec<f32>, half: HalfFormat) {
        self.send(Collective::HalfAllReduce(half), values);
    }

    /// Starts to sum `values` over the ranks into this rank's [`crate::comm::rank_range`]; the rest is left
    /// unchanged.
    pub fn start_reduce_scatter(&self, values: Vec<f32>) {
        self.send(Collective::ReduceScatter, values);
    }

    /// Starts an all-gather of `values`, in which this rank has filled its own [`crate::comm::rank_range`].
    pub fn start_all_gather(&self, values: Vec<f32>) {
        self.send(Collective::AllGather, values);
    }

    /// Waits for the oldest buffer in flight, and returns it.
    pub fn wait(&self) -> Result<Vec<f32>, Failure> {
        match self.receive()? {
            CollectiveOutput::Host(values) => Ok(values),
            CollectiveOutput::Device(_) => panic!("the oldest buffer lies on a device, not in host memory"),
        }
    }

    /// Waits for the oldest buffer in flight, which is on a device, and returns it.
    pub fn wait_for_tensor(&self) -> Result<Tensor<1>, Failure> {
        match self.receive()? {
            CollectiveOutput::Device(values) => Ok(values),
            CollectiveOutput::Host(_) => panic!("the oldest buffer lies in host memory, not on a device"),
        }
    }

    fn receive(&self) -> Result<CollectiveOutput, Failure> {
        let began = Instant::now();
        let done = self.done.lock().expect("no thread panics while it waits").recv();
        let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited.fetch_add(nanoseconds, Ordering::Relaxed);
        match done {
            Ok(Ok(buffer)) => Ok(buffer),
            Ok(Err(error)) => Err(error.failure()),
            Err(_) => Err(Failure::Other("the thread that talks to the other ranks ended".into())),
        }
    }

    /// Returns the seconds spent waiting for collectives so far.
    pub fn waited(&self) -> f64 {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Waits until all ranks of the group have called it. No collective may be in flight.
    pub fn barrier(&self) -> Result<(), Failure> {
        self.send(Collective::Barrier, Vec::new());
        self.wait().map(drop)
    }

    // If the thread has ended, `wait` returns the reason.
    fn send(&self, collective: Collective, values: Vec<f32>) {
        drop(self.collectives.send(QueueJob::Host(collective, values)));
    }
}

/// Runs the collectives of the queue until its senders are gone, or one fails.
fn serve(
    mut group: Communicator,
    inbox: &Receiver<QueueJob>,
    outbox: &Sender<Result<CollectiveOutput, CommError>>,
    sent: &AtomicU64,
) {
    while let Ok(work) = inbox.recv() {
        let done = match work {
            QueueJob::Device(values) => {
                values.and_then(|values| group.all_reduce_queued(values)).map(CollectiveOutput::Device)
            }
            QueueJob::Host(collective, mut values) => {
                run(collective, group.host(), &mut values).map(|()| CollectiveOutput::Host(values))
            }
        };
        let failed = done.is_err();
        sent.store(group.bytes_sent(), Ordering::Release);
        if outbox.send(done).is_err() || failed {
            return;
        }
    }
}

fn run(collective: Collective, group: &mut dyn ProcessGroup, values: &mut [f32]) -> Result<(), CommError> {
    match collective {
        Collective::AllReduce => group.all_reduce(values),
        Collective::HalfAllReduce(half) => half_precision::sum(group, values, half),
        Collective::ReduceScatter => group.reduce_scatter(values).map(drop),
        Collective::AllGather => group.all_gather(values),
        Collective::Barrier => group.barrier(),
    }
}
