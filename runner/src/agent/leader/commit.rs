//! Two-phase commit of checkpoints: every host prepares, then every host commits, the leader's last.

use super::super::messages::LeaderMessage;
use super::{AttemptEffect, LEADER_HOST, Leader, WORK_STALL_MS};
use crate::checkpoints::commit;
use crate::control_protocol::PeerAddress;
use crate::machine::Millis;
use crate::spool::SpoolRecord;
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{FileEntry, Rank, SavedFile, StepId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A checkpoint that all ranks saved and that is not yet committed on all hosts.
#[derive(Clone, Debug)]
pub(super) struct PendingCommit {
    phase: CommitPhase,
    /// Hosts that have not answered in the current phase.
    awaited: BTreeSet<u32>,
    /// Time at which the current phase began.
    since: Millis,
}

/// The phase of a commit, by the last request to the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitPhase {
    Prepare,
    /// The hosts other than the leader's commit the checkpoint.
    Commit,
    /// The leader's own host commits the checkpoint.
    CommitOwn,
}

impl Leader {
    /// Records that a rank saved its part, or failed (`None`). Once all ranks have reported, commits the
    /// checkpoint, or discards it if one failed.
    pub(super) fn rank_saved(&mut self, step: StepId, rank: Rank, files: Option<Vec<SavedFile>>) {
        self.saved.entry(step).or_default().insert(rank, files);
        if self.saved.get(&step).is_none_or(|saved| saved.len() < self.ranks.len()) {
            return;
        }
        // Older incomplete checkpoints stay incomplete: every rank is past them.
        let parts = self.saved.remove(&step).unwrap_or_default();
        self.saved.retain(|other, _| *other > step);
        if parts.values().any(Option::is_none) {
            let unsaved = self.ranks.iter().position(|rank| rank.unsaved.is_some());
            let reason = unsaved.and_then(|rank| {
                self.ranks[rank].unsaved.take().map(|reason| format!("rank {rank} did not save: {reason}"))
            });
            return self.abandon(step, reason.unwrap_or_else(|| "a rank did not save".to_owned()));
        }
        if let Some(lost) = self.hosts.values().find(|host| host.is_lost && !host.only_lends()) {
            let reason = format!("{} was lost, and what its ranks saved with it", lost.peer.name);
            return self.abandon(step, reason);
        }
        let of = |(rank, files): (Rank, Option<Vec<SavedFile>>)| {
            files.unwrap_or_default().into_iter().map(move |file| (rank, file))
        };
        let saved: Vec<(Rank, SavedFile)> = parts.into_iter().flat_map(of).collect();
        let files = saved.iter().map(|(_, file)| file.clone()).collect();
        match commit::manifest_contents(&self.settings.first, step, files) {
            Ok(manifest) => self.prepare(step, &manifest.into(), &saved),
            Err(reason) => self.abandon(step, reason),
        }
    }

    /// Asks all hosts to prepare a checkpoint; each also copies the files of the host before it.
    fn prepare(&mut self, step: StepId, manifest: &Arc<str>, saved: &[(Rank, SavedFile)]) {
        let hosts = self.committing_hosts();
        let mut written: BTreeMap<u32, Vec<FileEntry>> = BTreeMap::new();
        let mut of_rank = saved.iter().peekable();
        for host in self.hosts.values() {
            while let Some((_, saved)) = of_rank.next_if(|(rank, _)| host.ranks.contains(&rank.0)) {
                written.entry(host.peer.host).or_default().push(saved.file.clone());
            }
        }
        let before = hosts.iter().copied().cycle().skip(hosts.len() - 1);
        let before: Vec<(u32, u32)> = hosts.iter().copied().zip(before).collect();
        for (host, before) in before {
            let files =
                if host == before { Vec::new() } else { written.get(&before).cloned().unwrap_or_default() };
            let peer = self.hosts[&before].peer.clone();
            let with = |file: FileEntry| -> (FileEntry, Vec<PeerAddress>) { (file, vec![peer.clone()]) };
            let copies =
                if self.settings.gathers { files.into_iter().map(with).collect() } else { Vec::new() };
            self.ask(host, LeaderMessage::Prepare { step, manifest: Arc::clone(manifest), copies });
        }
        self.enter_phase(step, CommitPhase::Prepare, hosts.into_iter().collect());
    }

    /// Returns the hosts that keep checkpoints: the leader's alone if all hosts share a folder.
    fn committing_hosts(&self) -> Vec<u32> {
        let keeps = |(index, host): &(&u32, &super::HostState)| {
            !host.only_lends() && !host.is_lost && (self.settings.gathers || **index == LEADER_HOST)
        };
        self.hosts.iter().filter(keeps).map(|(index, _)| *index).collect()
    }

    fn enter_phase(&mut self, step: StepId, phase: CommitPhase, awaited: BTreeSet<u32>) {
        self.commits.insert(step, PendingCommit { phase, awaited, since: self.now.moment });
    }

    /// Records the result of `host` preparing the checkpoint of `step`.
    pub(super) fn prepared(&mut self, step: StepId, host: u32, outcome: Result<(), String>) {
        if !self.record_answer(step, host, &[CommitPhase::Prepare], outcome) {
            return;
        }
        let others: BTreeSet<u32> =
            self.committing_hosts().into_iter().filter(|host| *host != LEADER_HOST).collect();
        for host in &others {
            self.ask(*host, LeaderMessage::Commit { step });
        }
        if others.is_empty() {
            return self.commit_own(step);
        }
        self.enter_phase(step, CommitPhase::Commit, others);
    }

    fn commit_own(&mut self, step: StepId) {
        self.ask(LEADER_HOST, LeaderMessage::Commit { step });
        self.enter_phase(step, CommitPhase::CommitOwn, BTreeSet::from([LEADER_HOST]));
    }

    /// Records the result of `host` committing the checkpoint of `step`.
    pub(super) fn committed(&mut self, step: StepId, host: u32, outcome: Result<(), String>) {
        let is_own = self.commits.get(&step).is_some_and(|commit| commit.phase == CommitPhase::CommitOwn);
        if !self.record_answer(step, host, &[CommitPhase::Commit, CommitPhase::CommitOwn], outcome) {
            return;
        }
        if !is_own {
            return self.commit_own(step);
        }
        self.commits.remove(&step);
        self.failed_saves.clear();
        let attempt = self.settings.attempt;
        let folder = self.settings.checkpoints.join(folder_name(step, attempt));
        self.effects.push(AttemptEffect::Spool(SpoolRecord::Committed { attempt, step, folder }));
        let keep = self.settings.keep;
        for host in self.committing_hosts() {
            self.ask(host, LeaderMessage::Retain { keep });
        }
    }

    /// Records a host's answer; returns `true` if it was the last of its phase.
    fn record_answer(
        &mut self,
        step: StepId,
        host: u32,
        phases: &[CommitPhase],
        outcome: Result<(), String>,
    ) -> bool {
        let Some(commit) = self.commits.get_mut(&step).filter(|commit| phases.contains(&commit.phase)) else {
            return false;
        };
        let is_answer = commit.awaited.remove(&host);
        let is_last = is_answer && commit.awaited.is_empty();
        match outcome {
            Ok(()) => is_last,
            Err(reason) => {
                let name = self.hosts.get(&host).map_or_else(String::new, |host| host.peer.name.clone());
                self.abandon(step, format!("{name}: {reason}"));
                false
            }
        }
    }

    /// Gives up a checkpoint, and discards its files on all hosts.
    fn abandon(&mut self, step: StepId, reason: String) {
        self.commits.remove(&step);
        for host in self.committing_hosts() {
            self.ask(host, LeaderMessage::Discard { step });
        }
        let attempt = self.settings.attempt;
        self.effects.push(AttemptEffect::Spool(SpoolRecord::CommitFailed { attempt, step, reason }));
    }

    /// Gives up all pending checkpoints.
    pub(super) fn abandon_commits(&mut self, reason: &str) {
        let attempt = self.settings.attempt;
        for step in std::mem::take(&mut self.commits).into_keys() {
            let reason = reason.to_owned();
            self.effects.push(AttemptEffect::Spool(SpoolRecord::CommitFailed { attempt, step, reason }));
        }
    }

    /// Counts hosts as lost whose work on a checkpoint makes no progress; if it is the leader's own host,
    /// gives up the checkpoint.
    pub(super) fn check_commit_timeouts(&mut self) {
        let now = self.now.moment;
        let mut stuck = None;
        for (step, commit) in &self.commits {
            let is_stuck = |host: &&u32| {
                let worked_at = self.hosts.get(host).map_or(commit.since, |host| host.worked_at);
                now >= worked_at.max(commit.since).after(WORK_STALL_MS)
            };
            stuck = stuck.or(commit.awaited.iter().find(is_stuck).map(|host| (*step, *host)));
        }
        let Some((step, host)) = stuck else { return };
        let words =
            format!("its work on the checkpoint of step {step} stood still for {} s", WORK_STALL_MS / 1000);
        if host == LEADER_HOST {
            self.abandon(step, words);
        } else {
            self.host_lost(host, &words);
        }
    }
}
