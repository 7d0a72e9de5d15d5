//! Connection to the agent of the open attempt, with the load of the host it runs on.

use crate::control_protocol::AgentRequest;
use crate::fact::MetricPoint;
use crate::host_monitor::{HostMonitor, LoadSampler};
use crate::launch::ConnectedAgent;
use crate::spool::{SpoolEnd, SpoolReader, SpoolRecord};
use dtrain_protocol::{AttemptId, Rank, frame};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum number of records that queue between the reader thread and the controller's loop.
const QUEUE: usize = 4096;

/// Interval between two samples of the host's load.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Interval between two heartbeats, much shorter than the silence after which a relay ends.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);

/// Connection to the agent of the open attempt.
pub(super) struct AgentConnection {
    pub(super) attempt: AttemptId,
    pub(super) agent: u32,
    /// Received records, each with the spool offset of its end.
    pub(super) heard: Receiver<Result<(u64, SpoolRecord), SpoolEnd>>,
    requests: RequestSink,
    /// Ends the heartbeats when it is dropped.
    _heartbeats: Sender<()>,
    /// Load of the host; `None` if it cannot be measured.
    load: Option<HostLoad>,
}

/// The sink of requests to the agent, which the thread of the heartbeats shares.
type RequestSink = Arc<Mutex<Box<dyn Write + Send>>>;

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
        let (requests, (heartbeats, is_over)) = (Arc::new(Mutex::new(requests)), channel());
        let sink = Arc::clone(&requests);
        thread::spawn(move || send_heartbeats(&sink, HEARTBEAT_EVERY, &is_over));
        let load = sample_load(&ranks, folder);
        Self { attempt, agent, heard, requests, _heartbeats: heartbeats, load }
    }

    /// Asks the ranks to stop. If the agent is gone, the controller's loop notices soon, and no attempt
    /// follows a stop.
    pub(super) fn ask_to_stop(&mut self) {
        drop(send(&self.requests, AgentRequest::Stop));
    }

    /// Asks the ranks to stop, so that the next attempt runs on other hosts.
    pub(super) fn ask_to_regroup(&mut self) {
        drop(send(&self.requests, AgentRequest::Regroup));
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

fn send(to: &RequestSink, request: AgentRequest) -> io::Result<()> {
    frame::write(&mut *to.lock().unwrap_or_else(PoisonError::into_inner), &request)
}

/// Tells a relay between this controller and the agent that the controller is there, until the connection ends or the
/// other end of `is_over` is dropped.
fn send_heartbeats(to: &RequestSink, every: Duration, is_over: &Receiver<()>) {
    while is_over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        if send(to, AgentRequest::Heartbeat).is_err() {
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn heartbeats_come_until_the_connection_is_dropped() {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let (heartbeats, is_over) = channel();
        let sink: RequestSink = Arc::new(Mutex::new(Box::new(near)));
        let beating = thread::spawn(move || send_heartbeats(&sink, Duration::from_millis(5), &is_over));
        for _ in 0..3 {
            assert_eq!(frame::read::<AgentRequest>(&mut far).expect("one comes"), AgentRequest::Heartbeat);
        }
        drop(heartbeats);
        beating.join().expect("it ends");
    }
}
