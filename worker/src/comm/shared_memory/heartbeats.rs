//! Heartbeats through the shared memory of a host.

use super::memory_map::MemoryMap;
use crate::comm::heartbeat::{HeartbeatThread, Liveness};
use crate::comm::{CommError, RankId, WaitPolicy};
use dtrain_protocol::{Rank, shared_memory_layout};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Offsets of a rank's beat count, and of the content of its last beat, in the control block of the first
/// channel.
const BEATS: u64 = 384;
const IDLE: u64 = 392;

/// Starts the heartbeats through shared memory, when all ranks have joined.
pub(super) fn start(
    mapping: &Arc<MemoryMap>,
    seat: &RankId,
    waits: &WaitPolicy,
) -> Result<HeartbeatThread, CommError> {
    let mapping = Arc::clone(mapping);
    let own = seat.rank.0;
    let mut seen = vec![0; seat.ranks as usize];
    HeartbeatThread::start(waits, seat.ranks, move |pulse| beat(&mapping, own, &mut seen, pulse))
}

fn beat(mapping: &MemoryMap, own: u32, seen: &mut [u64], pulse: &Liveness) {
    let counter =
        |rank, field| mapping.counter(shared_memory_layout::control_offset(mapping.ranks, 0, rank) + field);
    for (rank, seen) in (0..).zip(seen).filter(|(rank, _)| *rank != own) {
        let beats = counter(rank, BEATS).load(Ordering::Acquire);
        if *seen != beats {
            *seen = beats;
            pulse.record_beat(Rank(rank), counter(rank, IDLE).load(Ordering::Relaxed));
        }
    }
    counter(own, IDLE).store(pulse.idle(), Ordering::Relaxed);
    counter(own, BEATS).fetch_add(1, Ordering::Release);
}
