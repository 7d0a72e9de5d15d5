//! Shared memory: collectives between processes of one host, through a mapping that all of them inherit.
//!
//! Work goes in rounds that every rank of the group counts alike. In a round a rank writes into one of its
//! two slots, raises `ready`, reads the others' slots when they are ready, and raises `done`. A slot is
//! written again only when every other rank is done with its last content, so with two slots a rank can
//! fill the next round while the others still read this one. Large buffers go through in pieces of one
//! slot; the slots of a few ranks stay in the shared cache.
//!
//! [`dtrain_protocol::shared_memory_layout`] defines all offsets. A rank that waits spins briefly, then
//! yields the core, then sleeps for a sixteenth of the time waited so far: with more ranks than cores a
//! waiting rank must not take the time of the one that it waits for.

#![expect(unsafe_code, reason = "memory that several processes write has no safe view")]

mod collectives;
mod heartbeats;
mod mailbox;
mod memory_map;
mod rounds;
mod spin_wait;

use super::heartbeat::HeartbeatThread;
use super::{CommError, ProcessGroup, RankId, WaitPolicy};
use dtrain_protocol::Rank;
use dtrain_protocol::shared_memory_layout::{self, SLOT_VALUES};
use memmap2::MmapOptions;
use memory_map::MemoryMap;
use spin_wait::SpinWait;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets of the counters in a rank's control block. `ready` and the tags are written by the owner before
/// the others read; `done` is written by the owner after it has read.
const READY: u64 = 0;
const TAGS: u64 = 8;
const DONE: u64 = 128;
const LEFT: u64 = 272;

/// A group of processes (or threads) that share one memory mapping.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Arc<MemoryMap>,
    heart: Arc<HeartbeatThread>,
    channel: u64,
    /// Ranks of the attempt that are in this group, ascending.
    members: Vec<u32>,
    /// Index of this rank in `members`.
    index: u32,
    /// Number of rounds that this rank has begun.
    round: u64,
    /// Bytes that other ranks have read from this one.
    sent: u64,
}

impl SharedMemory {
    /// Maps the inherited `descriptor`, and waits for all ranks of the seat's attempt to do the same.
    ///
    /// The descriptor must be one that this process was given for this purpose: it is closed here.
    pub fn inherit(
        descriptor: i32,
        bytes: u64,
        seat: &RankId,
        waits: &WaitPolicy,
    ) -> Result<Self, CommError> {
        if descriptor < 3 {
            return Err(CommError::Link(format!("descriptor {descriptor} is a standard stream")));
        }
        // SAFETY: the assignment hands this descriptor over to this call alone; were it not open, `fstat`
        // says so.
        let file = unsafe { File::from_raw_fd(descriptor) };
        Self::open(&file, bytes, seat, waits)
    }

    /// Maps `file` and waits for all ranks of the seat's attempt.
    pub fn open(file: &File, bytes: u64, seat: &RankId, waits: &WaitPolicy) -> Result<Self, CommError> {
        let link = |what: &str, error: std::io::Error| CommError::Link(format!("{what}: {error}"));
        let needed = shared_memory_layout::mapping_bytes(seat.ranks);
        let length = file.metadata().map_err(|e| link("the shared memory is not an open file", e))?.len();
        if bytes < needed || length < needed {
            let detail = format!(
                "{} ranks share {needed} bytes, but {bytes} were promised and {length} are there; \
                 the agent and this program must be of one version",
                seat.ranks
            );
            return Err(CommError::Link(detail));
        }
        let mapped = usize::try_from(needed).expect("addresses have 64 bits");
        let raw =
            MmapOptions::new().len(mapped).map_raw(file).map_err(|e| link("mapping shared memory", e))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if seat.ranks as usize <= cores { 1000 } else { 100 };
        let mut mapping = MemoryMap { raw, ranks: seat.ranks, spins, processes: Vec::new() };
        mapping.wait_for_all(seat, waits)?;
        let mapping = Arc::new(mapping);
        let heart = Arc::new(heartbeats::start(&mapping, seat, waits)?);
        let members = (0..seat.ranks).collect();
        Ok(Self::new(mapping, heart, 0, members, seat.rank.0))
    }

    fn new(
        mapping: Arc<MemoryMap>,
        heart: Arc<HeartbeatThread>,
        channel: u64,
        members: Vec<u32>,
        index: u32,
    ) -> Self {
        let group = Self { mapping, heart, channel, members, index, round: 0, sent: 0 };
        for which in 0..2 {
            // First touch costs a page fault each: better now than in the first step.
            group.own_slot(which, SLOT_VALUES).fill(0.0);
        }
        group
    }

    /// Returns the offset in the mapping of counter `field` of member `index`.
    fn control(&self, index: u32, field: u64) -> u64 {
        shared_memory_layout::control_offset(self.mapping.ranks, self.channel, self.members[index as usize])
            + field
    }

    fn counter(&self, index: u32, field: u64) -> &AtomicU64 {
        self.mapping.counter(self.control(index, field))
    }

    /// Returns this rank's slot for round `round`, of `length` values.
    #[expect(clippy::mut_from_ref, reason = "the memory is not reached through self; see the safety note")]
    fn own_slot(&self, round: u64, length: usize) -> &mut [f32] {
        assert!(length <= SLOT_VALUES, "a piece fits into a slot");
        let slot = shared_memory_layout::slot_offset(
            self.mapping.ranks,
            self.channel,
            self.members[self.index as usize],
            round % 2,
        );
        // SAFETY: only this rank writes its own slot, through a group that is borrowed mutably or being
        // created, and only after all others were done with its last content.
        unsafe { self.mapping.values_mut(slot, length) }
    }

    /// Returns the slot of member `index` for round `round`, of `length` values.
    fn slot(&self, index: u32, round: u64, length: usize) -> &[f32] {
        assert!(length <= SLOT_VALUES, "a piece fits into a slot");
        let slot = shared_memory_layout::slot_offset(
            self.mapping.ranks,
            self.channel,
            self.members[index as usize],
            round % 2,
        );
        // SAFETY: read between the owner's `ready` and this rank's `done`, while the owner does not write.
        unsafe { self.mapping.values(slot, length) }
    }

    /// Waits until counter `field` of member `index` has reached `goal`.
    fn wait(&self, index: u32, field: u64, goal: u64, operation: &'static str) -> Result<(), CommError> {
        let counter = self.counter(index, field);
        let mut patience = SpinWait::new(self.mapping.spins);
        let begun = self.heart.pulse().begin();
        while counter.load(Ordering::Acquire) < goal {
            if patience.pause() {
                self.is_there(index, operation, begun, || counter.load(Ordering::Acquire) >= goal)?;
            }
        }
        Ok(())
    }

    /// Returns an error if member `index`, awaited since beat `begun`, is gone or must no longer be waited
    /// for, unless `came` returns `true`: it did its part.
    fn is_there(
        &self,
        index: u32,
        operation: &'static str,
        begun: u64,
        came: impl Fn() -> bool,
    ) -> Result<(), CommError> {
        let peer = Rank(self.members[index as usize]);
        let lost = |detail: &str| Err(CommError::PeerLost { peer, operation, detail: detail.into() });
        let has_left = self.counter(index, LEFT).load(Ordering::Acquire) != 0;
        let has_ended = self.mapping.has_ended(peer.0);
        if came() {
            return Ok(());
        }
        if has_left {
            return lost("it left the group");
        }
        if has_ended {
            return lost("its process ended");
        }
        self.heart.pulse().check(peer, begun, operation)
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (index, size) = (self.index, self.size());
        (1..size).map(move |distance| (index + distance) % size)
    }

    /// Counts the bytes that `readers` other ranks read of `length` values of this rank.
    fn shown(&mut self, length: usize, readers: u32) {
        self.sent += 4 * length as u64 * u64::from(readers);
    }

    /// Tells the other ranks that this one has left the group.
    fn break_off(&self) {
        self.counter(self.index, LEFT).store(1, Ordering::Release);
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.break_off();
    }
}

#[cfg(test)]
mod tests {
    use super::memory_map::{JOINED, PROCESS};
    use super::*;
    use dtrain_protocol::{AttemptId, TrialId, WaitLimits};
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_killed_process_is_lost_even_before_anybody_collects_it() {
        let file =
            File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"));
        file.set_len(shared_memory_layout::mapping_bytes(2)).expect("length");
        let mut peer = std::process::Command::new("sleep").arg("60").spawn().expect("started");
        // The fields that rank 1 would write when it joins.
        for (field, value) in [(PROCESS, u64::from(peer.id())), (JOINED, 8)] {
            file.write_at(&value.to_le_bytes(), shared_memory_layout::control_offset(2, 0, 1) + field)
                .expect("written");
        }
        let seat = RankId { trial: TrialId("t".into()), attempt: AttemptId(7), rank: Rank(0), ranks: 2 };
        let mut group = SharedMemory::open(
            &file,
            shared_memory_layout::mapping_bytes(2),
            &seat,
            &WaitPolicy::new(WaitLimits::for_steps_of(None)),
        )
        .expect("joined");
        peer.kill().expect("killed");
        let error = group.all_reduce(&mut [1.0; 5]).expect_err("the peer is gone");
        assert!(matches!(&error, CommError::PeerLost { peer: Rank(1), .. }), "{error}");
        assert!(error.to_string().contains("its process ended"), "{error}");
        peer.wait().expect("collected");
    }
}
