//! The driver of a leader: the state machine of [`super::leader`] with hosts, spool and clock.

mod followers;

use super::control_socket::SpoolAccess;
use super::host_driver::HostDriver;
use super::leader::{
    AttemptConfig, AttemptEffect, AttemptInput, ClockReading, HostState, LEADER_HOST, Leader,
};
use super::messages::{HostMessage, LeaderMessage};
use super::peers::heartbeat::LoopCounters;
use super::peers::link::{LinkEvent, PeerLink};
use super::{
    InboxMessage, POLL_INTERVAL, control_socket, follower, links, log_line, refuse, resumed_folder_name,
    send_reply, termination_flag, write_card,
};
use crate::control_protocol::{
    AgentCard, AgentIdentity, AgentOrder, AgentReply, FollowerOrder, LaunchError, LinkChoice, OtherHost,
    PeerAddress,
};
use crate::home::TrialFolder;
use crate::machine::Millis;
use crate::open_file_limit;
use crate::process::Process;
use crate::spool::{HighWatermark, SpoolRecord, SpoolWriter};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dtrain_protocol::TlsIdentity;
use followers::connect_followers;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time that controllers have to read the last records.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Time between two reports of a pending launch; both ends of the connection take them as keepalive.
const LAUNCH_REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Leads an attempt until it is over.
pub(super) fn run(order: &AgentOrder) -> ExitCode {
    let (sender, inbox) = channel();
    let (own, mapping) = match own_host_order(order) {
        Ok(own) => own,
        Err(reason) => return refuse(reason.into()),
    };
    let mut leading = match LeaderDriver::begin(order, &own, mapping, &sender) {
        Ok(leading) => leading,
        Err(failure) => return refuse(failure),
    };
    match leading.serve(&inbox) {
        Ok(LeaderOutcome::Over) => leading.finish(),
        Ok(LeaderOutcome::Refused(reason)) => {
            leading.host.close(false);
            refuse(reason)
        }
        Err(error) => {
            log_line(&format!("cannot write the spool, killing the ranks: {error}"));
            leading.host.close(false);
            ExitCode::FAILURE
        }
    }
}

/// Returns the follower's order for the leader's own host, and the shared memory that its ranks inherit.
fn own_host_order(order: &AgentOrder) -> Result<(FollowerOrder, Option<Arc<OwnedFd>>), String> {
    let world = u32::try_from(order.assignments.len()).map_err(|_| "too many ranks")?;
    let (links, mapping) = links(order, world)?;
    let elsewhere = order.others.iter().map(|other| other.ranks.len()).sum::<usize>();
    let here = order.assignments.len().saturating_sub(elsewhere);
    let mut assignments = order.assignments[..here].to_vec();
    for (assignment, link) in assignments.iter_mut().zip(links) {
        assignment.link = link;
    }
    let nobody = TlsIdentity { authority: String::new(), certificate: String::new(), key: String::new() };
    let alone = || {
        let bind = match &order.link {
            LinkChoice::Tls { bind } => bind.clone(),
            LinkChoice::SharedMemory => "127.0.0.1".to_owned(),
        };
        AgentIdentity { host: LEADER_HOST, bind, identity: nobody, is_shared: false }
    };
    let seat = order.seat.clone().unwrap_or_else(alone);
    let (trial, attempt, folder) = (order.trial.clone(), order.attempt, order.folder.clone());
    let worker = order.worker.clone();
    let notice = order.notice.clone();
    Ok((FollowerOrder { trial, attempt, folder, worker, seat, assignments, notice }, mapping))
}

/// The result of leading an attempt.
enum LeaderOutcome {
    /// The attempt has ended; its spool has the result.
    Over,
    /// The attempt was not launched: nothing was started, or no process is alive.
    Refused(LaunchError),
}

/// The driver of the leader of a running attempt.
struct LeaderDriver<'a> {
    leader: Leader,
    host: HostDriver<'a>,
    /// Connections to the agents of other hosts, by index of the host.
    links: BTreeMap<u32, PeerLink>,
    folder: TrialFolder,
    card: AgentCard,
    spool: SpoolWriter,
    /// Bytes appended to the spool and not yet sent to its mirror.
    unmirrored: Vec<u8>,
    shared: Arc<SpoolAccess>,
    /// True if a record must be on disk before any later effect is carried out.
    must_sync: bool,
    loop_counters: Arc<LoopCounters>,
    terminated: Arc<AtomicBool>,
    began: Instant,
    /// Time of the last report on the launch; `None` once its outcome was reported.
    told_at: Option<Instant>,
    queue: VecDeque<AttemptInput>,
    ending: Option<LeaderOutcome>,
}

impl<'a> LeaderDriver<'a> {
    /// Creates the attempt's folder, control socket and spool, and connects to the other hosts.
    fn begin(
        order: &AgentOrder,
        own: &'a FollowerOrder,
        mapping: Option<Arc<OwnedFd>>,
        inbox: &Sender<InboxMessage>,
    ) -> Result<Self, LaunchError> {
        let folder = TrialFolder::at(&order.folder);
        let words =
            |what: &'static str| move |error: io::Error| LaunchError::Other(format!("{what}: {error}"));
        let terminated = termination_flag().map_err(words("signals"))?;
        let (world, here) = (order.assignments.len(), own.assignments.len());
        let is_alone = order.others.is_empty() && order.link == LinkChoice::SharedMemory;
        open_file_limit::ensure_open_file_limit(here, order.others.len(), if is_alone { 0 } else { world })?;
        folder.create().map_err(words("the trial's folder"))?;
        let agent = Process::of(std::process::id()).ok_or("this process is not in /proc")?;
        let (listener, socket) = control_socket::bind(&folder, order.attempt).map_err(words("the socket"))?;
        let card = AgentCard { attempt: order.attempt, agent, ranks: Vec::new(), socket };
        write_card(&folder, &card).map_err(words("agent.json"))?;
        let spool = SpoolWriter::create(&folder.spool(order.attempt)).map_err(words("the spool"))?;
        let shared = Arc::new(SpoolAccess {
            spool: folder.spool(order.attempt),
            high_watermark: HighWatermark::default(),
            followers: AtomicU32::new(0),
        });
        control_socket::serve(listener, Arc::clone(&shared), inbox.clone());

        let loop_counters = Arc::<LoopCounters>::default();
        let (listener, links, lost) = match &order.seat {
            Some(seat) if !order.others.is_empty() || resumed_folder_name(&order.assignments).is_some() => {
                connect_followers(order, seat, &folder, &loop_counters, inbox)?
            }
            Some(_) | None => (None, BTreeMap::new(), Vec::new()),
        };
        let address = listener.as_ref().map_or_else(String::new, |listener| listener.address.clone());
        let own_peer = PeerAddress { host: LEADER_HOST, name: "the leader".into(), address };
        let host = HostDriver::new(own, false, listener, mapping, &loop_counters, inbox);
        let began = Instant::now();
        let here = u32::try_from(here).map_err(|_| "too many ranks")?;
        let mut hosts = BTreeMap::from([(LEADER_HOST, HostState::new(own_peer, 0..here, Millis(0)))]);
        let others = order.others.iter().filter(|other| !lost.contains(&other.peer.host));
        hosts.extend(others.map(|OtherHost { peer, ranks }| {
            (peer.host, HostState::new(peer.clone(), ranks.clone(), Millis(0)))
        }));
        let Some(first) = order.assignments.first().cloned() else {
            return Err("the order has no ranks".into());
        };
        let are_foreign = first.framework().is_some();
        let settings = AttemptConfig {
            attempt: order.attempt,
            keep: order.keep,
            gathers: order.seat.as_ref().is_some_and(|seat| !seat.is_shared),
            checkpoints: folder.checkpoints(),
            resume: resumed_folder_name(&order.assignments),
            first,
            address: own.seat.bind.clone(),
        };
        let (leader, effects) = Leader::begin(settings, hosts, are_foreign, read_clock(began));
        let (queue, ending, must_sync) = (VecDeque::new(), None, false);
        let mut leading = Self {
            leader,
            host,
            links,
            folder,
            card,
            spool,
            unmirrored: Vec::new(),
            shared,
            must_sync,
            loop_counters,
            terminated,
            began,
            told_at: Some(began),
            queue,
            ending,
        };
        leading.carry_out(effects).and_then(|()| leading.drain_queue()).map_err(words("the spool"))?;
        Ok(leading)
    }

    /// Runs until the attempt is over, or refused.
    ///
    /// `Err` if the spool cannot be written: events could no longer be recorded, so the attempt must end.
    fn serve(&mut self, inbox: &Receiver<InboxMessage>) -> io::Result<LeaderOutcome> {
        loop {
            if let Some(ending) = self.ending.take() {
                self.flush()?;
                return Ok(ending);
            }
            match inbox.recv_timeout(POLL_INTERVAL) {
                Ok(message) => {
                    self.handle_message(message);
                    while let Ok(message) = inbox.try_recv() {
                        self.handle_message(message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the agent holds a sender itself"),
            }
            let told = self.host.poll()?;
            self.queue_host_messages(told);
            if self.terminated.swap(false, Ordering::SeqCst) {
                self.step_own_host(follower::HostInput::Terminate);
            }
            self.loop_counters.turn();
            if self.told_at.is_some_and(|at| at.elapsed() >= LAUNCH_REPORT_INTERVAL) {
                self.told_at = Some(Instant::now());
                drop(send_reply(&AgentReply::Launching));
            }
            self.queue.push_back(AttemptInput::Beat(LEADER_HOST, self.loop_counters.now()));
            self.queue.push_back(AttemptInput::Tick);
            self.drain_queue()?;
            self.flush()?;
            self.spool.sync_if_due()?;
        }
    }

    fn handle_message(&mut self, message: InboxMessage) {
        match message {
            InboxMessage::Stop => self.queue.push_back(AttemptInput::Stop),
            InboxMessage::Regroup => self.queue.push_back(AttemptInput::Regroup),
            InboxMessage::Follower(host, LinkEvent::Message(message)) => {
                self.queue.push_back(AttemptInput::Host(host, message));
            }
            InboxMessage::Follower(host, LinkEvent::Beat(heartbeat)) => {
                self.queue.push_back(AttemptInput::Beat(host, heartbeat));
            }
            InboxMessage::Follower(host, LinkEvent::Lost(reason)) => {
                self.queue.push_back(AttemptInput::Lost(host, reason));
            }
            InboxMessage::Event(rank, event) => self.step_own_host(follower::HostInput::Event(rank, event)),
            InboxMessage::OutputClosed { rank, garbled, last } => {
                self.step_own_host(follower::HostInput::OutputClosed { rank, garbled, last });
            }
            InboxMessage::Done(message) => self.step_own_host(follower::HostInput::Done(message)),
            InboxMessage::LeaderConnected(_) | InboxMessage::Leader(_) => {}
        }
    }

    /// Passes an input to the follower of the leader's own host.
    fn step_own_host(&mut self, input: follower::HostInput) {
        let told = self.host.step(input);
        self.queue_host_messages(told);
    }

    fn queue_host_messages(&mut self, told: Vec<HostMessage>) {
        self.queue.extend(told.into_iter().map(|message| AttemptInput::Host(LEADER_HOST, message)));
    }

    /// Feeds the leader's state machine with the queued inputs.
    fn drain_queue(&mut self) -> io::Result<()> {
        while let Some(input) = self.queue.pop_front() {
            let effects = self.leader.step(read_clock(self.began), input);
            self.carry_out(effects)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, effects: Vec<AttemptEffect>) -> io::Result<()> {
        for effect in effects {
            match effect {
                AttemptEffect::Spool(record) => {
                    self.must_sync |= record.must_be_durable();
                    if let SpoolRecord::Over { .. } = record {
                        // A controller that reads the end may start the next attempt, which binds the same
                        // name.
                        drop(std::fs::remove_file(&self.card.socket));
                    }
                    let bytes = self.spool.append(&record)?;
                    if self.leader.mirror().is_some() {
                        self.unmirrored.extend(bytes);
                    }
                }
                AttemptEffect::Ask(LEADER_HOST, message) => {
                    self.flush()?;
                    self.step_own_host(follower::HostInput::Leader(message));
                }
                AttemptEffect::Ask(host, message) => {
                    self.flush()?;
                    if let Some(link) = self.links.get(&host) {
                        link.send(&message);
                    }
                    if message == LeaderMessage::Dismiss {
                        self.links.remove(&host);
                    }
                }
                AttemptEffect::Note(words) => log_line(&words),
                AttemptEffect::Announce => {
                    self.flush()?;
                    self.told_at = None;
                    self.card.ranks = self.host.processes();
                    write_card(&self.folder, &self.card)?;
                    // A controller that went away meanwhile finds the agent by its card.
                    drop(send_reply(&AgentReply::Running(self.card.clone())));
                }
                AttemptEffect::Refuse(reason) => self.ending = Some(LeaderOutcome::Refused(reason)),
                AttemptEffect::End => self.ending = Some(LeaderOutcome::Over),
            }
        }
        Ok(())
    }

    /// Flushes the spool to disk if needed, and publishes it to controllers. One flush covers many records.
    fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.must_sync) {
            self.spool.sync()?;
        }
        self.shared.high_watermark.extend(self.spool.length());
        let records = std::mem::take(&mut self.unmirrored);
        if let Some(link) = self.leader.mirror().and_then(|host| self.links.get(&host))
            && !records.is_empty()
        {
            let from = self.spool.length() - records.len() as u64;
            link.send(&LeaderMessage::Mirror { from, records: BASE64_STANDARD.encode(records) });
        }
        Ok(())
    }

    /// Waits until the controllers have read the end of the spool.
    fn finish(&mut self) -> ExitCode {
        self.host.close(true);
        self.shared.high_watermark.close();
        let until = Instant::now() + LAST_WORDS;
        while self.shared.followers.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        ExitCode::SUCCESS
    }
}

/// Reads the time since `began`, and the system clock.
fn read_clock(began: Instant) -> ClockReading {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ClockReading { moment: Millis(milliseconds(began.elapsed())), wall_ms: milliseconds(wall) }
}

#[cfg(test)]
mod tests;
