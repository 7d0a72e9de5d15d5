//! A queue of collectives, which a thread of its own runs while the rank computes.
//!
//! The thread runs them in the order in which they were started. That order is the same on all ranks, because all of them
//! follow the same actions.

use super::sync::{self, HalfFormat};
use crate::comm::{CommError, Communicator, ProcessGroup, QueuedTensor};
use burn::tensor::Tensor;
use dtrain_protocol::Failure;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A collective over a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collective {
    /// Replace by the sum over all ranks.
    AllReduce,
    /// The same, each value in 16 bits.
    HalfAllReduce(HalfFormat),
    /// Replace this rank's part by its sum over all ranks.
    ReduceScatter,
    /// Fill the parts of the other ranks.
    AllGather,
    /// Wait until all ranks are here.
    Barrier,
}

/// What the thread is to do.
enum QueueJob {
    Host(Collective, Vec<f32>),
    /// An all-reduce of values on a device, unless they were not found there.
    Device(Result<QueuedTensor, CommError>),
}

/// What a collective gave.
#[derive(Debug)]
enum CollectiveOutput {
    Host(Vec<f32>),
    /// Of an all-reduce.
    Device(Tensor<1>),
}

/// Collectives of one group, first in, first out.
#[derive(Debug)]
pub struct CommQueue {
    rank: u32,
    ranks: u32,
    /// Bytes sent, up to the last collective that is done.
    sent: Arc<AtomicU64>,
    collectives: Sender<QueueJob>,
    /// Behind a lock, so that those who share a queue may be on several threads.
    done: Mutex<Receiver<Result<CollectiveOutput, CommError>>>,
    /// Nanoseconds spent in [`CommQueue::wait`].
    waited: AtomicU64,
}

impl CommQueue {
    /// Hands `group` to a thread of its own. The thread ends when the queue is dropped.
    pub fn start(group: Box<dyn ProcessGroup>) -> Self {
        Self::over(Communicator::staged(group))
    }

    /// As [`CommQueue::start`], for values of devices as well.
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

    /// Index of this rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks in the group.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Bytes this rank sent with it, not counting what is on its way.
    pub fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Begins to sum `values` over the ranks; [`CommQueue::wait`] gives the sum.
    pub fn start_all_reduce(&self, values: Vec<f32>) {
        self.send(Collective::AllReduce, values);
    }

    /// As [`CommQueue::start_all_reduce`], of values on a device, whose kernels this thread queued; [`CommQueue::wait_for_tensor`]
    /// gives the sum. What this thread queues later is not waited for.
    pub fn start_all_reduce_of_tensor(&self, values: Tensor<1>) {
        drop(self.collectives.send(QueueJob::Device(QueuedTensor::of(values))));
    }

    /// As [`CommQueue::start_all_reduce`], with every value rounded to 16 bits on its way.
    pub fn start_half_all_reduce(&self, values: Vec<f32>, half: HalfFormat) {
        self.send(Collective::HalfAllReduce(half), values);
    }

    /// Begins to sum `values` over the ranks into this rank's [`crate::comm::rank_range`]; the rest is left as it is.
    pub fn start_reduce_scatter(&self, values: Vec<f32>) {
        self.send(Collective::ReduceScatter, values);
    }

    /// Begins to gather `values`, of which this rank fills its own [`crate::comm::rank_range`].
    pub fn start_all_gather(&self, values: Vec<f32>) {
        self.send(Collective::AllGather, values);
    }

    /// Waits for the oldest buffer that is still on its way.
    pub fn wait(&self) -> Result<Vec<f32>, Failure> {
        match self.receive()? {
            CollectiveOutput::Host(values) => Ok(values),
            CollectiveOutput::Device(_) => panic!("the oldest buffer lies on a device, not in host memory"),
        }
    }

    /// As [`CommQueue::wait`], for values of a device.
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

    /// Seconds that were waited for buffers so far.
    pub fn waited(&self) -> f64 {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Waits until all ranks have called it. Nothing may be on its way.
    pub fn barrier(&self) -> Result<(), Failure> {
        self.send(Collective::Barrier, Vec::new());
        self.wait().map(drop)
    }

    // When the thread has ended, `wait` tells why.
    fn send(&self, collective: Collective, values: Vec<f32>) {
        drop(self.collectives.send(QueueJob::Host(collective, values)));
    }
}

/// Runs collectives until nobody sends any more, or one fails.
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
        Collective::HalfAllReduce(half) => sync::sum(group, values, half),
        Collective::ReduceScatter => group.reduce_scatter(values).map(drop),
        Collective::AllGather => group.all_gather(values),
        Collective::Barrier => group.barrier(),
    }
}
