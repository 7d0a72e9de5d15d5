//! Fault attribution: strikes against the hosts of an attempt, and the hosts that the next one leaves out.

use super::TrialController;
use crate::driver::DriveError;
use crate::launch::AvailableHosts;
use crate::strikes::{ExcludedHost, Strike, StrikeCause, excluded_hosts, hosts_to_exclude};
use crate::trial_event::{ControllerStatus, TrialEvent};
use dtrain_protocol::{Failure, LeaveCause, Rank};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds for which a host that left is not used. A host that shuts down answers for some of them.
const LEFT_MS: u64 = 60_000;

/// Milliseconds for which a host that gave notice is not used. Clouds give it up to two minutes before they take a
/// machine.
const NOTICED_MS: u64 = 300_000;

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
        let strike = self.reports.strike_for(failure, self.machine.is_stopping(), now_ms());
        self.news.hosts.strikes.extend(strike);
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
