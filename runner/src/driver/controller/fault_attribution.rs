//! Fault attribution: strikes against the hosts of an attempt, and the hosts that the next one leaves out.

use super::TrialController;
use crate::driver::DriveError;
use crate::fact::AttemptEnd;
use crate::launch::AvailableHosts;
use crate::machine::{Blame, more_severe};
use crate::strikes::{ExcludedHost, Strike, StrikeCause, excluded_hosts, hosts_to_exclude};
use crate::trial_event::{ControllerStatus, TrialEvent};
use dtrain_protocol::{Assignment, Event, Failure, LeaveCause, Rank, StampedEvent};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds for which a host that left is not used. A host that shuts down answers for some of them.
const LEFT_MS: u64 = 60_000;

/// Milliseconds for which a host that gave notice is not used. Clouds give it up to two minutes before they take a
/// machine.
const NOTICED_MS: u64 = 300_000;

/// Failures that the ranks of the open attempt reported.
#[derive(Default)]
pub(super) struct FailureReports {
    /// Host of each rank; empty on one machine, or if another controller launched the attempt.
    hosts: Vec<String>,
    /// The most severe failure, with the first rank that reported it.
    gravest: Option<(Rank, Failure)>,
}

impl FailureReports {
    /// Creates empty reports for an attempt that is about to be launched on the hosts `names`.
    pub(super) fn of(assignments: &[Assignment], names: &[String]) -> Self {
        let host = |assignment: &Assignment| names.get(assignment.placement.host as usize).cloned();
        Self { hosts: assignments.iter().filter_map(host).collect(), gravest: None }
    }

    /// Records the failure in an event, if it is more severe than the known one.
    pub(super) fn observe(&mut self, stamped: &StampedEvent) {
        let Event::Failed(failure) = &stamped.event else { return };
        let known = self.gravest.take();
        let is_graver = known.as_ref().is_none_or(|(_, known)| {
            known != failure && more_severe(Some(known.clone()), failure.clone()) == *failure
        });
        self.gravest = if is_graver { Some((stamped.rank, failure.clone())) } else { known };
    }

    /// Returns the host of a rank, if known.
    pub(super) fn host(&self, rank: Rank) -> Option<String> {
        self.hosts.get(rank.0 as usize).cloned()
    }

    /// Adds the name of the leader's host to the end of an attempt because of it, since the leader does not know it.
    pub(super) fn with_leader(&self, mut ended: AttemptEnd) -> AttemptEnd {
        if let AttemptEnd::Lost(
            Failure::HostLeft { host: host @ None, .. } | Failure::Storage { host: host @ None, .. },
        ) = &mut ended
        {
            *host = self.hosts.first().cloned();
        }
        ended
    }

    /// Returns the strike for an attempt lost to `failure`; `None` if it is no host's fault.
    fn strike_for(&self, failure: &Failure, at_ms: u64) -> Option<Strike> {
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

/// The hosts of the next attempt.
pub(super) struct ChosenHosts {
    /// Names of the hosts that answer, in the order in which the attempt uses them.
    pub(super) names: Vec<String>,
    /// Hosts among the last of them that are left out if possible, worst first.
    pub(super) left_out: Vec<ExcludedHost>,
    /// The last of them, which are drained and take no part.
    pub(super) drained: Vec<String>,
}

impl TrialController<'_> {
    /// Adds a strike for a lost attempt, which is stored together with the loss, and waits less for a host that is gone.
    pub(super) fn attribute(&mut self, failure: &Failure) {
        self.news.hosts.strikes.extend(self.reports.strike_for(failure, now_ms()));
        match failure {
            Failure::HostLost { host, .. } => self.suspect(host),
            Failure::HostLeft { host: Some(host), cause } => self.host_left(host.clone(), *cause, failure),
            _ => {}
        }
    }

    /// Shortens the waits for a host that may be gone.
    pub(super) fn suspect(&mut self, host: &str) {
        if let Some(pool) = self.launcher.as_mut().expect("no wait is under way").pool() {
            pool.suspect(host);
        }
    }

    /// Leaves a host out of the next attempts for a while: it may be about to shut down, and answer until then.
    fn host_left(&mut self, host: String, cause: LeaveCause, failure: &Failure) {
        self.suspect(&host);
        let until_ms = now_ms()
            + match cause {
                LeaveCause::Termination => LEFT_MS,
                LeaveCause::Notice => NOTICED_MS,
            };
        self.left.push(ExcludedHost {
            host,
            cause: StrikeCause::Left,
            until_ms,
            detail: failure.to_string(),
        });
    }

    /// Adds a strike against the host of a straggler.
    pub(super) fn add_slow_strike(&mut self, rank: Rank, detail: String) {
        let (cause, at_ms) = (StrikeCause::Slow, now_ms());
        let strike = self.reports.host(rank).map(|host| Strike { host, partner: None, cause, at_ms, detail });
        self.news.hosts.strikes.extend(strike);
    }

    /// Chooses the hosts of the next attempt among those that answer.
    pub(super) fn choose_hosts(&mut self, usable: &AvailableHosts) -> Result<ChosenHosts, DriveError> {
        self.news.hosts.answered.clone_from(&usable.names);
        let list = self.drained_hosts();
        let (drained, mut names): (Vec<String>, Vec<String>) =
            usable.names.iter().cloned().partition(|name| list.has(name));
        let excluded = if names.len() < 2 { Vec::new() } else { self.excluded_hosts()? };
        let left_out = hosts_to_exclude(&excluded, &names);
        let last: Vec<String> =
            left_out.iter().rev().map(|one| one.host.clone()).chain(drained.iter().cloned()).collect();
        if let Some(pool) = self.launcher.as_mut().expect("no wait is under way").pool() {
            pool.deprioritize(&last);
        }
        names.retain(|name| !last.contains(name));
        names.extend(last);
        Ok(ChosenHosts { names, left_out, drained })
    }

    /// Returns the hosts that left, and those that their strikes leave out, now.
    pub(super) fn excluded_hosts(&mut self) -> Result<Vec<ExcludedHost>, DriveError> {
        let (strikes, now) = (self.drive.ledger.strikes()?, now_ms());
        self.left.retain(|host| host.until_ms > now);
        Ok([self.left.clone(), excluded_hosts(&strikes, now)].concat())
    }

    /// Reports the hosts that the new attempt leaves out.
    pub(super) fn report_excluded_hosts(&mut self, hosts: Vec<ExcludedHost>) {
        if !hosts.is_empty() {
            self.queue_event(TrialEvent::Status(ControllerStatus::HostsExcluded { hosts }));
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
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
        reports(said).strike_for(ended, 7).map(|strike| (strike.host, strike.partner, strike.cause))
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
        let memory = Failure::OutOfMemory { detail: "8 GiB".into() };
        assert_eq!(held(&[(0, memory.clone())], &memory), None, "it would run out on any other");
    }
}
