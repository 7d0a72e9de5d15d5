//! The shared mapping: access to its counters and values, and the processes that share it.

use super::spin_wait::SpinWait;
use crate::comm::{CommError, RankId, WaitPolicy};
use dtrain_protocol::Rank;
use dtrain_protocol::shared_memory_layout;
use memmap2::MmapRaw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets in a rank's control block of the values that it writes when it joins.
pub(super) const JOINED: u64 = 256;
pub(super) const PROCESS: u64 = 264;

#[derive(Debug)]
pub(super) struct MemoryMap {
    pub(super) raw: MmapRaw,
    pub(super) ranks: u32,
    /// Number of spins on a counter before the core is yielded.
    pub(super) spins: u32,
    /// Process handles of the peers, by rank; `None` for this process.
    pub(super) processes: Vec<Option<OwnedFd>>,
}

impl MemoryMap {
    /// Announces this rank, and waits until all ranks of the attempt have joined.
    ///
    /// There are no heartbeats yet. The agent notices a process that ends, and some ranks open their
    /// devices for long.
    pub(super) fn wait_for_all(&mut self, seat: &RankId, waits: &WaitPolicy) -> Result<(), CommError> {
        let field = |rank, field| shared_memory_layout::control_offset(seat.ranks, 0, rank) + field;
        let own = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
        self.counter(field(seat.rank.0, PROCESS)).store(own, Ordering::Relaxed);
        self.counter(field(seat.rank.0, JOINED)).store(seat.attempt.0 + 1, Ordering::Release);
        let mut patience = SpinWait::new(self.spins);
        for rank in 0..seat.ranks {
            let mut joined = 0;
            while joined == 0 {
                joined = self.counter(field(rank, JOINED)).load(Ordering::Acquire);
                if joined == 0 && patience.pause() && patience.waited() > waits.idle() {
                    let seconds = patience.waited().as_secs_f64();
                    return Err(CommError::Silent { peer: Rank(rank), seconds, operation: "joining" });
                }
            }
            if joined != seat.attempt.0 + 1 {
                let detail = format!("expected attempt {}, received {}", seat.attempt, joined - 1);
                return Err(CommError::OutOfStep { peer: Rank(rank), operation: "joining", detail });
            }
            let process = self.counter(field(rank, PROCESS)).load(Ordering::Relaxed);
            let handle = if process == own { None } else { Some(open_process(Rank(rank), process)?) };
            self.processes.push(handle);
        }
        Ok(())
    }

    pub(super) fn counter(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: offsets come from `protocol::mapping`, whose areas lie inside the mapping (its length is
        // checked in `open`), are aligned to 8 bytes, and are used as atomics by every process.
        unsafe { AtomicU64::from_ptr(self.raw.as_mut_ptr().add(at(offset)).cast()) }
    }

    /// # Safety
    /// No rank writes these values while the result lives.
    pub(super) unsafe fn values(&self, offset: u64, length: usize) -> &[f32] {
        // SAFETY: the area lies inside the mapping and is aligned to a page; any bits are a valid f32.
        unsafe { std::slice::from_raw_parts(self.raw.as_mut_ptr().add(at(offset)).cast(), length) }
    }

    /// # Safety
    /// No other code reads or writes these values while the result lives.
    #[expect(clippy::mut_from_ref, reason = "the memory is not reached through self")]
    pub(super) unsafe fn values_mut(&self, offset: u64, length: usize) -> &mut [f32] {
        // SAFETY: as above, and the caller is alone.
        unsafe { std::slice::from_raw_parts_mut(self.raw.as_mut_ptr().add(at(offset)).cast(), length) }
    }

    /// Returns `true` if the process of `rank` has ended, even before its parent has collected the exit
    /// status.
    pub(super) fn has_ended(&self, rank: u32) -> bool {
        let Some(process) = &self.processes[rank as usize] else { return false };
        let mut handles = [PollFd::new(process, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut handles, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

pub(super) fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("the whole mapping has an address")
}

/// Opens a handle of the process of `peer`, which tells when the process ends.
fn open_process(peer: Rank, process: u64) -> Result<OwnedFd, CommError> {
    let lost = |detail: String| CommError::PeerLost { peer, operation: "joining", detail };
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| lost(format!("{process} is not a process")))?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(|error| lost(format!("process {process}: {error}")))
}
