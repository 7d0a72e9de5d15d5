//! Heartbeats through the mapping.

use super::mapped::Mapping;
use crate::comm::heart::{Heart, Pulse};
use crate::comm::{CommError, Seat, Waits};
use dtrain_protocol::{Rank, mapping};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Offsets inside the control block of the first channel: beats so far, and what the last one said.
const BEATS: u64 = 384;
const IDLE: u64 = 392;

/// Begins to beat. All ranks have joined.
pub(super) fn start(mapping: &Arc<Mapping>, seat: &Seat, waits: &Waits) -> Result<Heart, CommError> {
    let mapping = Arc::clone(mapping);
    let own = seat.rank.0;
    let mut seen = vec![0; seat.ranks as usize];
    Heart::start(waits, seat.ranks, move |pulse| beat(&mapping, own, &mut seen, pulse))
}

fn beat(mapping: &Mapping, own: u32, seen: &mut [u64], pulse: &Pulse) {
    let counter = |rank, field| mapping.counter(mapping::control(mapping.ranks, 0, rank) + field);
    for (rank, seen) in (0..).zip(seen).filter(|(rank, _)| *rank != own) {
        let beats = counter(rank, BEATS).load(Ordering::Acquire);
        if *seen != beats {
            *seen = beats;
            pulse.hear(Rank(rank), counter(rank, IDLE).load(Ordering::Relaxed));
        }
    }
    counter(own, IDLE).store(pulse.idle(), Ordering::Relaxed);
    counter(own, BEATS).fetch_add(1, Ordering::Release);
}
