//! Agents on several hosts: the first leads, the others follow.
//!
//! The controller copies its own program to each host, under a name that contains its blake3, and starts it there as
//! `dtrain agent --stdio`. That process is a relay: it does for the controller what `LocalLauncher` does on one machine. The
//! first host has the agent that owns the attempt, with the only spool and the only control socket. The agent of any other host
//! holds ranks for the leader and ends with it.

use super::cancel::Cancel;
use super::fence::Fences;
use super::fencing::Fencing;
use super::placement::{ranks_by_host, with_certificates};
use super::question::{Asked, Question, ask_all};
use super::relay::{RemoteHost, There};
use super::{Fenced, Launcher, LocalLauncher, NotLaunched, Reached, Unread, Usable};
use crate::agent::{
    AgentCard, AgentOrder, FollowerOrder, OtherHost, PeerAddress, Program, Seat, agent_identities,
};
use crate::checkpoints::{self, Folder, Holder, Inventory, table};
use crate::durable;
use crate::files;
use crate::home::{Home, TrialFolder};
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, Link, StepId, TlsIdentity, TrialId};
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a host may take to answer a short question.
const TO_ANSWER: Duration = Duration::from_secs(3);

/// The same for hosts that have answered before.
const TO_ANSWER_AGAIN: Duration = Duration::from_millis(1500);

/// How long a host may take to give the table of contents of a checkpoint.
const TO_READ: Duration = Duration::from_secs(30);

/// How long a launch may take on a host that says that it is at it.
const TO_LAUNCH: Duration = Duration::from_secs(24 * 3600);

/// How long a host may take to start an agent that follows.
const TO_FOLLOW: Duration = Duration::from_secs(90);

/// Starts agents on other hosts.
pub struct ClusterLauncher {
    trial: TrialId,
    folder: TrialFolder,
    hosts: Vec<Asked>,
    /// Those that answered last.
    usable: Vec<usize>,
    /// Those of the newest attempt; the first leads.
    active: Vec<usize>,
    /// The state folder that all hosts see, where there is one.
    shared: Option<Home>,
    cancel: Cancel,
    /// The attempt whose leader was given up, with why.
    given_up: Option<(AttemptId, String)>,
    fencing: Fencing,
}

impl ClusterLauncher {
    /// Reaches what runs of a trial on `hosts`.
    ///
    /// Which of them an attempt is on stands in the trial's folder on this machine, for a controller that comes later.
    pub fn new(trial: &TrialId, folder: &TrialFolder, hosts: Vec<RemoteHost>) -> Self {
        let known = files::read_to_string(&folder.elsewhere()).unwrap_or_default();
        let known = known.lines().filter_map(|known| hosts.iter().position(|host| host.name == known));
        let active: Vec<usize> = known.collect();
        let active = if active.is_empty() { (0..hosts.len()).collect() } else { active };
        let cancel = Cancel::default();
        let hosts = hosts.into_iter().map(|host| Asked::new(host, &cancel)).collect();
        let (trial, folder) = (trial.clone(), folder.clone());
        let (usable, shared, given_up, fencing) = (Vec::new(), None, None, Fencing::default());
        Self { trial, folder, hosts, usable, active, shared, cancel, given_up, fencing }
    }

    /// The same where all hosts and this machine see the state folder `home`: checkpoints are kept there, and what a host
    /// writes lies below it.
    pub fn sharing(self, home: &Home) -> Self {
        Self { shared: Some(home.clone()), ..self }
    }

    /// Asks several hosts at the same time; answers in their order.
    fn ask_all<T: Send + 'static>(
        &self,
        hosts: &[usize],
        patience: Duration,
        question: impl Fn(&mut RemoteHost) -> Result<T, String> + Clone + Send + 'static,
    ) -> Vec<Result<T, String>> {
        let hosts: Vec<&Asked> = hosts.iter().map(|host| &self.hosts[*host]).collect();
        ask_all(&hosts, patience, question)
    }

    fn leader(&self) -> &Asked {
        &self.hosts[self.active[0]]
    }

    fn name(&self, host: usize) -> &str {
        &self.hosts[host].name
    }

    /// Lets every host but the first have an agent at its door, which knows the assignments of its ranks; the seats of all, with the
    /// address of the door.
    fn seat(
        &self,
        order: &AgentOrder,
        ranks: &[Range<u32>],
        hosts: &[usize],
        identities: &[TlsIdentity],
    ) -> Vec<Result<(Seat, Option<String>), NotLaunched>> {
        let ask = |(host, index): (u32, &usize)| {
            let (identity, is_shared) = (identities[host as usize].clone(), self.shared.is_some());
            let (trial, attempt) = (order.trial.clone(), order.attempt);
            let ranks = ranks.get(host as usize).cloned().unwrap_or_default();
            let assignments = order.assignments[ranks.start as usize..ranks.end as usize].to_vec();
            self.hosts[*index].ask(move |remote| {
                let seat = Seat { host, bind: remote.address()?, identity, is_shared };
                if host == 0 {
                    return Ok((seat, None));
                }
                let (folder, worker) = (PathBuf::new(), Program::new(PathBuf::new(), []));
                let own = seat.clone();
                let order = FollowerOrder { trial, attempt, folder, worker, seat: own, assignments };
                Ok((seat, Some(remote.follow(order)?)))
            })
        };
        let asked: Vec<Question<_>> = (0u32..).zip(hosts).map(ask).collect();
        let answer = |(asked, host): (Question<_>, &usize)| {
            asked.answer(TO_FOLLOW).map_err(|reason| NotLaunched::because_of(self.name(*host), &reason))
        };
        asked.into_iter().zip(hosts).map(answer).collect()
    }

    fn fences(&self) -> Fences {
        // Where it cannot be read, nobody is left out: a fenced host that answers is no danger.
        Fences::read(&self.folder).unwrap_or_default()
    }

    /// Why the leader of an attempt counts as lost, where it does.
    fn leader_lost(&self, attempt: AttemptId) -> Option<String> {
        let name = &self.leader().name;
        let given_up = self.given_up.as_ref().filter(|(of, _)| *of == attempt);
        let is_fenced = || self.fences().has(name).then(|| format!("{name} is fenced"));
        given_up.map(|(_, reason)| reason.clone()).or_else(is_fenced)
    }

    /// Ends what the other hosts of an attempt run of it, as far as they can be asked: the others fence themselves without a leader.
    fn kill_followers(&self, attempt: AttemptId, reason: String) -> Reached {
        let trial = self.trial.clone();
        self.ask_all(&self.active[1..], TO_ANSWER, move |host| host.kill(&trial, attempt));
        Reached::GoneWithItsHost { host: self.leader().name.clone(), reason }
    }

    /// Ends a launch that the user no longer wants, wherever it got to.
    fn abandon(&mut self, attempt: AttemptId, lenders: &[usize]) -> NotLaunched {
        let all: Vec<usize> = self.active.iter().chain(lenders).copied().collect();
        all.iter().for_each(|host| self.hosts[*host].hang_up());
        self.cancel.reset();
        let trial = self.trial.clone();
        let killed = self.ask_all(&all, TO_ANSWER, move |host| host.kill(&trial, attempt));
        let failed = killed.into_iter().find(|killed| *killed != Ok(true));
        match failed {
            None => NotLaunched::Other("interrupted".into()),
            Some(Ok(_)) => NotLaunched::Unknown("interrupted, and it cannot be killed".into()),
            Some(Err(reason)) => NotLaunched::Unknown(format!("interrupted; {reason}")),
        }
    }

    /// Puts the checkpoint that the ranks go on from on the host that leads, where it lies on this machine: such is one that
    /// was taken over from another trial. The other hosts get it from there.
    fn put_checkpoint(&self, order: &AgentOrder) -> Result<(), NotLaunched> {
        let point = order.assignments.first().and_then(|assignment| assignment.resume.as_ref());
        let name = point.and_then(|point| point.folder.file_name());
        let Some(own) = name.map(|name| self.folder.checkpoints().join(name)) else { return Ok(()) };
        if self.shared.is_some() || checkpoints::verify(&own).is_err() {
            return Ok(());
        }
        let trial = self.trial.clone();
        let put = self.leader().ask(move |leader| leader.put_checkpoint(&trial, &own));
        put.answer(TO_LAUNCH).map_err(|reason| NotLaunched::because_of(&self.leader().name, &reason))
    }

    /// Starts the agents of all active hosts, and of the `lenders`; of those some may fail.
    fn lead(
        &self,
        order: &AgentOrder,
        ranks: &[Range<u32>],
        lenders: &[usize],
    ) -> Result<AgentCard, NotLaunched> {
        let all: Vec<usize> = self.active.iter().chain(lenders).copied().collect();
        let hosts = u32::try_from(all.len()).map_err(|_| "too many hosts")?;
        let identities = agent_identities(&order.trial, order.attempt, hosts)
            .map_err(|error| format!("certificates: {error}"))?;
        let order = &with_certificates(order, ranks)?;
        let mut seats = self.seat(order, ranks, &all, &identities);
        let lent = seats.split_off(self.active.len());
        let mut seats = seats.into_iter().collect::<Result<Vec<_>, NotLaunched>>()?;
        seats.extend(lent.into_iter().flatten());
        let others = seats.iter().filter_map(|(seat, address)| {
            let name = self.name(all[seat.host as usize]).to_owned();
            let peer = PeerAddress { host: seat.host, name, address: address.clone()? };
            Some(OtherHost { peer, ranks: ranks.get(seat.host as usize).cloned().unwrap_or_default() })
        });
        let mut order =
            AgentOrder { others: others.collect(), seat: Some(seats[0].0.clone()), ..order.clone() };
        // The keys of other hosts' ranks are no business of the host that leads.
        for assignment in order.assignments.iter_mut().skip(ranks[0].end as usize) {
            assignment.link = Link::Alone;
        }
        let led = self.leader().ask(move |leader| Ok(leader.lead(order)));
        let name = self.leader().name.as_str();
        led.answer(TO_LAUNCH).map_err(NotLaunched::Unknown)?.map_err(|error| error.on(name))
    }
}

impl Launcher for ClusterLauncher {
    fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    fn usable(&mut self) -> Usable {
        let fences = self.fences();
        let (fenced, all): (Vec<usize>, Vec<usize>) =
            (0..self.hosts.len()).partition(|host| fences.has(self.name(*host)));
        let patience = if self.usable.is_empty() { TO_ANSWER } else { TO_ANSWER_AGAIN };
        let answers = self.ask_all(&all, patience, RemoteHost::address);
        let answering = all.into_iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        self.usable = answering.map(|(host, _)| host).collect();
        let hosts = u32::try_from(self.usable.len()).unwrap_or(u32::MAX);
        let fenced = fenced.into_iter().map(|host| format!("{}: it is fenced", self.name(host)));
        let names = self.usable.iter().map(|host| self.name(*host).to_owned()).collect();
        Usable { hosts, names, away: fenced.chain(answers.into_iter().filter_map(Result::err)).collect() }
    }

    fn put_last(&mut self, hosts: &[String]) {
        let place = |host: &usize| hosts.iter().position(|last| last == self.name(*host));
        let mut usable = self.usable.clone();
        usable.sort_by_key(place);
        self.usable = usable;
    }

    fn launch(&mut self, order: &AgentOrder) -> Result<AgentCard, NotLaunched> {
        let ranks = ranks_by_host(order, self.usable.len())?;
        self.active = self.usable[..ranks.len()].to_vec();
        let lines: String = self.active.iter().map(|host| format!("{}\n", self.name(*host))).collect();
        let path = self.folder.elsewhere();
        durable::replace(&path, lines.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))?;
        // What an attempt on other hosts saved may lie on those that this one does without.
        let is_resumed = order.assignments.iter().any(|assignment| assignment.resume.is_some());
        let lends = is_resumed && self.shared.is_none();
        let lenders = if lends { self.usable[ranks.len()..].to_vec() } else { Vec::new() };
        let led = self.put_checkpoint(order).and_then(|()| self.lead(order, &ranks, &lenders));
        if self.cancel.is_cancelled() && led.is_err() {
            return Err(self.abandon(order.attempt, &lenders));
        }
        // What may live is left alone: it is found out next.
        if led.as_ref().is_err_and(|error| !matches!(error, NotLaunched::Unknown(_))) {
            // Followers that nobody leads would end by themselves, but not at once.
            let (trial, attempt) = (self.trial.clone(), order.attempt);
            self.kill(attempt);
            self.ask_all(&lenders, TO_ANSWER, move |host| host.kill(&trial, attempt));
        }
        led
    }

    /// Hosts with a folder of their own see for themselves, when they bring their parts together.
    fn verify(&mut self, folder: &Path) -> Result<(), String> {
        if self.shared.is_some() { checkpoints::verify(folder).map(drop) } else { Ok(()) }
    }

    fn found(&mut self, is_wanted: &(dyn Fn(AttemptId, StepId) -> bool + Sync)) -> Vec<(AttemptId, StepId)> {
        if let Some(home) = &self.shared {
            return LocalLauncher::new(&home.trial(&self.trial)).found(is_wanted);
        }
        let trial = self.trial.clone();
        let folders = self.ask_all(&self.usable, TO_ANSWER, move |host| There::new(host, &trial).folders());
        let inventory = Inventory::of(folders.into_iter().map(Result::unwrap_or_default).collect());
        let contents = |index: usize, folder: &Folder| {
            let (trial, folder) = (self.trial.clone(), folder.clone());
            let read = move |host: &mut RemoteHost| table(&mut There::new(host, &trial), &folder);
            Ok(self.hosts[self.usable[index]].ask(read).answer(TO_READ)?.1)
        };
        let found = inventory.names().into_iter().filter_map(|name| {
            let (step, attempt) = parse_folder_name(&name)?;
            (is_wanted(attempt, step) && inventory.is_whole(&name, contents).is_ok())
                .then_some((attempt, step))
        });
        found.collect()
    }

    fn doubt(&mut self, host: &str) {
        self.hosts.iter().filter(|known| known.name == host).for_each(Asked::doubt);
    }

    /// A leader that does not answer may go on all the same: then its followers do too, as none of them outlives it.
    fn reach(&mut self, attempt: AttemptId, from: u64) -> Reached {
        if let Some(reason) = self.leader_lost(attempt) {
            return self.kill_followers(attempt, reason);
        }
        let trial = self.trial.clone();
        let patience = self.leader().patience(TO_ANSWER);
        let asked = self.leader().ask(move |host| host.reach(&trial, attempt, from));
        let reason = match asked.answer(patience) {
            Ok(reached) => return reached,
            Err(reason) => reason,
        };
        let trial = self.trial.clone();
        let is_alive = move |host: &mut RemoteHost| host.is_alive(&trial, attempt);
        let followers = self.ask_all(&self.active[1..], TO_ANSWER, is_alive);
        if followers.contains(&Ok(false)) {
            return Reached::GoneWithItsHost { host: self.leader().name.clone(), reason };
        }
        let is_at_work = followers.contains(&Ok(true));
        // There was little patience with a leader in doubt, and it may only be slow.
        asked.answer(TO_ANSWER).unwrap_or(Reached::Away { reason, is_at_work })
    }

    fn give_up(&mut self, attempt: AttemptId) -> bool {
        let reason = format!("{} was given up", self.leader().name);
        self.given_up = Some((attempt, reason));
        true
    }

    fn fence_returned(&mut self, attempt: AttemptId) -> Vec<Fenced> {
        if self.shared.is_some() {
            return Vec::new();
        }
        self.fencing.ask_others(&self.trial, attempt, &self.hosts, &self.active);
        self.fencing.found(&self.hosts)
    }

    fn answers(&mut self, attempt: AttemptId) -> bool {
        let trial = self.trial.clone();
        let asked = self.leader().ask(move |host| {
            let is_alive = host.is_alive(&trial, attempt)?;
            Ok(is_alive || host.kill(&trial, attempt).is_err())
        });
        asked.answer(TO_ANSWER_AGAIN) == Ok(true)
    }

    fn leftover(&mut self, attempt: AttemptId, from: u64) -> Result<Box<dyn Read + Send>, Unread> {
        if let Some(home) = &self.shared {
            // The host that led may be none of those there are now.
            let known = files::read_to_string(&self.folder.elsewhere()).unwrap_or_default();
            let leader = known.lines().next().unwrap_or_default();
            return LocalLauncher::new(&home.host(leader).trial(&self.trial)).leftover(attempt, from);
        }
        if let Some(reason) = self.leader_lost(attempt) {
            return Err(Unread::Away(reason));
        }
        let trial = self.trial.clone();
        // Of the spool only its length is waited for here; it comes as it is read.
        let patience = self.leader().patience(TO_ANSWER);
        let asked = self.leader().ask(move |host| host.leftover(&trial, attempt, from, false));
        let leftover = asked.answer(patience).map_err(Unread::Away)?;
        Ok(Box::new(BufReader::new(leftover)))
    }

    fn mirrored(&mut self, attempt: AttemptId, from: u64) -> Option<Box<dyn Read + Send>> {
        let mirror = self.active.get(1).filter(|_| self.shared.is_none())?;
        let trial = self.trial.clone();
        let asked = self.hosts[*mirror].ask(move |host| host.leftover(&trial, attempt, from, true));
        let mirrored = asked.answer(TO_ANSWER).ok()?;
        Some(Box::new(BufReader::new(mirrored)))
    }

    fn kill(&mut self, attempt: AttemptId) -> bool {
        let trial = self.trial.clone();
        let killed = self.ask_all(&self.active, TO_ANSWER, move |host| host.kill(&trial, attempt));
        killed.iter().all(|gone| *gone == Ok(true))
    }
}
