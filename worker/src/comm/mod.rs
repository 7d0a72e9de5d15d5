//! Communication: collectives and point-to-point messages between ranks, over any transport.
//!
//! One trait has four implementations: one rank, threads of one process, processes of one host, TLS between
//! hosts. All of them add in rank order `0..n` in `f32`, so the same ranks get the same bits over any
//! transport. [`Communicator`] takes values of devices as well.

pub mod loopback;
pub mod shared_memory;
pub mod tcp;

mod communicator;
mod error;
mod heartbeat;
#[cfg(feature = "cuda")]
pub mod nccl;

pub use communicator::{Communicator, DeviceLinks, QueuedTensor};
pub use error::CommError;
pub use heartbeat::{WaitPolicy, WorkCounter};

use dtrain_protocol::{AttemptId, Channel, Rank, RankTransport, TrialId};
use std::ops::Range;

/// The environment variable that turns NCCL off: with `off`, GPUs exchange values through host memory.
pub const NCCL_SWITCH: &str = "DTRAIN_NCCL";

/// Largest all-reduce, in values, in which every rank sends all its values to every other and each adds for
/// itself.
const SMALL_VALUES: usize = 4 << 10;

/// Identity of a rank: its trial, attempt and number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankId {
    /// Trial that the rank belongs to.
    pub trial: TrialId,
    /// Attempt that the rank belongs to; a peer of another attempt is refused.
    pub attempt: AttemptId,
    /// Number of this rank in the attempt.
    pub rank: Rank,
    /// Number of ranks of the attempt.
    pub ranks: u32,
}

/// Values sent to one other rank of the group.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Index of the receiver in the group.
    pub to: u32,
    /// The values to send.
    pub values: &'a [f32],
}

/// Buffer for values received from one other rank of the group.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Index of the sender in the group.
    pub from: u32,
    /// Buffer that receives the message, which has the same length.
    pub values: &'a mut [f32],
}

/// A group of ranks that call the same operations in the same order with the same lengths.
///
/// An `Err` ends the group: the ranks have diverged. Byte counts below are what one of `n` ranks sends for
/// a buffer of `N` bytes.
pub trait ProcessGroup: Send {
    /// Returns the index of this rank in the group, from 0.
    fn rank(&self) -> u32;

    /// Returns the number of ranks in the group.
    fn size(&self) -> u32;

    /// Replaces `values` by their sum over the ranks (all-reduce), added in rank order. Sends `2 N (n - 1) /
    /// n`; for a few kilobytes `N (n - 1)` at once, which is one latency less.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        self.reduce_scatter(values)?;
        self.all_gather(values)
    }

    /// Sums like [`ProcessGroup::all_reduce`], but only into this rank's [`rank_range`], which is returned;
    /// the rest of `values` is unchanged. Sends `N (n - 1) / n`.
    fn reduce_scatter(&mut self, values: &mut [f32]) -> Result<Range<usize>, CommError>;

    /// Fills the [`rank_range`] of every other rank with that rank's values; this rank gives its own range.
    /// Sends `N (n - 1) / n`.
    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), CommError>;

    /// Sends block `p` of `send` to rank `p`, and receives block `p` of `recv` from it. Both have `n`
    /// blocks of equal length. Sends `N (n - 1) / n`.
    fn all_to_all(&mut self, send: &[f32], recv: &mut [f32]) -> Result<(), CommError>;

    /// Replaces `values` by those of rank `root`, which sends `N (n - 1)`.
    fn broadcast(&mut self, root: u32, values: &mut [f32]) -> Result<(), CommError>;

    /// Sends to one rank and receives from one (the same or another), both at once, so that two ranks that
    /// each owe the other a message cannot wait on each other forever. Only the named ranks take part.
    /// Sends `N`.
    fn exchange(&mut self, send: Option<Outgoing<'_>>, recv: Option<Incoming<'_>>) -> Result<(), CommError>;

    /// Returns the bytes of values that this rank has sent so far; a value sent to two ranks counts twice.
    fn bytes_sent(&self) -> u64;

    /// Waits until all ranks of the group have called it.
    fn barrier(&mut self) -> Result<(), CommError>;

    /// Creates the group of `members` (indices in this group, ascending, this rank among them), which may
    /// be used at the same time as this one and as those of other channels, from another thread.
    ///
    /// Called by every rank of this group, at most once for each channel, and in the same order of
    /// channels.
    fn split(&mut self, channel: Channel, members: &[u32]) -> Result<Box<dyn ProcessGroup>, CommError>;
}

/// Returns the range of elements that rank `rank` of `size` owns of `length` elements: contiguous, in rank
/// order, the first `length % size` ranges one longer than the others.
pub fn rank_range(length: usize, rank: u32, size: u32) -> Range<usize> {
    let part = dtrain_protocol::sharding::vector_shard_range(length as u64, rank.into(), size.into());
    #[expect(clippy::cast_possible_truncation, reason = "at most the length")]
    let part = part.start as usize..part.end as usize;
    part
}

/// Joins the ranks of an attempt into one group; returns when all have joined.
///
/// `announce` is called for [`RankTransport::Tls`] only: it reports the address on which this rank listens,
/// and returns the addresses of all, by rank. `waits` limits the waiting for others, now and in each later
/// operation.
pub fn join(
    link: &RankTransport,
    seat: &RankId,
    waits: &WaitPolicy,
    announce: impl FnOnce(&str) -> Result<Vec<String>, CommError>,
) -> Result<Box<dyn ProcessGroup>, CommError> {
    match link {
        RankTransport::Alone if seat.ranks == 1 => Ok(Box::new(loopback::SingleRank)),
        RankTransport::Alone => {
            Err(CommError::Link(format!("{} ranks were given no link to one another", seat.ranks)))
        }
        RankTransport::SharedMemory { descriptor, bytes } => {
            let group = shared_memory::SharedMemory::inherit(*descriptor, *bytes, seat, waits)?;
            Ok(Box::new(group))
        }
        RankTransport::Tls { bind, identity } => {
            let (listener, address) = tcp::Listener::bind(bind)?;
            let peers = announce(&address)?;
            Ok(Box::new(listener.connect(seat, &peers, identity, waits)?))
        }
    }
}

/// Overwrites `sum` with the element-wise sum of `parts`, added in their order.
///
/// Works through blocks that stay in the first-level cache; the order of additions for one element is
/// always that of the parts.
fn sum_in_order(parts: &[&[f32]], sum: &mut [f32]) {
    const BLOCK: usize = 2048;
    for begin in (0..sum.len()).step_by(BLOCK) {
        let range = begin..(begin + BLOCK).min(sum.len());
        let block = &mut sum[range.clone()];
        block.copy_from_slice(&parts[0][range.clone()]);
        for part in &parts[1..] {
            for (sum, value) in block.iter_mut().zip(&part[range.clone()]) {
                *sum += value;
            }
        }
    }
}

/// Asserts that the members of a split are ascending, inside the group, and include this rank.
fn check_members(members: &[u32], rank: u32, size: u32) {
    assert!(members.is_sorted_by(|a, b| a < b), "members are ascending");
    assert!(members.iter().all(|member| *member < size), "members are of this group");
    assert!(members.contains(&rank), "a rank splits into a group that it is in");
}

#[cfg(test)]
mod tests;
