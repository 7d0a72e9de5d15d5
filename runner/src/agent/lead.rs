//! The agent that owns an attempt: the state machine of [`super::leader`], with the hosts, the spool and the clock that it lacks.

use super::follower;
use super::host::HostDriver;
use super::leader::{Effect, Host, Input, Leader, Now, OWN, Settings};
use super::messages::{HostMessage, LeaderMessage};
use super::order::{
    AgentCard, AgentOrder, AgentReply, FollowerOrder, LinkChoice, OtherHost, Process, Seat, SpoolRecord,
};
use super::peers::door::Door;
use super::peers::link::{Heard, PeerLink, Pulses};
use super::peers::{Greeting, Names, PeerAddress, Secure, knock};
use super::socket::Shared;
use super::spool::{Published, SpoolWriter};
use super::{BEAT, Message, answer, links, note, refuse, resumed, signals, socket, write_card};
use crate::home::TrialFolder;
use crate::launch::NotLaunched;
use crate::machine::Moment;
use crate::open_files;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dtrain_protocol::TlsIdentity;
use dtrain_recipes::Model;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long controllers may take to read the last records.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How often a launch under way is reported: at each end of the way, it is waited for as long as there is word of it.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Owns an attempt until it is over.
pub(super) fn run(order: &AgentOrder) -> ExitCode {
    let (sender, inbox) = channel();
    let (own, mapping) = match own_order(order) {
        Ok(own) => own,
        Err(reason) => return refuse(reason.into()),
    };
    let mut leading = match Leading::begin(order, &own, mapping, &sender) {
        Ok(leading) => leading,
        Err(reason) => return refuse(reason.into()),
    };
    match leading.serve(&inbox) {
        Ok(Ending::Over) => leading.finish(),
        Ok(Ending::Refused(reason)) => {
            leading.host.close(false);
            refuse(reason)
        }
        Err(error) => {
            note(&format!("cannot write the spool, killing the ranks: {error}"));
            leading.host.close(false);
            ExitCode::FAILURE
        }
    }
}

/// What the leader's own host has to do, as a follower would be ordered, and what its ranks inherit.
fn own_order(order: &AgentOrder) -> Result<(FollowerOrder, Option<Arc<OwnedFd>>), String> {
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
        Seat { host: OWN, bind, identity: nobody, is_shared: false }
    };
    let seat = order.seat.clone().unwrap_or_else(alone);
    let (trial, attempt, folder) = (order.trial.clone(), order.attempt, order.folder.clone());
    let worker = order.worker.clone();
    Ok((FollowerOrder { trial, attempt, folder, worker, seat, assignments }, mapping))
}

/// How the agent ends.
enum Ending {
    /// The attempt is over, and its spool says how.
    Over,
    /// Nothing was started, or nothing of it lives.
    Refused(NotLaunched),
}

/// An attempt under way.
struct Leading<'a> {
    leader: Leader,
    host: HostDriver<'a>,
    /// To the other hosts.
    links: BTreeMap<u32, PeerLink>,
    folder: TrialFolder,
    card: AgentCard,
    spool: SpoolWriter,
    /// What was appended to the spool and not sent to the host that mirrors it.
    unmirrored: Vec<u8>,
    shared: Arc<Shared>,
    /// Whether a record must be on disk before anything else happens.
    must_sync: bool,
    pulses: Arc<Pulses>,
    terminated: Arc<AtomicBool>,
    began: Instant,
    /// When whoever launched the attempt was last told that it is at it; `None` once it was told the outcome.
    told_at: Option<Instant>,
    queue: VecDeque<Input>,
    ending: Option<Ending>,
}

impl<'a> Leading<'a> {
    /// Makes the folder, the socket and the spool, and connects with the other hosts.
    fn begin(
        order: &AgentOrder,
        own: &'a FollowerOrder,
        mapping: Option<Arc<OwnedFd>>,
        inbox: &Sender<Message>,
    ) -> Result<Self, String> {
        let folder = TrialFolder::at(&order.folder);
        let words = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let terminated = signals().map_err(words("signals"))?;
        let (world, here) = (order.assignments.len(), own.assignments.len());
        let is_alone = order.others.is_empty() && order.link == LinkChoice::SharedMemory;
        open_files::suffice(here, order.others.len(), if is_alone { 0 } else { world })?;
        folder.create().map_err(words("the trial's folder"))?;
        let agent = Process::of(std::process::id()).ok_or("this process is not in /proc")?;
        let (listener, socket) = socket::bind(&folder, order.attempt).map_err(words("the socket"))?;
        let card = AgentCard { attempt: order.attempt, agent, ranks: Vec::new(), socket };
        write_card(&folder, &card).map_err(words("agent.json"))?;
        let spool = SpoolWriter::create(&folder.spool(order.attempt)).map_err(words("the spool"))?;
        let shared = Arc::new(Shared {
            spool: folder.spool(order.attempt),
            published: Published::default(),
            followers: AtomicU32::new(0),
        });
        socket::serve(listener, Arc::clone(&shared), inbox.clone());

        let pulses = Arc::<Pulses>::default();
        let (door, links, lost) = match &order.seat {
            Some(seat) if !order.others.is_empty() || resumed(&order.assignments).is_some() => {
                meet(order, seat, &folder, &pulses, inbox)?
            }
            Some(_) | None => (None, BTreeMap::new(), Vec::new()),
        };
        let address = door.as_ref().map_or_else(String::new, |door| door.address.clone());
        let own_peer = PeerAddress { host: OWN, name: "the leader".into(), address };
        let host = HostDriver::new(own, false, door, mapping, &pulses, inbox);
        let began = Instant::now();
        let here = u32::try_from(here).map_err(|_| "too many ranks")?;
        let mut hosts = BTreeMap::from([(OWN, Host::new(own_peer, 0..here, Moment(0)))]);
        let others = order.others.iter().filter(|other| !lost.contains(&other.peer.host));
        hosts.extend(
            others.map(|OtherHost { peer, ranks }| {
                (peer.host, Host::new(peer.clone(), ranks.clone(), Moment(0)))
            }),
        );
        let Some(first) = order.assignments.first().cloned() else {
            return Err("the order has no ranks".to_owned());
        };
        let are_foreign = matches!(first.model, Model::Command(_));
        let settings = Settings {
            attempt: order.attempt,
            keep: order.keep,
            gathers: order.seat.as_ref().is_some_and(|seat| !seat.is_shared),
            checkpoints: folder.checkpoints(),
            resume: resumed(&order.assignments),
            first,
            address: own.seat.bind.clone(),
        };
        let (leader, effects) = Leader::begin(settings, hosts, are_foreign, now(began));
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
            pulses,
            terminated,
            began,
            told_at: Some(began),
            queue,
            ending,
        };
        leading.carry_out(effects).and_then(|()| leading.run()).map_err(words("the spool"))?;
        Ok(leading)
    }

    /// Works until the attempt is over, or refused.
    ///
    /// `Err` when the spool cannot be written: what happens could no longer be told, so that nothing may happen.
    fn serve(&mut self, inbox: &Receiver<Message>) -> io::Result<Ending> {
        loop {
            if let Some(ending) = self.ending.take() {
                self.flush()?;
                return Ok(ending);
            }
            match inbox.recv_timeout(BEAT) {
                Ok(message) => {
                    self.hear(message);
                    while let Ok(message) = inbox.try_recv() {
                        self.hear(message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the agent holds a sender itself"),
            }
            let told = self.host.look()?;
            self.heard(told);
            if self.terminated.swap(false, Ordering::SeqCst) {
                self.own(follower::Input::Terminate);
            }
            self.pulses.turn();
            if self.told_at.is_some_and(|at| at.elapsed() >= TELL_EVERY) {
                self.told_at = Some(Instant::now());
                drop(answer(&AgentReply::Launching));
            }
            self.queue.push_back(Input::Beat(OWN, self.pulses.now()));
            self.queue.push_back(Input::Tick);
            self.run()?;
            self.flush()?;
            self.spool.sync_if_due()?;
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Stop => self.queue.push_back(Input::Stop),
            Message::Follower(host, Heard::Message(message)) => {
                self.queue.push_back(Input::Host(host, message));
            }
            Message::Follower(host, Heard::Beat(pulse)) => self.queue.push_back(Input::Beat(host, pulse)),
            Message::Follower(host, Heard::Lost(reason)) => self.queue.push_back(Input::Lost(host, reason)),
            Message::Event(rank, event) => self.own(follower::Input::Event(rank, event)),
            Message::OutputClosed { rank, garbled, last } => {
                self.own(follower::Input::OutputClosed { rank, garbled, last });
            }
            Message::Done(message) => self.own(follower::Input::Done(message)),
            Message::LeaderConnected(_) | Message::Leader(_) => {}
        }
    }

    /// Something happened on this host.
    fn own(&mut self, input: follower::Input) {
        let told = self.host.step(input);
        self.heard(told);
    }

    fn heard(&mut self, told: Vec<HostMessage>) {
        self.queue.extend(told.into_iter().map(|message| Input::Host(OWN, message)));
    }

    /// Feeds the state machine with what waits.
    fn run(&mut self) -> io::Result<()> {
        while let Some(input) = self.queue.pop_front() {
            let effects = self.leader.step(now(self.began), input);
            self.carry_out(effects)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> io::Result<()> {
        for effect in effects {
            match effect {
                Effect::Spool(record) => {
                    self.must_sync |= record.is_momentous();
                    if let SpoolRecord::Over { .. } = record {
                        // Whoever reads that the attempt is over may start the next, which binds the same name.
                        drop(std::fs::remove_file(&self.card.socket));
                    }
                    let bytes = self.spool.append(&record)?;
                    if self.leader.mirror().is_some() {
                        self.unmirrored.extend(bytes);
                    }
                }
                Effect::Ask(OWN, message) => {
                    self.flush()?;
                    self.own(follower::Input::Leader(message));
                }
                Effect::Ask(host, message) => {
                    self.flush()?;
                    if let Some(link) = self.links.get(&host) {
                        link.send(&message);
                    }
                    if message == LeaderMessage::Dismiss {
                        self.links.remove(&host);
                    }
                }
                Effect::Note(words) => note(&words),
                Effect::Announce => {
                    self.flush()?;
                    self.told_at = None;
                    self.card.ranks = self.host.processes();
                    write_card(&self.folder, &self.card)?;
                    // A controller that went away meanwhile finds the agent by its card.
                    drop(answer(&AgentReply::Running(self.card.clone())));
                }
                Effect::Refuse(reason) => self.ending = Some(Ending::Refused(reason)),
                Effect::End => self.ending = Some(Ending::Over),
            }
        }
        Ok(())
    }

    /// Puts on disk what must be, and lets controllers read it. One flush is enough for many records.
    fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.must_sync) {
            self.spool.sync()?;
        }
        self.shared.published.extend(self.spool.length());
        let records = std::mem::take(&mut self.unmirrored);
        if let Some(link) = self.leader.mirror().and_then(|host| self.links.get(&host))
            && !records.is_empty()
        {
            let from = self.spool.length() - records.len() as u64;
            link.send(&LeaderMessage::Mirror { from, records: BASE64_STANDARD.encode(records) });
        }
        Ok(())
    }

    /// Waits until the controllers know how it ended.
    fn finish(&mut self) -> ExitCode {
        self.host.close(true);
        self.shared.published.close();
        let until = Instant::now() + LAST_WORDS;
        while self.shared.followers.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        ExitCode::SUCCESS
    }
}

/// When it is, by the clock of the agent, which began then, and by that of the system.
fn now(began: Instant) -> Now {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { moment: Moment(milliseconds(began.elapsed())), wall_ms: milliseconds(wall) }
}

/// This host's listener, the connections to others, and the hosts without ranks that could not be reached.
type Met = (Option<Arc<Door>>, BTreeMap<u32, PeerLink>, Vec<u32>);

/// Opens the listener of this host, and connects with the agents of all others at the same time.
fn meet(
    order: &AgentOrder,
    seat: &Seat,
    trial: &TrialFolder,
    pulses: &Arc<Pulses>,
    inbox: &Sender<Message>,
) -> Result<Met, String> {
    let names = Names { trial: order.trial.clone(), attempt: order.attempt };
    // Nobody leads the leader: such a visitor is sent away by dropping it.
    let door = Door::bind(seat, names, trial)?.open(drop);
    let connected: Vec<io::Result<Secure>> = thread::scope(|scope| {
        let door = &door;
        let connecting = order
            .others
            .iter()
            .map(|other| scope.spawn(move || knock(&door.tls, &door.names, &other.peer, &Greeting::Lead)));
        let connecting: Vec<_> = connecting.collect();
        connecting.into_iter().map(|thread| thread.join().expect("connecting does not panic")).collect()
    });
    let (mut links, mut lost) = (BTreeMap::new(), Vec::new());
    for (other, stream) in order.others.iter().zip(connected) {
        let (host, inbox) = (other.peer.host, inbox.clone());
        let hear = move |heard: Heard<HostMessage>| drop(inbox.send(Message::Follower(host, heard)));
        match stream.and_then(|stream| PeerLink::start(stream, pulses, hear)) {
            Ok(link) => drop(links.insert(host, link)),
            Err(_) if other.only_lends() => lost.push(host),
            Err(error) => return Err(format!("{} at {}: {error}", other.peer.name, other.peer.address)),
        }
    }
    Ok((Some(door), links, lost))
}

#[cfg(test)]
mod tests;
