//! The placement of ranks on the hosts of an attempt, and the certificates of the ranks.

use crate::certificates::rank_certificates;
use crate::control_protocol::AgentOrder;
use dtrain_protocol::RankTransport;
use std::ops::Range;

/// Returns the order with a certificate for each rank if several hosts have ranks. Each host binds its own
/// address.
pub(super) fn with_certificates(order: &AgentOrder, ranks: &[Range<u32>]) -> Result<AgentOrder, String> {
    let mut order = order.clone();
    if ranks.len() > 1 {
        let world = u32::try_from(order.assignments.len()).map_err(|_| "too many ranks")?;
        let identities = rank_certificates(&order.trial, order.attempt, world);
        let identities = identities.map_err(|error| format!("certificates: {error}"))?;
        for (assignment, identity) in order.assignments.iter_mut().zip(identities) {
            assignment.link = RankTransport::Tls { bind: String::new(), identity };
        }
    }
    Ok(order)
}

/// Returns the range of ranks on each host, for the first `hosts` hosts.
pub(super) fn ranks_by_host(order: &AgentOrder, hosts: usize) -> Result<Vec<Range<u32>>, String> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for (rank, assignment) in (0u32..).zip(&order.assignments) {
        let host = assignment.placement.host as usize;
        if host >= hosts || host > ranges.len() || host + 1 < ranges.len() {
            let before = ranges.len().saturating_sub(1);
            return Err(format!(
                "rank {rank} is placed on host {host} of {hosts}, after one on host {before}"
            ));
        }
        if host == ranges.len() {
            ranges.push(rank..rank);
        }
        ranges[host].end = rank + 1;
    }
    Ok(ranges)
}
