//! The hosts of an attempt: their heartbeats, and what follows when one is lost or leaves.

use super::{AttemptPhase, HOST_LOSS_GRACE_MS, HostState, LEADER_HOST, Leader};
use crate::agent::peers::heartbeat::Heartbeat;
use crate::control_protocol::{LaunchError, STOP_GRACE_MS};
use dtrain_protocol::{Event, Failure, LeaveCause, Rank, StopReason};

/// Number of times in a row that a rank fails to save before the attempt continues without it.
const FAILED_SAVES: u32 = 2;

impl Leader {
    /// Counts a failure of a rank to save its part of a checkpoint. A host whose rank fails again is of no more use: each
    /// part is needed. With a folder that all hosts share, or without another host, training goes on and waits for room.
    pub(super) fn save_failed(&mut self, rank: Rank, reason: &str) {
        let count = self.failed_saves.entry(rank).or_insert(0);
        *count += 1;
        let is_first = *count < FAILED_SAVES;
        let is_alone = self.hosts_with_ranks().len() < 2 || !self.settings.gathers;
        if is_first || is_alone || self.cause.is_some() {
            return;
        }
        let host = self.host_of(rank);
        let known = self.hosts.get(&host).filter(|_| host != LEADER_HOST);
        let host = known.map(|host| host.peer.name.clone());
        self.event(rank, Event::Failed(Failure::Storage { host, detail: reason.to_owned() }));
        // No rank has anything to end: the steps since the last checkpoint are computed again.
        self.kill_by(HOST_LOSS_GRACE_MS);
    }

    /// Handles the loss of a host and its ranks.
    pub(super) fn host_lost(&mut self, host: u32, reason: &str) {
        let Some(lost) = self.hosts.get_mut(&host).filter(|host| !host.is_lost) else { return };
        lost.is_lost = true;
        let (name, ranks) = (lost.peer.name.clone(), lost.ranks.clone());
        if let AttemptPhase::Launching(_) = self.phase {
            return self.host_lost_during_launch(host, &name, reason);
        }
        if let AttemptPhase::Sealing(_) = self.phase {
            return self.mirror_sealed(host);
        }
        let mut first = None;
        for rank in ranks.map(Rank) {
            if self.rank(rank).lose() {
                first = first.or(Some(rank));
            }
        }
        self.abandon_commits(&format!("{name} was lost before it was committed: {reason}"));
        if let Some(rank) = first {
            let detail = reason.to_owned();
            let failure = match self.leaving.get(&host) {
                Some(cause) => Failure::HostLeft { host: Some(name), cause: *cause },
                None => Failure::HostLost { host: name, detail },
            };
            self.event(rank, Event::Failed(failure));
            self.kill_by(HOST_LOSS_GRACE_MS);
        }
    }

    pub(super) fn heartbeat(&mut self, host: u32, heartbeat: Heartbeat) {
        let now = self.now.moment;
        let Some(host) = self.hosts.get_mut(&host) else { return };
        if heartbeat.turns != host.heartbeat.turns {
            host.turned_at = now;
        }
        if heartbeat.work != host.heartbeat.work {
            host.worked_at = now;
        }
        host.heartbeat = heartbeat;
    }

    /// Handles the system's request that the agent of a host ends, such as at a reboot, or the notice that the host will
    /// be taken away: the ranks finish their step, save and stop.
    pub(super) fn host_leaves(&mut self, host: u32, cause: LeaveCause) {
        match self.phase {
            // It leaves once the ranks run.
            AttemptPhase::Launching(_) if cause == LeaveCause::Notice => {
                self.leaving.insert(host, cause);
            }
            AttemptPhase::Launching(_) => {
                let reason = "the system asked its agent to end".to_owned();
                let known = self.hosts.get(&host).filter(|_| host != LEADER_HOST);
                self.refuse(match known.map(|host| host.peer.name.clone()) {
                    Some(host) => LaunchError::OnHost { host, reason },
                    None => reason.into(),
                });
            }
            AttemptPhase::Running => {
                self.leaving.entry(host).or_insert(cause);
                self.stop(StopReason::Ordered);
                // How much time a notice leaves is not known. If it ends too early, the host is lost, or its agent is
                // asked to end.
                if cause == LeaveCause::Termination {
                    self.kill_by(STOP_GRACE_MS);
                }
            }
            AttemptPhase::Sealing(_) | AttemptPhase::Over => {}
        }
    }

    /// Ends a running attempt, so that the next one runs on other hosts.
    pub(super) fn regroup(&mut self) {
        if self.phase == AttemptPhase::Running {
            self.is_regrouped = true;
            self.stop(StopReason::Ordered);
            self.kill_by(STOP_GRACE_MS);
        }
    }

    /// Returns `true` if the attempt ends because its hosts change, and the trial continues: on the hosts that stay, or on
    /// others that its controller reaches over SSH, now or later.
    pub(super) fn trial_continues(&self) -> bool {
        let stays =
            |(index, host): (&u32, &HostState)| !host.only_lends() && !self.leaving.contains_key(index);
        let changes = self.is_regrouped || !self.leaving.is_empty();
        // A machine alone has no controller that could use another one; an allocation of Slurm ends as a whole.
        let may_have_others = self.settings.gathers;
        changes && !self.is_stopped_by_user && (may_have_others || self.hosts.iter().any(stays))
    }

    /// Returns the index of the host of a rank.
    pub(super) fn host_of(&self, rank: Rank) -> u32 {
        let has = |host: &&HostState| host.ranks.contains(&rank.0);
        self.hosts.values().find(has).map_or(LEADER_HOST, |host| host.peer.host)
    }

    /// Adds the host to a data failure if there are several hosts: the data may be usable on another.
    pub(super) fn with_host(&self, rank: Rank, event: Event) -> Event {
        match event {
            Event::Failed(Failure::Data(detail)) if self.hosts_with_ranks().len() > 1 => {
                let host = self.hosts.get(&self.host_of(rank)).map(|host| &host.peer);
                let host = host.filter(|peer| peer.host != LEADER_HOST).map(|peer| peer.name.clone());
                Event::Failed(Failure::DataOn { host, detail })
            }
            event => event,
        }
    }
}
