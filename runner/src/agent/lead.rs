//! The other hosts of an attempt, as the agent that leads it holds them.
//!
//! A host that is silent for two seconds is lost: the leader ends the attempt and names the host. The next attempt starts on the
//! hosts that answer.

use super::Message;
use super::follow::{get, show};
use super::foreign::Rendezvous;
use super::order::{AgentOrder, OtherHost};
use super::peers::cord::{Cord, Heard};
use super::peers::door::Door;
use super::peers::{Greeting, Names, PeerAddress, Said, Seat, Told, knock};
use super::rank::RankProcess;
use crate::checkpoints::commit;
use crate::home::TrialFolder;
use crate::launch::NotLaunched;
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{Assignment, FileEntry, Manifest, Rank, SavedFile, StepId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// How long another host may take to start its ranks.
const TO_START: Duration = Duration::from_secs(30);

/// How long a host may take to get the files of a checkpoint.
const TO_GET: Duration = Duration::from_secs(600);

/// The other hosts of an attempt.
pub(super) struct Others {
    trial: TrialFolder,
    own: PeerAddress,
    door: Arc<Door>,
    hosts: Vec<Other>,
    /// What was heard while something else was waited for.
    early: Vec<Message>,
    saving: BTreeMap<StepId, Saving>,
    /// Whether all hosts see one folder of checkpoints: then each saves its part there, and this one does the rest.
    is_shared: bool,
}

/// One of them.
struct Other {
    seat: OtherHost,
    agent: Arc<Cord>,
    is_lost: bool,
}

/// A checkpoint that all ranks saved and not all hosts committed.
struct Saving {
    /// Hosts whose word is waited for.
    awaited: BTreeSet<u32>,
    is_prepared: bool,
}

/// How a checkpoint goes on.
pub(super) enum Progress {
    /// More hosts must have their say.
    Wait,
    /// All others committed it: it is this host's turn.
    Finish,
    /// There will be none.
    Fail(String),
}

impl Others {
    /// Opens the door, and connects with the agents of all other hosts.
    pub(super) fn meet(
        order: &AgentOrder,
        seat: &Seat,
        trial: &TrialFolder,
        inbox: &Sender<Message>,
    ) -> Result<Self, String> {
        let names = Names { trial: order.trial.clone(), attempt: order.attempt };
        // Nobody leads the leader: such a visitor is sent away by dropping it.
        let door = Door::bind(seat, names, trial)?.open(drop);
        let own = PeerAddress { host: seat.host, name: "the leader".into(), address: door.address.clone() };
        let knocked: Vec<_> = thread::scope(|scope| {
            let door = &door;
            let knocking = order.others.iter().map(|other| {
                scope.spawn(move || knock(&door.tls, &door.names, &other.peer, &Greeting::Lead))
            });
            let knocking: Vec<_> = knocking.collect();
            knocking.into_iter().map(|thread| thread.join().expect("knocking does not panic")).collect()
        });
        let hosts = order.others.iter().zip(knocked).filter_map(|(other, stream)| {
            let (host, inbox) = (other.peer.host, inbox.clone());
            let agent = stream.and_then(|stream| {
                Cord::start(stream, move |heard| drop(inbox.send(Message::Follower(host, heard))))
            });
            let seat = other.clone();
            match agent {
                Ok(agent) => Some(Ok(Other { seat, agent: Arc::new(agent), is_lost: false })),
                Err(_) if other.only_lends() => None,
                Err(error) => Some(Err(format!("{} at {}: {error}", other.peer.name, other.peer.address))),
            }
        });
        let hosts = hosts.collect::<Result<_, String>>()?;
        let (trial, is_shared) = (trial.clone(), seat.is_shared);
        Ok(Self { trial, own, door, hosts, early: Vec::new(), saving: BTreeMap::new(), is_shared })
    }

    /// Brings every file of the checkpoint `name` to every host that has ranks.
    pub(super) fn gather(&mut self, name: &str, inbox: &Receiver<Message>) -> Result<(), NotLaunched> {
        if self.is_shared {
            return Ok(());
        }
        self.tell_all(|_| Told::Show { folder: name.into() });
        let mut shown = self.answers(inbox, TO_GET, |_| true)?;
        let (own_manifest, own_files) = show(&self.trial, name);
        shown.push((self.own.host, Said::Shown { manifest: own_manifest, files: own_files }));
        let mut contents: Option<String> = None;
        let mut holders: BTreeMap<String, Vec<PeerAddress>> = BTreeMap::new();
        for (host, said) in shown {
            let Said::Shown { manifest, files } = said else { continue };
            let peer = self.peer(host);
            for file in files {
                holders.entry(file).or_default().push(peer.clone());
            }
            contents = contents.or(manifest);
        }
        let contents =
            contents.ok_or_else(|| NotLaunched::Checkpoint(format!("no host has the checkpoint {name}")))?;
        let manifest: Manifest = serde_json::from_str(&contents)
            .map_err(|error| NotLaunched::Checkpoint(format!("{name}: {error}")))?;
        let files: Vec<(FileEntry, Vec<PeerAddress>)> = manifest
            .files
            .into_iter()
            .map(|file| {
                let holders = holders.remove(&file.name).unwrap_or_default();
                (file, holders)
            })
            .collect();
        let told = Told::Get { folder: name.into(), files: files.clone(), manifest: Some(contents.clone()) };
        let getting = self.hosts.iter().filter(|other| !other.seat.only_lends());
        getting.for_each(|other| other.agent.tell(&told));
        let own = get(&self.door, self.own.host, &self.trial, name, &files, Some(&contents));
        for (host, said) in self.answers(inbox, TO_GET, |other| !other.only_lends())? {
            if let Said::CouldNot { reason, is_of_checkpoint } = said {
                let name = self.peer(host).name;
                return Err(NotLaunched::because(reason, is_of_checkpoint).on(&name));
            }
        }
        own
    }

    /// Lets go of the hosts that have no ranks.
    pub(super) fn part_with_lenders(&mut self) {
        for lender in self.hosts.extract_if(.., |other| other.seat.only_lends()) {
            lender.agent.tell(&Told::Leave);
        }
    }

    /// Number of the other hosts.
    pub(super) fn hosts(&self) -> u32 {
        u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)
    }

    /// An address and a port for each rank of the other hosts, in the order of ranks.
    pub(super) fn reserve(&mut self, inbox: &Receiver<Message>) -> Result<Vec<String>, String> {
        self.tell_all(|other| Told::Reserve { ranks: other.ranks.end - other.ranks.start });
        let mut reserved = BTreeMap::new();
        for (host, said) in self.answers(inbox, TO_START, |_| true)? {
            match said {
                Said::Reserved { addresses } => drop(reserved.insert(host, addresses)),
                Said::CouldNot { reason, .. } => return Err(format!("{}: {reason}", self.peer(host).name)),
                _ => {}
            }
        }
        let of = |other: &Other| reserved.remove(&other.seat.peer.host).unwrap_or_default();
        Ok(self.hosts.iter().flat_map(of).collect())
    }

    /// Starts the ranks of the other hosts; their processes in the order of ranks.
    pub(super) fn start(
        &mut self,
        assignments: &[Assignment],
        rendezvous: &Rendezvous,
        inbox: &Receiver<Message>,
    ) -> Result<Vec<RankProcess>, String> {
        self.tell_all(|_| Told::Start { rendezvous: rendezvous.clone() });
        for (host, said) in self.answers(inbox, TO_START, |_| true)? {
            if let Said::CouldNot { reason, .. } = said {
                return Err(format!("{}: {reason}", self.peer(host).name));
            }
        }
        let started = self.hosts.iter().flat_map(|other| {
            let own = &assignments[other.seat.ranks.start as usize..other.seat.ranks.end as usize];
            own.iter().map(|assignment| RankProcess::elsewhere(assignment, &other.agent))
        });
        Ok(started.collect())
    }

    /// What was heard while something else was waited for; to be heard now.
    pub(super) fn early(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.early)
    }

    /// The ranks of a host that is lost, and its name; `None` when that is known already.
    pub(super) fn lose(&mut self, host: u32) -> Option<&OtherHost> {
        let other = self.hosts.iter_mut().find(|other| other.seat.peer.host == host && !other.is_lost)?;
        other.is_lost = true;
        Some(&other.seat)
    }

    /// Whether a rank is one of a host's.
    pub(super) fn has(&self, host: u32, rank: Rank) -> bool {
        self.hosts.iter().any(|other| other.seat.peer.host == host && other.seat.ranks.contains(&rank.0))
    }

    /// Whether every checkpoint is committed, or given up.
    pub(super) fn is_quiet(&self) -> bool {
        self.saving.is_empty()
    }

    /// The checkpoints that were under way, now given up.
    pub(super) fn give_up(&mut self) -> Vec<StepId> {
        std::mem::take(&mut self.saving).into_keys().collect()
    }

    /// Lets all hosts prepare a checkpoint; each also keeps what the host before it wrote.
    pub(super) fn prepare(
        &mut self,
        order: &AgentOrder,
        step: StepId,
        contents: &str,
        saved: &[(Rank, SavedFile)],
        inbox: &Sender<Message>,
    ) {
        let hosts: Vec<u32> = std::iter::once(self.own.host)
            .chain(self.hosts.iter().map(|other| other.seat.peer.host))
            .collect();
        let written = self.written(saved);
        let last = hosts.last().copied();
        let before: BTreeMap<u32, u32> =
            hosts.iter().copied().zip(last.into_iter().chain(hosts.iter().copied())).collect();
        let copies = |host: u32| -> Vec<(FileEntry, Vec<PeerAddress>)> {
            let before = before[&host];
            let files = written.get(&before).cloned().unwrap_or_default();
            files.into_iter().map(|file| (file, vec![self.peer(before)])).collect()
        };
        let own = if self.is_shared { Vec::new() } else { copies(self.own.host) };
        if !self.is_shared {
            self.tell_all(|other| Told::Prepare {
                step,
                manifest: contents.into(),
                copies: copies(other.peer.host),
            });
        }
        let is_own = |(rank, _): &&(Rank, SavedFile)| self.host_of(*rank) == self.own.host;
        let own_saved: Vec<_> = saved.iter().filter(is_own).map(|(_, file)| file.clone()).collect();
        let attempt = order.attempt;
        let (door, host, trial) = (Arc::clone(&self.door), self.own.host, self.trial.clone());
        let (name, contents, inbox) = (folder_name(step, order.attempt), contents.to_owned(), inbox.clone());
        thread::spawn(move || {
            let partial = trial.partial_checkpoint(step, attempt);
            // A follower looks at what its ranks saved when they say so.
            let outcome = commit::check(&partial, &own_saved)
                .and_then(|()| get(&door, host, &trial, &name, &own, None).map_err(|error| error.to_string()))
                .and_then(|()| commit::prepare(&partial, &contents));
            drop(inbox.send(Message::Did(Said::Prepared { step, outcome })));
        });
        let awaited = if self.is_shared { vec![self.own.host] } else { hosts };
        self.saving.insert(step, Saving { awaited: awaited.into_iter().collect(), is_prepared: false });
    }

    /// Takes in that `host` prepared or committed the checkpoint of `step`, or could not.
    pub(super) fn advance(
        &mut self,
        step: StepId,
        host: u32,
        outcome: Result<(), String>,
        keep: u32,
    ) -> Progress {
        let Some(saving) = self.saving.get_mut(&step) else { return Progress::Wait };
        if let Err(reason) = outcome {
            self.saving.remove(&step);
            return Progress::Fail(format!("{}: {reason}", self.peer(host).name));
        }
        saving.awaited.remove(&host);
        if !saving.awaited.is_empty() {
            return Progress::Wait;
        }
        if saving.is_prepared || self.is_shared {
            self.saving.remove(&step);
            return Progress::Finish;
        }
        saving.is_prepared = true;
        saving.awaited = self.hosts.iter().map(|other| other.seat.peer.host).collect();
        self.tell_all(|_| Told::Commit { step, keep });
        Progress::Wait
    }

    /// Lets all hosts clear away what they have of a checkpoint that there will not be.
    pub(super) fn discard(&self, step: StepId) {
        if !self.is_shared {
            self.tell_all(|_| Told::Discard { step });
        }
    }

    /// The attempt is over.
    pub(super) fn dismiss(&self) {
        self.tell_all(|_| Told::Leave);
    }

    /// Index of this host.
    pub(super) fn own(&self) -> u32 {
        self.own.host
    }

    /// The files that each host wrote.
    fn written(&self, saved: &[(Rank, SavedFile)]) -> BTreeMap<u32, Vec<FileEntry>> {
        let mut written: BTreeMap<u32, Vec<FileEntry>> = BTreeMap::new();
        for (rank, saved) in saved {
            written.entry(self.host_of(*rank)).or_default().push(saved.file.clone());
        }
        written
    }

    fn host_of(&self, rank: Rank) -> u32 {
        // They stand in the order of their ranks, and their ranks follow those of this host.
        let after = self.hosts.partition_point(|other| other.seat.ranks.start <= rank.0);
        after.checked_sub(1).map_or(self.own.host, |index| self.hosts[index].seat.peer.host)
    }

    fn peer(&self, host: u32) -> PeerAddress {
        let index = self.hosts.binary_search_by_key(&host, |other| other.seat.peer.host);
        index.map_or_else(|_| self.own.clone(), |index| self.hosts[index].seat.peer.clone())
    }

    fn tell_all(&self, told: impl Fn(&OtherHost) -> Told) {
        self.hosts.iter().for_each(|other| other.agent.tell(&told(&other.seat)));
    }

    /// The answer of every host of `asked` to what it was told. `Err` names the first that was lost, or took too long; one that only
    /// lends may be lost.
    fn answers(
        &mut self,
        inbox: &Receiver<Message>,
        patience: Duration,
        asked: impl Fn(&OtherHost) -> bool,
    ) -> Result<Vec<(u32, Said)>, String> {
        let until = Instant::now() + patience;
        let mut answers: Vec<(u32, Said)> = Vec::new();
        let asked = self.hosts.iter().map(|other| &other.seat).filter(|seat| asked(seat));
        let mut missing: BTreeSet<u32> = asked.map(|seat| seat.peer.host).collect();
        while let Some(first) = missing.first() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(message) = inbox.recv_timeout(left) else {
                let (name, others) = (self.peer(*first).name, missing.len() - 1);
                let others = if others == 0 { String::new() } else { format!(" and {others} more") };
                return Err(format!("{name}{others} did not answer within {} s", patience.as_secs()));
            };
            match message {
                Message::Follower(
                    host,
                    Heard::Said(
                        said @ (Said::Shown { .. }
                        | Said::Got
                        | Said::Reserved { .. }
                        | Said::Started
                        | Said::CouldNot { .. }),
                    ),
                ) => {
                    missing.remove(&host);
                    answers.push((host, said));
                }
                Message::Follower(host, Heard::Lost(reason)) => {
                    let is_lost = |other: &Other| other.seat.peer.host == host;
                    if self.hosts.iter().any(|other| is_lost(other) && !other.seat.only_lends()) {
                        return Err(format!("{} is lost: {reason}", self.peer(host).name));
                    }
                    self.hosts.retain(|other| !is_lost(other));
                    missing.remove(&host);
                }
                other => self.early.push(other),
            }
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests;
