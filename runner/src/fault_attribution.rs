//! Attribution of failures to hosts, without a clock, a thread or a connection: the failures of an attempt lead to a strike,
//! those of a launch to a host. The driver and the agents follow these rules, and so does the simulator.

use crate::control_protocol::{LaunchError, PeerAddress};
use crate::fact::AttemptEnd;
use crate::machine::{Blame, more_severe};
use crate::strikes::{Strike, StrikeCause};
use dtrain_protocol::{Assignment, Event, Failure, Rank, StampedEvent};
use std::fmt::Display;

/// Failures that the ranks of the open attempt reported.
#[derive(Default)]
pub(crate) struct FailureReports {
    /// Host of each rank; empty on one machine, or if another controller launched the attempt.
    hosts: Vec<String>,
    /// The most severe failure, with the first rank that reported it.
    gravest: Option<(Rank, Failure)>,
}

impl FailureReports {
    /// Creates empty reports for an attempt that is about to be launched on the hosts `names`.
    pub(crate) fn of(assignments: &[Assignment], names: &[String]) -> Self {
        let host = |assignment: &Assignment| names.get(assignment.placement.host as usize).cloned();
        Self::on(assignments.iter().filter_map(host))
    }

    /// Creates empty reports for an attempt, given the host of each rank.
    pub(crate) fn on(hosts: impl IntoIterator<Item = String>) -> Self {
        Self { hosts: hosts.into_iter().collect(), gravest: None }
    }

    /// Records the failure in an event, if it is more severe than the known one.
    pub(crate) fn observe(&mut self, stamped: &StampedEvent) {
        let Event::Failed(failure) = &stamped.event else { return };
        let known = self.gravest.take();
        let is_graver = known.as_ref().is_none_or(|(_, known)| {
            known != failure && more_severe(Some(known.clone()), failure.clone()) == *failure
        });
        self.gravest = if is_graver { Some((stamped.rank, failure.clone())) } else { known };
    }

    /// Returns the host of a rank, if known.
    pub(crate) fn host(&self, rank: Rank) -> Option<String> {
        self.hosts.get(rank.0 as usize).cloned()
    }

    /// Adds the name of the leader's host to the end of an attempt because of it, since the leader does not know it.
    pub(crate) fn with_leader(&self, mut ended: AttemptEnd) -> AttemptEnd {
        if let AttemptEnd::Lost(
            Failure::HostLeft { host: host @ None, .. } | Failure::Storage { host: host @ None, .. },
        ) = &mut ended
        {
            *host = self.hosts.first().cloned();
        }
        ended
    }

    /// Returns the strike for an attempt lost to `failure`; `None` if it is no host's fault. With `is_stopping`, the user
    /// had asked for the end of the attempt.
    pub(crate) fn strike_for(&self, failure: &Failure, is_stopping: bool, at_ms: u64) -> Option<Strike> {
        if is_stopping {
            return None;
        }
        let said_by = self.gravest.as_ref().filter(|(_, gravest)| gravest == failure).map(|(rank, _)| *rank);
        let there = said_by.and_then(|rank| self.host(rank));
        let (host, partner, cause) = match failure {
            Failure::HostLost { host, .. } => (Some(host.clone()), None, StrikeCause::Lost),
            Failure::Infrastructure { host, .. } => (host.clone(), None, StrikeCause::Launch),
            Failure::PeerLost { peer, .. } => {
                let other =
                    peer.and_then(|peer| self.host(peer)).filter(|other| there.as_ref() != Some(other));
                let host = there.filter(|_| other.is_some());
                (host, other, StrikeCause::Link)
            }
            Failure::Stuck { peer, .. } => (self.host(*peer), None, StrikeCause::Rank),
            Failure::Exited { .. } | Failure::Command { .. } => {
                let is_killed = Blame::of(failure) == Blame::Machines;
                (there, None, if is_killed { StrikeCause::Killed } else { StrikeCause::Rank })
            }
            Failure::Other(_) => (there, None, StrikeCause::Rank),
            Failure::DataOn { host, .. } => (host.clone().or(there), None, StrikeCause::Data),
            Failure::Storage { host, .. } => (host.clone().or(there), None, StrikeCause::Storage),
            Failure::OutOfMemory { .. }
            | Failure::NotFinite { .. }
            | Failure::CorruptCheckpoint { .. }
            | Failure::OtherTraining { .. }
            | Failure::Data(_)
            | Failure::HostLeft { .. }
            | Failure::Regrouped
            | Failure::Unsaved { .. } => (None, None, StrikeCause::Rank),
        };
        Some(Strike { host: host?, partner, cause, at_ms, detail: failure.to_string() })
    }
}

/// Returns the failure of a launch. On a single machine the user has to fix its cause; of several hosts
/// another one may be used.
pub(crate) fn launch_failure(not_launched: &LaunchError) -> Failure {
    let detail = format!("the attempt could not be launched: {not_launched}");
    match not_launched {
        LaunchError::OnHost { host, .. } => Failure::Infrastructure { host: Some(host.clone()), detail },
        LaunchError::Unknown(_) | LaunchError::Checkpoint(_) => {
            Failure::Infrastructure { host: None, detail }
        }
        LaunchError::Other(_) => Failure::Other(detail),
    }
}

/// Returns the failure of a host that can fetch a file from none of its `holders`. The fault is that of the only holder;
/// with several of them it is that of the host.
pub(crate) fn unfetched(holders: &[PeerAddress], reason: String) -> LaunchError {
    match holders {
        [only] => LaunchError::OnHost { host: only.name.clone(), reason },
        _ => LaunchError::Other(reason),
    }
}

/// Returns the failure of a launch whose leader cannot reach these of the `needed` hosts. The fault is theirs, unless the
/// leader reaches none of several.
pub(crate) fn unreached_hosts(
    needed: usize,
    unreached: &[(&PeerAddress, impl Display)],
) -> Option<LaunchError> {
    let (peer, error) = unreached.first()?;
    if needed > 1 && unreached.len() == needed {
        let reason =
            format!("the leader reaches none of {needed} hosts; {} at {}: {error}", peer.name, peer.address);
        return Some(LaunchError::Other(reason));
    }
    let reason = format!("the leader cannot connect to {}: {error}", peer.address);
    Some(LaunchError::OnHost { host: peer.name.clone(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::AttemptId;

    /// Returns the reports of four ranks, two on each host.
    fn reports(said: &[(u32, Failure)]) -> FailureReports {
        let hosts = ["a", "a", "b", "b"].map(str::to_owned).to_vec();
        let mut reports = FailureReports { hosts, gravest: None };
        for (rank, failure) in said {
            let event = Event::Failed(failure.clone());
            reports.observe(&StampedEvent {
                attempt: AttemptId(1),
                rank: Rank(*rank),
                sequence: 0,
                at_ms: 0,
                event,
            });
        }
        reports
    }

    fn silent(peer: u32) -> Failure {
        Failure::PeerLost { peer: Some(Rank(peer)), detail: "silent".into() }
    }

    fn held(said: &[(u32, Failure)], ended: &Failure) -> Option<(String, Option<String>, StrikeCause)> {
        reports(said).strike_for(ended, false, 7).map(|strike| (strike.host, strike.partner, strike.cause))
    }

    #[test]
    fn the_first_who_does_not_hear_another_is_held_against_both_hosts() {
        let said = [(1, silent(2)), (3, silent(1)), (0, silent(2))];
        assert_eq!(held(&said, &silent(2)), Some(("a".into(), Some("b".into()), StrikeCause::Link)));
        assert_eq!(held(&[(1, silent(0))], &silent(0)), None, "on one host there is no cable");
        assert_eq!(held(&[], &silent(2)), None, "the reporting host is unknown");
    }

    #[test]
    fn a_failure_is_held_against_the_host_it_is_of() {
        let exited = |signal| Failure::Exited { code: None, signal: Some(signal) };
        let said = [(0, silent(2)), (2, exited(9)), (1, silent(2))];
        assert_eq!(held(&said, &exited(9)), Some(("b".into(), None, StrikeCause::Killed)));
        assert_eq!(held(&[(0, exited(11))], &exited(11)), Some(("a".into(), None, StrikeCause::Rank)));
        let stuck = Failure::Stuck { peer: Rank(3), detail: "idle".into() };
        assert_eq!(held(&[(0, stuck.clone())], &stuck), Some(("b".into(), None, StrikeCause::Rank)));
        let lost = Failure::HostLost { host: "c".into(), detail: "silent".into() };
        assert_eq!(held(&[], &lost), Some(("c".into(), None, StrikeCause::Lost)));
        let data = |host: Option<&str>| Failure::DataOn {
            host: host.map(str::to_owned),
            detail: "no such file".into(),
        };
        let own = data(None);
        assert_eq!(
            held(&[(1, own.clone())], &own),
            Some(("a".into(), None, StrikeCause::Data)),
            "the leader's"
        );
        assert_eq!(held(&[], &data(Some("b"))), Some(("b".into(), None, StrikeCause::Data)));
        assert_eq!(reports(&[]).strike_for(&lost, true, 7), None, "the user stops it");
        let memory = Failure::OutOfMemory { detail: "8 GiB".into() };
        assert_eq!(held(&[(0, memory.clone())], &memory), None, "it would run out on any other");
    }

    #[test]
    fn the_only_host_that_has_a_file_is_to_blame_if_it_does_not_give_it() {
        let peer = |host: u32| PeerAddress { host, name: format!("node{host}"), address: String::new() };
        let of_one = LaunchError::OnHost { host: "node1".into(), reason: "timed out".into() };
        assert_eq!(unfetched(&[peer(1)], "timed out".into()), of_one);
        assert_eq!(unfetched(&[peer(1), peer(2)], "both".into()), LaunchError::Other("both".into()));
    }

    #[test]
    fn the_host_that_cannot_be_reached_is_to_blame_unless_no_host_is_reached() {
        let peer =
            |host: u32| PeerAddress { host, name: format!("node{host}"), address: "10.0.0.9:7000".into() };
        let peers: Vec<PeerAddress> = (0..4).map(peer).collect();
        let failed = |needed, unreached: &[usize]| {
            let unreached: Vec<_> = unreached.iter().map(|host| (&peers[*host], "timed out")).collect();
            unreached_hosts(needed, &unreached)
        };
        assert_eq!(failed(3, &[]), None);
        let blamed = |failure: Option<LaunchError>| match failure {
            Some(LaunchError::OnHost { host, .. }) => Some(host),
            _ => None,
        };
        assert_eq!(blamed(failed(3, &[2])), Some("node2".into()));
        assert_eq!(blamed(failed(1, &[1])), Some("node1".into()), "it is one against one");
        assert!(
            matches!(failed(3, &[1, 2, 3]), Some(LaunchError::Other(_))),
            "the leader, which its controller names"
        );
    }
}
