//! The strikes of the simulated controller, by the rules of the driver, and the faults that machines had.

use super::World;
use super::bugs::Bug;
use super::fencing::name_of;
use super::network::Endpoint;
use super::reports::address_of;
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::fact::Fact;
use crate::fault_attribution::{FailureReports, launch_failure, unreached_hosts};
use crate::strikes::{Strike, StrikeCause};
use dtrain_protocol::{AttemptId, Failure};
use std::collections::BTreeMap;
use std::ops::Range;

/// Milliseconds after a fault within which an attempt may still be launched into its consequences.
const AFTERMATH: u64 = 10_000;

/// What the promise about strikes needs.
#[derive(Default)]
pub(super) struct FaultLog {
    /// For each machine, the end of each of its faults. A cut in one direction is a fault of both ends. Without a
    /// connection to the controller, no machine can be told from one that is cut off.
    ends: BTreeMap<usize, Vec<u64>>,
    /// Time at which each attempt was launched.
    launched_at: BTreeMap<AttemptId, u64>,
}

impl World<'_> {
    /// Notes that machines have a fault until a time.
    pub(super) fn note_fault(&mut self, machines: impl IntoIterator<Item = usize>, until: u64) {
        for machine in machines {
            self.faults.ends.entry(machine).or_default().push(until);
        }
    }

    /// Begins to collect the failures of an attempt, given its machines.
    pub(super) fn report_on(&mut self, attempt: AttemptId, machines: &[usize]) {
        let hosts =
            machines.iter().flat_map(|machine| (0..super::controller::RANKS).map(|_| name_of(*machine)));
        self.controller.reports = FailureReports::on(hosts);
        self.faults.launched_at.insert(attempt, self.now);
    }

    /// Returns the failure of a launch, as the controller records it.
    pub(super) fn launch_failure(&self, reason: LaunchError, leader: usize) -> Failure {
        match reason.on(&name_of(leader)) {
            LaunchError::OnHost { reason, .. } if self.has(Bug::ReporterBlamed) => {
                launch_failure(&LaunchError::OnHost { host: name_of(leader), reason })
            }
            reason => launch_failure(&reason),
        }
    }

    /// Returns the failure of a launch whose leader cannot connect to all other machines.
    pub(super) fn unreached(&mut self, machines: &[(usize, Range<u32>)]) -> Option<LaunchError> {
        let (leader, followers) = machines.split_first()?;
        let reached = |machine| self.talk(Endpoint::Machine(leader.0), Endpoint::Machine(machine));
        let peer = |(host, (machine, _)): (u32, &(usize, Range<u32>))| PeerAddress {
            host,
            name: name_of(*machine),
            address: address_of(*machine, 0),
        };
        let unreached: Vec<PeerAddress> =
            (1..).zip(followers).filter(|(_, (machine, _))| !reached(*machine)).map(peer).collect();
        let unreached: Vec<(&PeerAddress, &str)> = unreached.iter().map(|peer| (peer, "timed out")).collect();
        unreached_hosts(followers.len(), &unreached)
    }

    /// Attributes the loss of an attempt. NL-8: checks that each strike names a host that had a fault.
    ///
    /// A leader without a connection to its followers names the first of them as lost, since it cannot tell their fault
    /// from its own; then a fault of the leader counts too.
    pub(super) fn attribute(&mut self, fact: &Fact) {
        let (Fact::AttemptEnded { attempt, .. }, Some(failure)) = (fact, fact.loss()) else { return };
        let is_stopping = self.controller.machine.is_stopping();
        let strike = self.controller.reports.strike_for(failure, is_stopping, self.now);
        let Some(strike) = strike else { return };
        self.reached.note("strike");
        let Strike { host, partner, cause, detail, .. } = &strike;
        let since = self.faults.launched_at.get(attempt).map_or(0, |at| at.saturating_sub(AFTERMATH));
        let reporter = self.leader_of(*attempt).filter(|_| *cause == StrikeCause::Lost).map(name_of);
        let had_fault = |(machine, ends): (&usize, &Vec<u64>)| {
            let name = Some(name_of(*machine));
            let is_meant = Some(host) == name.as_ref() || *partner == name || reporter == name;
            is_meant && ends.iter().any(|end| *end >= since)
        };
        if !self.faults.ends.iter().any(had_fault) {
            let words = format!(
                "NL-8: a strike names a host that had a fault: {host} ({cause:?}, attempt {attempt}: {detail})"
            );
            self.breaks(|| words);
        }
    }
}
