//! Rounds of shared memory: a rank publishes its slot, and reads those of the others.

use super::memory_map::at;
use super::{DONE, READY, SharedMemory, TAGS};
use crate::comm::{CommError, ProcessGroup, sum_in_order};
use dtrain_protocol::Rank;
use dtrain_protocol::shared_memory_layout::SLOT_VALUES;
use std::ops::Range;
use std::sync::atomic::Ordering;

impl SharedMemory {
    /// Begins a round: `write` fills this rank's slot. The operation and the length form the tag on which
    /// all ranks must agree.
    pub(super) fn publish(
        &mut self,
        operation: RoundKind,
        length: usize,
        write: impl FnOnce(&mut [f32]),
    ) -> Result<(), CommError> {
        let round = self.round;
        for other in self.others() {
            // Slot `round % 2` was last read in round `round - 2`.
            self.wait(other, DONE, round.saturating_sub(1), operation.name())
                .inspect_err(|_| self.break_off())?;
        }
        self.round += 1;
        write(self.own_slot(round, length.min(SLOT_VALUES)));
        let tag = operation.tag(length);
        self.counter(self.index, TAGS + 8 * (round % 2)).store(tag, Ordering::Relaxed);
        self.counter(self.index, READY).store(round + 1, Ordering::Release);
        Ok(())
    }

    /// Waits until member `other` has published `round` as well.
    fn await_peer(
        &self,
        operation: RoundKind,
        length: usize,
        round: u64,
        other: u32,
    ) -> Result<(), CommError> {
        self.wait(other, READY, round + 1, operation.name())?;
        let tag = self.counter(other, TAGS + 8 * (round % 2)).load(Ordering::Relaxed);
        if tag == operation.tag(length) {
            return Ok(());
        }
        let peer = Rank(self.members[other as usize]);
        let detail = format!("expected {}, received {}", describe(operation.tag(length)), describe(tag));
        Err(CommError::OutOfStep { peer, operation: operation.name(), detail })
    }

    /// Ends round `round`: `read` is called with the slot of each other rank as soon as it is ready.
    pub(super) fn consume(
        &mut self,
        operation: RoundKind,
        length: usize,
        round: u64,
        mut read: impl FnMut(u32, &[f32]),
    ) -> Result<(), CommError> {
        for other in self.others() {
            self.await_peer(operation, length, round, other).inspect_err(|_| self.break_off())?;
            read(other, self.slot(other, round, length.min(SLOT_VALUES)));
        }
        self.counter(self.index, DONE).store(round + 1, Ordering::Release);
        Ok(())
    }

    /// Ends round `round` by adding the `range` of every rank's slot in rank order; `own` holds this
    /// rank's.
    pub(super) fn consume_sum(
        &mut self,
        operation: RoundKind,
        length: usize,
        round: u64,
        range: Range<usize>,
        own: &mut [f32],
    ) -> Result<(), CommError> {
        for other in self.others() {
            self.await_peer(operation, length, round, other).inspect_err(|_| self.break_off())?;
        }
        if let [first, second] = self.members[..] {
            // Addition of two values is commutative, so the sum can be made in place.
            debug_assert!(first < second);
            let theirs = &self.slot(1 - self.index, round, length)[range];
            own.iter_mut().zip(theirs).for_each(|(own, value)| *own += value);
        } else {
            self.sum_many(round, range, own);
        }
        self.counter(self.index, DONE).store(round + 1, Ordering::Release);
        Ok(())
    }

    fn sum_many(&self, round: u64, range: Range<usize>, own: &mut [f32]) {
        const BLOCK: usize = 2048;
        let mut sum = [0.0; BLOCK];
        for begin in range.clone().step_by(BLOCK) {
            let block = begin..(begin + BLOCK).min(range.end);
            let own = &mut own[block.start - range.start..block.end - range.start];
            let sum = &mut sum[..block.len()];
            let parts: Vec<&[f32]> = (0..self.size())
                .map(|index| match index == self.index {
                    true => &*own,
                    false => &self.slot(index, round, block.end)[block.clone()],
                })
                .collect();
            sum_in_order(&parts, sum);
            own.copy_from_slice(sum);
        }
    }
}

/// The operation that a round belongs to; part of the tag on which all ranks must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundKind {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
    Barrier,
}

const NAMES: [&str; 6] = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "barrier"];

impl RoundKind {
    fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Packs the operation and the length of a round into one word, which is never zero.
    fn tag(self, length: usize) -> u64 {
        ((length as u64) << 4) | (self as u64 + 1)
    }
}

fn describe(tag: u64) -> String {
    let name = at(tag & 15).checked_sub(1).and_then(|index| NAMES.get(index)).unwrap_or(&"nothing");
    format!("{name} of {} values", tag >> 4)
}
