//! The launcher for several hosts: the first one runs the leader, the others run followers.
//!
//! The controller copies its own program to each host, under a name with its BLAKE3 hash, and starts it there
//! as `dtrain agent --stdio`. That process is a relay: it does for the controller what `LocalLauncher` does
//! on one machine. The leader owns the attempt, with the only spool and the only control socket. A follower
//! holds ranks for the leader and ends with it.

mod checkpoint_placement;
mod host_pool;

use super::cancellation::CancellationToken;
use super::claim_poll::ClaimPoll;
use super::fencing::Fencing;
use super::fencing_rules::{self, AttemptHosts};
use super::host_list::HostList;
use super::host_query::{HostQuery, PolledHost, ask_all};
use super::rank_placement::{ranks_by_host, with_certificates};
use super::relay::RemoteHost;
use super::timeouts::{ANSWER_TIMEOUT, FOLLOWER_START_TIMEOUT, LAUNCH_TIMEOUT, REPEAT_ANSWER_TIMEOUT};
use super::{AgentContact, HostPool, Launcher, LocalLauncher, SpoolUnreadable};
use crate::certificates::agent_certificates;
use crate::control_protocol::{
    AgentCard, AgentIdentity, AgentOrder, FollowerOrder, LaunchError, OtherHost, PeerAddress, Program,
};
use crate::controller_claim::HeldClaim;
use crate::durable;
use crate::files;
use crate::home::{Home, TrialFolder};
use crate::workdir::WorkdirSnapshot;
use dtrain_protocol::{AttemptId, RankTransport, TlsIdentity, TrialId};
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The launcher that starts agents on several hosts.
pub struct ClusterLauncher {
    trial: TrialId,
    folder: TrialFolder,
    hosts: Vec<PolledHost>,
    /// Indices of the hosts that answered when last asked.
    usable: Vec<usize>,
    /// Indices of the hosts of the newest attempt; the first leads.
    active: Vec<usize>,
    /// The state folder that all hosts share; `None` if each has its own.
    shared: Option<Home>,
    cancel: CancellationToken,
    /// The attempt whose leader was given up, with the reason.
    given_up: Option<(AttemptId, String)>,
    fencing: Fencing,
    /// The hosts that may run attempts; the trial's folder has their names.
    attempt_hosts: AttemptHosts,
    /// The claim of this controller, which all hosts share.
    claim: HeldClaim,
    claim_poll: ClaimPoll,
    /// The recipe's folder, for hosts that lack it; `None` if it is not sent, or has changed since.
    workdir: Option<Arc<WorkdirSnapshot>>,
}

impl ClusterLauncher {
    /// Creates the launcher of a trial on `hosts`.
    ///
    /// The trial's folder on this machine lists the hosts of the current attempt, for a later controller.
    pub fn new(trial: &TrialId, folder: &TrialFolder, hosts: Vec<RemoteHost>) -> Self {
        let known = files::read_to_string(&folder.remote_hosts_file()).unwrap_or_default();
        let known = known.lines().filter_map(|known| hosts.iter().position(|host| host.name == known));
        let active: Vec<usize> = known.collect();
        let active = if active.is_empty() { (0..hosts.len()).collect() } else { active };
        // If the file cannot be read, the history still names the hosts that were lost.
        let unsettled = HostList::read(&folder.unsettled_hosts()).unwrap_or_default();
        let cancel = CancellationToken::default();
        let claim = HeldClaim::default();
        let hosts = hosts.into_iter().map(|host| PolledHost::new(host.claiming(&claim), &cancel)).collect();
        Self {
            trial: trial.clone(),
            folder: folder.clone(),
            hosts,
            usable: Vec::new(),
            active,
            shared: None,
            cancel,
            given_up: None,
            fencing: Fencing::default(),
            attempt_hosts: AttemptHosts::restore(unsettled.names().map(str::to_owned)),
            claim,
            claim_poll: ClaimPoll::default(),
            workdir: None,
        }
    }

    /// Gives the launcher the recipe's folder, which it sends to hosts that lack it.
    #[must_use]
    pub fn with_workdir(self, workdir: Option<Arc<WorkdirSnapshot>>) -> Self {
        Self { workdir, ..self }
    }

    /// Makes `home` the state folder that all hosts and this machine share: it holds the checkpoints and the
    /// state of each host.
    pub fn sharing(self, home: &Home) -> Self {
        Self { shared: Some(home.clone()), ..self }
    }

    /// Asks several hosts at the same time; returns the answers in order.
    fn ask_all<T: Send + 'static>(
        &self,
        hosts: &[usize],
        patience: Duration,
        question: impl Fn(&mut RemoteHost) -> Result<T, String> + Clone + Send + 'static,
    ) -> Vec<Result<T, String>> {
        let hosts: Vec<&PolledHost> = hosts.iter().map(|host| &self.hosts[*host]).collect();
        ask_all(&hosts, patience, question)
    }

    fn leader(&self) -> &PolledHost {
        &self.hosts[self.active[0]]
    }

    fn name(&self, host: usize) -> &str {
        &self.hosts[host].name
    }

    /// Starts a follower on every host but the first, with the assignments of its ranks. Returns the identity
    /// of each host and the address of its listener.
    fn start_followers(
        &self,
        order: &AgentOrder,
        ranks: &[Range<u32>],
        hosts: &[usize],
        identities: &[TlsIdentity],
    ) -> Vec<Result<(AgentIdentity, Option<String>), LaunchError>> {
        let ask = |(host, index): (u32, &usize)| {
            let (identity, is_shared) = (identities[host as usize].clone(), self.shared.is_some());
            let (trial, attempt, notice) = (order.trial.clone(), order.attempt, order.notice.clone());
            let ranks = ranks.get(host as usize).cloned().unwrap_or_default();
            let assignments = order.assignments[ranks.start as usize..ranks.end as usize].to_vec();
            self.hosts[*index].ask(move |remote| {
                let seat = AgentIdentity { host, bind: remote.address()?, identity, is_shared };
                if host == 0 {
                    return Ok((seat, None));
                }
                let (folder, worker) = (PathBuf::new(), Program::new(PathBuf::new(), []));
                let own = seat.clone();
                let order = FollowerOrder { trial, attempt, folder, worker, seat: own, assignments, notice };
                Ok((seat, Some(remote.follow(order)?)))
            })
        };
        let asked: Vec<HostQuery<_>> = (0u32..).zip(hosts).map(ask).collect();
        let answer = |(asked, host): (HostQuery<_>, &usize)| {
            asked
                .answer(FOLLOWER_START_TIMEOUT)
                .map_err(|reason| LaunchError::because_of(self.name(*host), &reason))
        };
        asked.into_iter().zip(hosts).map(answer).collect()
    }

    /// Returns the hosts that fencing leaves alone: those of the newest attempt, unless it was given up.
    fn spared(&self) -> &[usize] {
        fencing_rules::spared(&self.active, self.given_up.is_some())
    }

    fn fences(&self) -> HostList {
        // If the file cannot be read, no host is left out: a fenced host that answers is no danger.
        HostList::read(&self.folder.fenced()).unwrap_or_default()
    }

    /// Returns the reason why an attempt's leader counts as lost; `None` if it does not.
    fn leader_lost(&self, attempt: AttemptId) -> Option<String> {
        let name = &self.leader().name;
        let given_up = self.given_up.as_ref().filter(|(of, _)| *of == attempt);
        let is_fenced = || self.fences().has(name).then(|| format!("{name} is fenced"));
        given_up.map(|(_, reason)| reason.clone()).or_else(is_fenced)
    }

    /// Kills the followers of an attempt on the hosts that answer; the others fence themselves without a
    /// leader.
    fn kill_followers(&self, attempt: AttemptId, reason: String) -> AgentContact {
        let trial = self.trial.clone();
        self.ask_all(&self.active[1..], ANSWER_TIMEOUT, move |host| host.kill(&trial, attempt));
        AgentContact::GoneWithItsHost { host: self.leader().name.clone(), reason }
    }

    /// Kills a cancelled launch on all its hosts; returns the resulting error.
    fn abandon(&mut self, attempt: AttemptId, lenders: &[usize]) -> LaunchError {
        let all: Vec<usize> = self.active.iter().chain(lenders).copied().collect();
        all.iter().for_each(|host| self.hosts[*host].disconnect());
        self.cancel.reset();
        let trial = self.trial.clone();
        let killed = self.ask_all(&all, ANSWER_TIMEOUT, move |host| host.kill(&trial, attempt));
        let failed = killed.into_iter().find(|killed| *killed != Ok(true));
        match failed {
            None => LaunchError::Other("interrupted".into()),
            Some(Ok(_)) => LaunchError::Unknown("interrupted, and it cannot be killed".into()),
            Some(Err(reason)) => LaunchError::Unknown(format!("interrupted; {reason}")),
        }
    }

    /// Sends the recipe's folder of an order to the active hosts that lack it.
    fn put_workdir(&self, order: &AgentOrder) -> Result<(), LaunchError> {
        let digest = order.assignments.first().and_then(|assignment| assignment.workdir.clone());
        let Some(digest) = digest else { return Ok(()) };
        let snapshot = self.workdir.clone().filter(|snapshot| snapshot.digest() == digest);
        let put = move |host: &mut RemoteHost| match &snapshot {
            Some(snapshot) => host.put_workdir(snapshot, &|_| ()).map(drop),
            None if host.has_workdir(&digest)? => Ok(()),
            None => {
                Err("it lacks the recipe's folder as this trial uses it, and that has changed here since"
                    .into())
            }
        };
        let answers = self.ask_all(&self.active, LAUNCH_TIMEOUT, put);
        let failed = self.active.iter().zip(answers).find_map(|(host, answer)| Some((*host, answer.err()?)));
        failed.map_or(Ok(()), |(host, reason)| Err(LaunchError::because_of(self.name(host), &reason)))
    }

    /// Starts the agents of all active hosts and of the `lenders`; a lender may fail.
    fn lead(
        &self,
        order: &AgentOrder,
        ranks: &[Range<u32>],
        lenders: &[usize],
    ) -> Result<AgentCard, LaunchError> {
        let all: Vec<usize> = self.active.iter().chain(lenders).copied().collect();
        let hosts = u32::try_from(all.len()).map_err(|_| "too many hosts")?;
        let identities = agent_certificates(&order.trial, order.attempt, hosts)
            .map_err(|error| format!("certificates: {error}"))?;
        let order = &with_certificates(order, ranks)?;
        let mut seats = self.start_followers(order, ranks, &all, &identities);
        let lent = seats.split_off(self.active.len());
        let mut seats = seats.into_iter().collect::<Result<Vec<_>, LaunchError>>()?;
        seats.extend(lent.into_iter().flatten());
        let others = seats.iter().filter_map(|(seat, address)| {
            let name = self.name(all[seat.host as usize]).to_owned();
            let peer = PeerAddress { host: seat.host, name, address: address.clone()? };
            Some(OtherHost { peer, ranks: ranks.get(seat.host as usize).cloned().unwrap_or_default() })
        });
        let mut order =
            AgentOrder { others: others.collect(), seat: Some(seats[0].0.clone()), ..order.clone() };
        // The leader's host must not get the keys of other hosts' ranks.
        for assignment in order.assignments.iter_mut().skip(ranks[0].end as usize) {
            assignment.link = RankTransport::Alone;
        }
        let led = self.leader().ask(move |leader| Ok(leader.lead(order)));
        let name = self.leader().name.as_str();
        led.answer(LAUNCH_TIMEOUT).map_err(LaunchError::Unknown)?.map_err(|error| error.on(name))
    }
}

impl Launcher for ClusterLauncher {
    fn cancel(&self) -> CancellationToken {
        self.cancel.clone()
    }

    fn pool(&mut self) -> Option<&mut dyn HostPool> {
        Some(self)
    }

    fn launch(&mut self, order: &AgentOrder) -> Result<AgentCard, LaunchError> {
        let ranks = ranks_by_host(order, self.usable.len())?;
        self.active = self.usable[..ranks.len()].to_vec();
        self.given_up = None;
        self.launching(order.attempt)?;
        let lines: String = self.active.iter().map(|host| format!("{}\n", self.name(*host))).collect();
        let path = self.folder.remote_hosts_file();
        durable::atomic_write(&path, lines.as_bytes())
            .map_err(|error| format!("{}: {error}", path.display()))?;
        // Parts of the checkpoint may lie on hosts that this attempt does not use.
        let is_resumed = order.assignments.iter().any(|assignment| assignment.resume.is_some());
        let lends = is_resumed && self.shared.is_none();
        let lenders = if lends { self.usable[ranks.len()..].to_vec() } else { Vec::new() };
        let put = self.put_checkpoint(order).and_then(|()| self.put_workdir(order));
        let led = put.and_then(|()| self.lead(order, &ranks, &lenders));
        if led.is_ok() {
            self.launched(order.attempt);
        }
        if self.cancel.is_cancelled() && led.is_err() {
            return Err(self.abandon(order.attempt, &lenders));
        }
        // An attempt that may be alive is left alone: the next contact finds out. One that was refused may be that of
        // another controller.
        let is_superseded = self.claim.newer().is_some();
        if !is_superseded && led.as_ref().is_err_and(|error| !matches!(error, LaunchError::Unknown(_))) {
            // Followers without a leader end by themselves, but not at once.
            let (trial, attempt) = (self.trial.clone(), order.attempt);
            self.kill(attempt);
            self.ask_all(&lenders, ANSWER_TIMEOUT, move |host| host.kill(&trial, attempt));
        }
        led
    }

    /// Reaches the leader. One that does not answer may still be alive; then its followers are too, as none
    /// outlives it.
    fn reach(&mut self, attempt: AttemptId, from: u64) -> AgentContact {
        if let Some(reason) = self.leader_lost(attempt) {
            return self.kill_followers(attempt, reason);
        }
        let trial = self.trial.clone();
        let patience = self.leader().patience(ANSWER_TIMEOUT);
        let asked = self.leader().ask(move |host| host.reach(&trial, attempt, from));
        let reason = match asked.answer(patience) {
            Ok(reached) => return reached,
            Err(reason) => reason,
        };
        let trial = self.trial.clone();
        let is_alive = move |host: &mut RemoteHost| host.is_alive(&trial, attempt);
        let followers = self.ask_all(&self.active[1..], ANSWER_TIMEOUT, is_alive);
        if followers.contains(&Ok(false)) {
            return AgentContact::GoneWithItsHost { host: self.leader().name.clone(), reason };
        }
        let is_at_work = followers.contains(&Ok(true));
        // A suspect leader had little time to answer, and may only be slow.
        asked.answer(ANSWER_TIMEOUT).unwrap_or(AgentContact::Away { reason, is_at_work })
    }

    fn is_responsive(&mut self, attempt: AttemptId) -> bool {
        let trial = self.trial.clone();
        let asked = self.leader().ask(move |host| {
            let is_alive = host.is_alive(&trial, attempt)?;
            Ok(is_alive || host.kill(&trial, attempt).is_err())
        });
        asked.answer(REPEAT_ANSWER_TIMEOUT) == Ok(true)
    }

    fn spool_remainder(
        &mut self,
        attempt: AttemptId,
        from: u64,
    ) -> Result<Box<dyn Read + Send>, SpoolUnreadable> {
        if let Some(home) = &self.shared {
            // The leader's host may not be among the current ones.
            let known = files::read_to_string(&self.folder.remote_hosts_file()).unwrap_or_default();
            let leader = known.lines().next().unwrap_or_default();
            return LocalLauncher::new(&home.host(leader).trial(&self.trial)).spool_remainder(attempt, from);
        }
        if let Some(reason) = self.leader_lost(attempt) {
            return Err(SpoolUnreadable::Away(reason));
        }
        let trial = self.trial.clone();
        // Only the length of the spool is waited for here; its bytes arrive as they are read.
        let patience = self.leader().patience(ANSWER_TIMEOUT);
        let asked = self.leader().ask(move |host| host.spool_remainder(&trial, attempt, from, false));
        let leftover = asked.answer(patience).map_err(SpoolUnreadable::Away)?;
        Ok(Box::new(BufReader::new(leftover)))
    }

    fn kill(&mut self, attempt: AttemptId) -> bool {
        let trial = self.trial.clone();
        let killed = self.ask_all(&self.active, ANSWER_TIMEOUT, move |host| host.kill(&trial, attempt));
        killed.iter().all(|gone| *gone == Ok(true))
    }
}
