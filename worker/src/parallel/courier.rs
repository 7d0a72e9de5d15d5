//! The one thread of a rank that talks to the others, so that compute goes on while numbers travel.
//!
//! Every collective of a rank goes through it, in the order in which it was handed over; that order is the same
//! on all ranks, because all of them follow the same actions. It never looks at what it carries.

use super::sync::{self, Half};
use crate::comm::{CommError, Group};
use dtrain_protocol::Failure;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What is to be done with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    /// Replace by the sum over all ranks.
    Sum,
    /// The same, each value in 16 bits.
    HalfSum(Half),
    /// Replace this rank's part by its sum over all ranks.
    Scatter,
    /// Fill the parts of the other ranks.
    Gather,
    /// Wait until all ranks are here.
    Meet,
}

/// Carries buffers to the other ranks and back, first in, first out.
#[derive(Debug)]
pub struct Courier {
    rank: u32,
    ranks: u32,
    /// Bytes sent, up to the last errand that is done.
    sent: Arc<AtomicU64>,
    errands: Sender<(Errand, Vec<f32>)>,
    /// Behind a lock, so that those who share a courier may be on several threads.
    done: Mutex<Receiver<Result<Vec<f32>, CommError>>>,
    /// Nanoseconds spent in [`Courier::next`].
    waited: AtomicU64,
}

impl Courier {
    /// Hands `group` to a thread of its own. The thread ends when the courier is dropped.
    pub fn start(group: Box<dyn Group>) -> Self {
        let (rank, ranks) = (group.rank(), group.size());
        let (errands, inbox) = channel();
        let (outbox, done) = channel();
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let travel = move || serve(group, &inbox, &outbox, &count);
        std::thread::Builder::new()
            .name("courier".into())
            .spawn(travel)
            .expect("a process may start a thread");
        Self { rank, ranks, sent, errands, done: Mutex::new(done), waited: AtomicU64::new(0) }
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
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Begins to sum `values` over the ranks; [`Courier::next`] gives the sum.
    pub fn send_sum(&self, values: Vec<f32>) {
        self.send(Errand::Sum, values);
    }

    /// As [`Courier::send_sum`], with every value rounded to 16 bits on its way.
    pub fn send_half_sum(&self, values: Vec<f32>, half: Half) {
        self.send(Errand::HalfSum(half), values);
    }

    /// Begins to sum `values` over the ranks into this rank's [`crate::comm::part`]; the rest is left as it is.
    pub fn send_scatter(&self, values: Vec<f32>) {
        self.send(Errand::Scatter, values);
    }

    /// Begins to gather `values`, of which this rank fills its own [`crate::comm::part`].
    pub fn send_gather(&self, values: Vec<f32>) {
        self.send(Errand::Gather, values);
    }

    /// Waits for the oldest buffer that is still on its way.
    pub fn next(&self) -> Result<Vec<f32>, Failure> {
        let began = Instant::now();
        let done = self.done.lock().expect("no thread panics while it waits").recv();
        let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited.fetch_add(nanoseconds, Ordering::Relaxed);
        match done {
            Ok(Ok(values)) => Ok(values),
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
        self.send(Errand::Meet, Vec::new());
        self.next().map(drop)
    }

    // When the thread has ended, `next` tells why.
    fn send(&self, errand: Errand, values: Vec<f32>) {
        drop(self.errands.send((errand, values)));
    }
}

/// Runs errands until nobody sends any more, or one fails.
fn serve(
    mut group: Box<dyn Group>,
    inbox: &Receiver<(Errand, Vec<f32>)>,
    outbox: &Sender<Result<Vec<f32>, CommError>>,
    sent: &AtomicU64,
) {
    while let Ok((errand, mut values)) = inbox.recv() {
        let done = match errand {
            Errand::Sum => group.all_reduce(&mut values),
            Errand::HalfSum(half) => sync::sum(group.as_mut(), &mut values, half),
            Errand::Scatter => group.reduce_scatter(&mut values).map(drop),
            Errand::Gather => group.all_gather(&mut values),
            Errand::Meet => group.barrier(),
        };
        let failed = done.is_err();
        sent.store(group.sent(), Ordering::Release);
        if outbox.send(done.map(|()| values)).is_err() || failed {
            return;
        }
    }
}
