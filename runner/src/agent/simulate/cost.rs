//! The real cost of a simulated run: bytes of the real frames, connections, threads and flushes to disk.

use crate::agent::follower::HostTask;
use crate::agent::messages::{HostMessage, LeaderMessage};
use crate::agent::peers::link::Frame;
use crate::spool::SpoolRecord;
use dtrain_protocol::frame;

/// Number of threads of an agent: its loop, one for checkpoint work, and one each to accept hosts and
/// controllers.
pub(super) const THREADS_OF_AN_AGENT: u64 = 4;

/// Number of threads for each rank of a host: one reads the rank's events, one writes its orders.
pub(super) const THREADS_OF_A_RANK: u64 = 2;

/// Number of threads at each end of a connection between leader and follower.
pub(super) const THREADS_OF_A_LINK: u64 = 1;

/// Totals of the data sent and flushed during a simulated run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResourceUsage {
    /// Number and bytes of the messages from the leader to all other hosts, before encryption and without heartbeats.
    pub(super) asked: (u64, u64),
    /// Number and bytes of the messages from all other hosts to the leader.
    pub(super) told: (u64, u64),
    /// Number and bytes of the records in the leader's spool.
    pub(super) spooled: (u64, u64),
    /// Number of flushes of the spool.
    pub(super) spool_fsyncs: u64,
    /// Number of flushes of files and folders of checkpoints, on all hosts.
    pub(super) disk_fsyncs: u64,
}

impl ResourceUsage {
    /// Returns the mean of `count` equal parts, rounded up.
    pub(super) fn mean(self, count: u64) -> Self {
        self.map(Self::default(), |sum, _| sum.div_ceil(count))
    }

    /// Returns what remains of this without `count` times `part`.
    pub(super) fn without(self, count: u64, part: Self) -> Self {
        self.map(part, |sum, part| sum.saturating_sub(count * part))
    }

    fn map(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let pair =
            |(count, bytes): (u64, u64), other: (u64, u64)| (with(count, other.0), with(bytes, other.1));
        Self {
            asked: pair(self.asked, other.asked),
            told: pair(self.told, other.told),
            spooled: pair(self.spooled, other.spooled),
            spool_fsyncs: with(self.spool_fsyncs, other.spool_fsyncs),
            disk_fsyncs: with(self.disk_fsyncs, other.disk_fsyncs),
        }
    }

    pub(super) fn asked(&mut self, message: &LeaderMessage) {
        add(&mut self.asked, frame::encode(&Frame::Message(message)).len());
    }

    /// Adds the flushes of a task: copied files, manifest, COMMIT and the folder; then its parent folder.
    pub(super) fn worked(&mut self, work: &HostTask) {
        self.disk_fsyncs += match work {
            HostTask::Fetch { files, .. } => files.len() as u64 + 4,
            // Parts fetched for ranks alone are not flushed.
            HostTask::FetchParts { keep, .. } if keep.is_empty() => 0,
            HostTask::FetchParts { keep, .. } => keep.len() as u64 + 4,
            HostTask::Prepare { copies, .. } => copies.len() as u64 + 3,
            HostTask::Commit { .. } => 1,
            // The mirror, and its folder.
            HostTask::SealMirror => 2,
            HostTask::List { .. }
            | HostTask::ReservePorts { .. }
            | HostTask::Retain { .. }
            | HostTask::Discard { .. } => 0,
        };
    }

    pub(super) fn told(&mut self, message: &HostMessage) {
        add(&mut self.told, frame::encode(&Frame::Message(message)).len());
    }

    pub(super) fn spooled(&mut self, record: &SpoolRecord) {
        add(&mut self.spooled, frame::encode(record).len());
    }
}

fn add((count, bytes): &mut (u64, u64), more: usize) {
    *count += 1;
    *bytes += more as u64;
}
