//! Connection to the agent of the open attempt, with the load of the host it runs on.

use crate::control_protocol::AgentRequest;
use crate::fact::MetricPoint;
use crate::host_monitor::{HostMonitor, LoadSampler};
use crate::launch::ConnectedAgent;
use crate::spool::{SpoolEnd, SpoolReader, SpoolRecord};
use dtrain_protocol::{AttemptId, Rank, frame};
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum number of records that queue between the reader thread and the controller's loop.
const QUEUE: usize = 4096;

/// Interval between two samples of the host's load.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Connection to the agent of the open attempt.
pub(super) struct AgentConnection {
    pub(super) attempt: AttemptId,
    pub(super) agent: u32,
    /// Received records, each with the spool offset of its end.
    pub(super) heard: Receiver<Result<(u64, SpoolRecord), SpoolEnd>>,
    requests: Box<dyn Write + Send>,
    /// Load of the host; `None` if it cannot be measured.
    load: Option<HostLoad>,
}

/// Load figures of this host, sampled in a thread that ends with this value.
struct HostLoad {
    figures: Receiver<Vec<(String, f64)>>,
    _sampler: LoadSampler,
}

impl AgentConnection {
    /// Creates the connection of a controller that has read the attempt's spool up to byte `read`.
    pub(super) fn of(attempt: AttemptId, read: u64, connection: ConnectedAgent, folder: &Path) -> Self {
        let ConnectedAgent { agent, ranks, spool, requests } = connection;
        let (sender, heard) = sync_channel(QUEUE);
        let reader = SpoolReader::at(read, BufReader::new(spool));
        thread::spawn(move || forward_records(reader, &sender));
        Self { attempt, agent, heard, requests, load: sample_load(&ranks, folder) }
    }

    /// Asks the ranks to stop. If the agent is gone, the controller's loop notices soon, and no attempt
    /// follows a stop.
    pub(super) fn ask_to_stop(&mut self) {
        drop(frame::write(&mut self.requests, &AgentRequest::Stop));
    }

    /// Asks the ranks to stop, so that the next attempt runs on other hosts.
    pub(super) fn ask_to_regroup(&mut self) {
        drop(frame::write(&mut self.requests, &AgentRequest::Regroup));
    }

    /// Returns the load of the host, sampled since the last call.
    pub(super) fn take_load(&self) -> Vec<MetricPoint> {
        let Some(load) = &self.load else { return Vec::new() };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (step, at_ms) = (at.as_secs(), u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
        let point =
            |(key, value)| MetricPoint { attempt: self.attempt, rank: Rank(0), key, step, at_ms, value };
        load.figures.try_iter().flatten().map(point).collect()
    }
}

/// Samples the load of this machine and of the ranks on it, if there are any.
fn sample_load(ranks: &[u32], folder: &Path) -> Option<HostLoad> {
    if ranks.is_empty() {
        return None;
    }
    let (sender, figures) = channel();
    let sink = move |sample| drop(sender.send(sample));
    let sampler = LoadSampler::start(HostMonitor::new(ranks, folder)?, LOOK_EVERY, sink);
    Some(HostLoad { figures, _sampler: sampler })
}

/// Forwards records until the spool ends or the receiver is dropped.
fn forward_records(
    mut reader: SpoolReader<impl Read>,
    to: &SyncSender<Result<(u64, SpoolRecord), SpoolEnd>>,
) {
    loop {
        let next = reader.next();
        let is_end = next.is_err();
        let offset = reader.offset();
        if to.send(next.map(|record| (offset, record))).is_err() || is_end {
            return;
        }
    }
}
