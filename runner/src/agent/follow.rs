//! The agent of a host that does not lead: it holds ranks for the leader, and lives no longer than the leader is heard of.
//!
//! It exchanges heartbeats with the leader four times a second. After two seconds of silence it assumes that the leader is lost and
//! kills its ranks.

use super::foreign::{Rendezvous, free_ports};
use super::order::{AgentCard, AgentReply, FollowerOrder, Process};
use super::peers::cord::{Cord, Heard};
use super::peers::door::{self, Door};
use super::peers::fetch::fetch;
use super::peers::{Names, PeerAddress, Said, Told};
use super::rank::{Change, Ground, RankProcess};
use super::supervise::note;
use super::{Message, refuse, resumed, signals, write_card};
use crate::checkpoints::{self, commit};
use crate::home::TrialFolder;
use crate::launch::NotLaunched;
use dtrain_protocol::checkpoint::{folder_name, parse_folder_name};
use dtrain_protocol::{Event, FileEntry, Link, Rank, frame};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long the leader may take to come.
const TO_COME: Duration = Duration::from_secs(60);

/// How often the agent looks at its ranks when none of them says anything.
const BEAT: Duration = Duration::from_millis(20);

/// Holds ranks until the leader lets go of them, or is lost.
pub(super) fn run(order: &FollowerOrder) -> ExitCode {
    let (sender, inbox) = channel();
    let mut follower = match Follower::at_its_door(order, &sender) {
        Ok(follower) => follower,
        Err(words) => return refuse(words.into()),
    };
    let address = follower.door.address.clone();
    if let Err(error) = frame::write(&mut io::stdout(), &AgentReply::Listening { address }) {
        return refuse(format!("the answer: {error}").into());
    }
    let end = follower.serve(&inbox);
    follower.ranks.iter_mut().for_each(RankProcess::kill);
    follower.ranks.iter().for_each(RankProcess::kill_leftovers);
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            note(&words);
            ExitCode::FAILURE
        }
    }
}

/// A follower under way.
struct Follower<'a> {
    order: &'a FollowerOrder,
    folder: TrialFolder,
    door: Arc<Door>,
    card: AgentCard,
    inbox: Sender<Message>,
    leader: Option<Cord>,
    ranks: Vec<RankProcess>,
    /// The rank of the first of `ranks`.
    first: Rank,
    /// Name of the checkpoint's folder that they went on from.
    resumed: Option<String>,
    heard_by: Option<Instant>,
    terminated: Arc<AtomicBool>,
}

impl<'a> Follower<'a> {
    fn at_its_door(order: &'a FollowerOrder, inbox: &Sender<Message>) -> Result<Self, String> {
        let folder = TrialFolder::at(&order.folder);
        let words = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let terminated = signals().map_err(words("signals"))?;
        folder.create().map_err(words("the trial's folder"))?;
        let agent = Process::of(std::process::id()).ok_or("this process is not in /proc")?;
        let card = AgentCard { attempt: order.attempt, agent, ranks: Vec::new(), socket: PathBuf::new() };
        write_card(&folder, &card).map_err(words("agent.json"))?;
        let names = Names { trial: order.trial.clone(), attempt: order.attempt };
        let door = Door::bind(&order.seat, names, &folder)?;
        let came = inbox.clone();
        let door = door.open(move |stream| drop(came.send(Message::LeaderCame(stream))));
        let (inbox, first) = (inbox.clone(), order.assignments.first().map_or(Rank(0), |one| one.rank));
        let (leader, ranks, heard_by) = (None, Vec::new(), None);
        let resumed = resumed(&order.assignments);
        Ok(Self { order, folder, door, card, inbox, leader, ranks, first, resumed, heard_by, terminated })
    }

    /// Does what the leader tells; `Err` says in words why it cannot go on.
    fn serve(&mut self, inbox: &Receiver<Message>) -> Result<(), String> {
        let until = Instant::now() + TO_COME;
        loop {
            match inbox.recv_timeout(BEAT) {
                Ok(Message::Leader(Heard::Said(Told::Leave))) => return Ok(()),
                Ok(Message::Leader(Heard::Lost(reason))) => {
                    return Err(format!("the leader is lost: {reason}"));
                }
                Ok(message) => self.hear(message)?,
                Err(RecvTimeoutError::Timeout) if self.leader.is_none() && Instant::now() > until => {
                    return Err(format!("no leader came within {} s", TO_COME.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the agent holds a sender itself"),
            }
            self.look_at_ranks().map_err(|error| format!("a rank cannot be waited for: {error}"))?;
            if self.terminated.swap(false, Ordering::SeqCst) {
                self.say(&Said::Terminated);
            }
        }
    }

    fn say(&self, said: &Said) {
        if let Some(leader) = &self.leader {
            leader.tell(said);
        }
    }

    fn hear(&mut self, message: Message) -> Result<(), String> {
        match message {
            // A second leader of the same attempt is an echo of the first.
            Message::LeaderCame(stream) if self.leader.is_none() => {
                let inbox = self.inbox.clone();
                let cord = Cord::start(stream, move |heard| drop(inbox.send(Message::Leader(heard))));
                self.leader = Some(cord.map_err(|error| format!("cannot read from the leader: {error}"))?);
            }
            Message::Leader(Heard::Said(told)) => self.carry_out(told)?,
            Message::Event(rank, Event::Saved { step, folder, files, stall_seconds }) => {
                let event = match commit::check(&folder, &files) {
                    Ok(()) => Event::Saved { step, folder, files, stall_seconds },
                    Err(reason) => Event::SaveFailed { step, reason, retries: false },
                };
                self.say(&Said::Event { rank, event });
            }
            Message::Event(rank, event) => self.say(&Said::Event { rank, event }),
            Message::HeardOut { rank, garbled, last } => {
                self.ranks[(rank.0 - self.first.0) as usize].is_heard_out = true;
                self.say(&Said::HeardOut { rank, garbled, last });
            }
            Message::Did(said) => self.say(&said),
            Message::LeaderCame(_) | Message::Leader(_) | Message::Follower(..) | Message::Stop => {}
        }
        Ok(())
    }

    fn carry_out(&mut self, told: Told) -> Result<(), String> {
        match told {
            Told::Show { folder } => {
                let (manifest, files) = show(&self.folder, &folder);
                self.say(&Said::Shown { manifest, files });
            }
            Told::Get { folder, files, manifest } => self.apart(move |door, own, trial| {
                match get(door, own, trial, &folder, &files, manifest.as_deref()) {
                    Ok(()) => Said::Got,
                    Err(error) => {
                        let is_of_checkpoint = matches!(error, NotLaunched::Checkpoint(_));
                        Said::CouldNot { reason: error.to_string(), is_of_checkpoint }
                    }
                }
            }),
            Told::Reserve { ranks } => {
                let reserved = free_ports(&self.order.seat.bind, ranks);
                self.say(&match reserved {
                    Ok(addresses) => Said::Reserved { addresses },
                    Err(error) => {
                        Said::CouldNot { reason: format!("free ports: {error}"), is_of_checkpoint: false }
                    }
                });
            }
            Told::Start { rendezvous } => {
                let said = match self.start(&rendezvous) {
                    Ok(()) => Said::Started,
                    Err(reason) => Said::CouldNot { reason, is_of_checkpoint: false },
                };
                self.say(&said);
            }
            Told::Order { rank, order } => self.of(rank)?.tell(&order),
            Told::Kill { rank } => self.of(rank)?.kill(),
            Told::Prepare { step, manifest, copies } => {
                let partial = self.folder.partial_checkpoint(step, self.order.attempt);
                let name = folder_name(step, self.order.attempt);
                self.apart(move |door, own, trial| {
                    let outcome = get(door, own, trial, &name, &copies, None)
                        .map_err(|error| error.to_string())
                        .and_then(|()| commit::prepare(&partial, &manifest));
                    Said::Prepared { step, outcome }
                });
            }
            Told::Commit { step, keep } => {
                let outcome = commit::finish(&self.folder, step, self.order.attempt);
                self.say(&Said::Committed { step, outcome });
                let (attempt, resumed) = (self.order.attempt, self.resumed.as_deref());
                if let Err(error) = commit::retain(&self.folder.checkpoints(), keep, attempt, resumed) {
                    note(&format!("an old checkpoint cannot be removed: {error}"));
                }
            }
            Told::Discard { step } => {
                if let Err(error) = commit::discard(&self.folder, step, self.order.attempt) {
                    note(&format!("cannot remove the partial checkpoint of step {step}: {error}"));
                }
            }
            Told::Leave => unreachable!("it ends the loop that leads here"),
        }
        Ok(())
    }

    /// Does what takes long in a thread of its own; what it leads to is said to the leader.
    fn apart(&self, work: impl FnOnce(&Door, u32, &TrialFolder) -> Said + Send + 'static) {
        let (door, own, trial) = (Arc::clone(&self.door), self.order.seat.host, self.folder.clone());
        let inbox = self.inbox.clone();
        thread::spawn(move || drop(inbox.send(Message::Did(work(&door, own, &trial)))));
    }

    /// A rank that was started here.
    fn of(&mut self, rank: Rank) -> Result<&mut RankProcess, String> {
        let index = rank.0.checked_sub(self.first.0).map(|index| index as usize);
        index
            .and_then(|index| self.ranks.get_mut(index))
            .ok_or_else(|| format!("the leader gives an order to rank {rank}, which was not started here"))
    }

    /// Starts the ranks that the controller ordered, once.
    fn start(&mut self, rendezvous: &Rendezvous) -> Result<(), String> {
        if !self.ranks.is_empty() {
            return Err("the ranks are started already".into());
        }
        let assignments = &self.order.assignments;
        let checkpoints = self.folder.checkpoints();
        if !self.order.seat.is_shared {
            commit::remove_partial(&checkpoints, self.order.attempt)
                .map_err(|error| format!("old checkpoints: {error}"))?;
        }
        let peers = assignments.first().map_or(0, |one| one.arrangement.layout.world());
        super::files::suffice(assignments.len(), 0, peers as usize)?;
        let ground = Ground {
            attempt: self.order.attempt,
            folder: &self.folder,
            worker: &self.order.worker,
            rendezvous,
            bind: &self.order.seat.bind,
            first: self.first,
            ranks: u32::try_from(assignments.len()).unwrap_or(u32::MAX),
        };
        for assignment in assignments {
            let mut assignment = assignment.clone();
            assignment.checkpoints.clone_from(&checkpoints);
            if let (Some(point), Some(name)) = (&mut assignment.resume, &self.resumed) {
                point.folder = checkpoints.join(name);
            }
            if let Link::Tls { bind, .. } = &mut assignment.link {
                bind.clone_from(&self.order.seat.bind);
            }
            let rank = RankProcess::start(&ground, &assignment, None, &self.inbox)
                .map_err(|error| format!("rank {} cannot be started: {error}", assignment.rank))?;
            self.ranks.push(rank);
        }
        let processes = self.ranks.iter().filter_map(|rank| Process::of(rank.id()?));
        self.card.ranks = processes.collect();
        write_card(&self.folder, &self.card).map_err(|error| format!("agent.json: {error}"))
    }

    fn look_at_ranks(&mut self) -> io::Result<()> {
        for change in super::rank::look(&mut self.ranks, &mut self.heard_by)? {
            let said = match change {
                Change::Exited { index, status, failure } => {
                    if let Some(failure) = failure {
                        self.say(&Said::Event { rank: self.rank(index), event: Event::Failed(failure) });
                    }
                    Said::Exited { rank: self.rank(index), status }
                }
                Change::GivenUp { index } => {
                    Said::HeardOut { rank: self.rank(index), garbled: None, last: Vec::new() }
                }
                Change::Frozen { index, failure } => {
                    Said::Event { rank: self.rank(index), event: Event::Failed(failure) }
                }
            };
            self.say(&said);
        }
        Ok(())
    }

    fn rank(&self, index: usize) -> Rank {
        Rank(self.first.0 + u32::try_from(index).unwrap_or(u32::MAX))
    }
}

/// What lies here of the checkpoint `name`: its table of contents if that is what was committed, and the files that are whole.
pub(super) fn show(trial: &TrialFolder, name: &str) -> (Option<String>, Vec<String>) {
    let Some(folder) = door::checkpoint(trial, name) else { return (None, Vec::new()) };
    let Ok((text, manifest)) = checkpoints::contents(&folder) else { return (None, Vec::new()) };
    let is_whole = |file: &&FileEntry| {
        std::fs::metadata(folder.join(&file.name)).is_ok_and(|found| found.len() == file.bytes)
    };
    (Some(text), manifest.files.iter().filter(is_whole).map(|file| file.name.clone()).collect())
}

/// Gets the files of the checkpoint `name` that are not here; with `manifest` it is committed here when they are.
///
/// `Err` tells whether the checkpoint is to blame, or only what keeps it from being had here now.
pub(super) fn get(
    door: &Door,
    own: u32,
    trial: &TrialFolder,
    name: &str,
    files: &[(FileEntry, Vec<PeerAddress>)],
    manifest: Option<&str>,
) -> Result<(), NotLaunched> {
    let folder = door::checkpoint(trial, name).ok_or_else(|| format!("{name} is not a checkpoint"))?;
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (file, from) in files {
        fetch(door, own, trial, name, file, from)?;
    }
    match (manifest, parse_folder_name(name)) {
        (Some(manifest), Some((step, attempt))) if folder != trial.checkpoint(step, attempt) => {
            commit::prepare(&folder, manifest)?;
            Ok(commit::finish(trial, step, attempt)?)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
