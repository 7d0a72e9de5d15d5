//! The hosts of a cluster as a pool: which of them answer, what they still run, and who claims the trial on them.

use super::super::host_list::HostList;
use super::super::host_query::HostQuery;
use super::super::relay::RemoteHost;
use super::super::timeouts::{ANSWER_TIMEOUT, REPEAT_ANSWER_TIMEOUT};
use super::super::{AvailableHosts, FencedAgent, FencingReport, FinalFencing, HostPool, IdleHost};
use super::{ClusterLauncher, PolledHost};
use crate::controller_claim::ControllerClaim;
use dtrain_protocol::AttemptId;
use std::io::{self, BufReader, Read};

impl HostPool for ClusterLauncher {
    fn available_hosts(&mut self) -> AvailableHosts {
        let fences = self.fences();
        let (fenced, all): (Vec<usize>, Vec<usize>) =
            (0..self.hosts.len()).partition(|host| fences.has(self.name(*host)));
        let patience = if self.usable.is_empty() { ANSWER_TIMEOUT } else { REPEAT_ANSWER_TIMEOUT };
        let answers = self.ask_all(&all, patience, RemoteHost::address);
        let answering = all.into_iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        self.usable = answering.map(|(host, _)| host).collect();
        let hosts = u32::try_from(self.usable.len()).unwrap_or(u32::MAX);
        let fenced = fenced.into_iter().map(|host| format!("{}: it is fenced", self.name(host)));
        let names = self.usable.iter().map(|host| self.name(*host).to_owned()).collect();
        AvailableHosts {
            hosts,
            names,
            away: fenced.chain(answers.into_iter().filter_map(Result::err)).collect(),
        }
    }

    fn attempt_hosts(&self) -> Vec<String> {
        self.active.iter().map(|host| self.name(*host).to_owned()).collect()
    }

    fn idle_hosts(&self) -> Vec<IdleHost> {
        self.fencing.idle_hosts(&self.hosts)
    }

    fn deprioritize(&mut self, hosts: &[String]) {
        let place = |host: &usize| hosts.iter().position(|last| last == self.name(*host));
        let mut usable = self.usable.clone();
        usable.sort_by_key(place);
        self.usable = usable;
    }

    fn suspect(&mut self, host: &str) {
        self.hosts.iter().filter(|known| known.name == host).for_each(PolledHost::suspect);
    }

    fn give_up(&mut self, attempt: AttemptId) -> bool {
        let reason = format!("{} was given up", self.leader().name);
        self.given_up = Some((attempt, reason));
        true
    }

    fn mirrored_spool(&mut self, attempt: AttemptId, from: u64) -> Option<Box<dyn Read + Send>> {
        let mirror = self.active.get(1).filter(|_| self.shared.is_none())?;
        let trial = self.trial.clone();
        let asked = self.hosts[*mirror].ask(move |host| host.spool_remainder(&trial, attempt, from, true));
        let mirrored = asked.answer(ANSWER_TIMEOUT).ok()?;
        Some(Box::new(BufReader::new(mirrored)))
    }

    fn fence_returned(&mut self, before: AttemptId) -> Vec<FencedAgent> {
        if self.shared.is_some() {
            return Vec::new();
        }
        let spared = self.spared().to_vec();
        self.fencing.ask_others(&self.trial, before, &self.hosts, &spared);
        let (fenced, has_changed) = self.fencing.take_fenced(&self.hosts, &mut self.attempt_hosts);
        if has_changed {
            // A host that stays in the list is only asked once more.
            drop(self.store_attempt_hosts());
        }
        fenced
    }

    fn fence_at_end(&mut self, end: &FinalFencing) -> FencingReport {
        let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let ask = |(host, before): (usize, AttemptId)| {
            let trial = self.trial.clone();
            (host, before, self.hosts[host].ask(move |host| host.fence(&trial, before)))
        };
        let asked = self.attempt_hosts.to_ask_at_end(&names, self.spared(), end);
        let asked: Vec<(usize, AttemptId, HostQuery<_>)> = asked.into_iter().map(ask).collect();
        let (mut report, mut has_changed) = (FencingReport::default(), false);
        for (host, before, question) in asked {
            let (name, answer) = (self.name(host).to_owned(), question.answer(ANSWER_TIMEOUT));
            has_changed |= answer.is_ok() && self.attempt_hosts.answered(&name, before);
            report.add(name, answer);
        }
        for host in self.spared().to_vec() {
            // The last attempt ends by itself there, or the host was just asked.
            let name = &self.hosts[host].name;
            if !report.unanswered.contains(name) {
                has_changed |= self.attempt_hosts.answered(name, AttemptId(end.last.0 + 1));
            }
        }
        if has_changed {
            drop(self.store_attempt_hosts());
        }
        report
    }

    fn claim(&mut self) {
        let trial = self.trial.clone();
        let newest = move |host: &mut RemoteHost| host.newest_claim(&trial);
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        let answers = self.ask_all(&all, ANSWER_TIMEOUT, newest.clone());
        // Hosts that do not answer may have an earlier claim of this machine.
        let known = ControllerClaim::read(&self.folder).unwrap_or_default();
        let claim = ControllerClaim::newer_than(answers.iter().flatten().flatten().cloned().chain(known));
        // On a full disk, the claims of the hosts count alone.
        drop(claim.store(&self.folder));
        self.claim.set(claim);
        let answering: Vec<usize> = all
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_ok())
            .map(|(host, _)| host)
            .collect();
        self.ask_all(&answering, REPEAT_ANSWER_TIMEOUT, newest);
    }

    fn poll_claims(&mut self) {
        self.claim_poll.ask(&self.trial, &self.hosts, &self.active);
    }

    fn ask_for_claims(&mut self) {
        let trial = self.trial.clone();
        let is_asked = |host: &usize| !self.hosts[*host].is_suspect();
        let asked: Vec<usize> = self.active.iter().copied().filter(is_asked).collect();
        self.ask_all(&asked, REPEAT_ANSWER_TIMEOUT, move |host| host.newest_claim(&trial));
    }

    fn newer_claim(&self) -> Option<ControllerClaim> {
        self.claim.newer()
    }
}

impl ClusterLauncher {
    /// Notes durably that an attempt is about to be launched on the active hosts. A shared folder shows what runs, so
    /// that no host is asked.
    pub(super) fn launching(&mut self, attempt: AttemptId) -> Result<(), String> {
        let mut has_changed = false;
        for host in self.active.iter().filter(|_| self.shared.is_none()) {
            has_changed |= self.attempt_hosts.launching(attempt, &self.hosts[*host].name);
        }
        let path = self.folder.unsettled_hosts();
        if has_changed {
            self.store_attempt_hosts().map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Notes that the active hosts have launched an attempt, and thereby ended earlier ones.
    pub(super) fn launched(&mut self, attempt: AttemptId) {
        for host in &self.active {
            self.attempt_hosts.answered(&self.hosts[*host].name, attempt);
        }
    }

    fn store_attempt_hosts(&self) -> io::Result<()> {
        HostList::write(&self.folder.unsettled_hosts(), self.attempt_hosts.names())
    }
}
