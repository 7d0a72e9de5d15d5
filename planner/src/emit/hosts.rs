//! Number of hosts and ranks per host of a plan.

use crate::planning::plan::Plan;

/// Number of hosts, with equally many ranks each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostShape {
    pub(super) count: u32,
    /// Ranks per host.
    pub(super) each: u32,
}

impl HostShape {
    /// Returns the hosts that `plan` was made for; one host if they cannot share the ranks evenly.
    pub(super) fn of(plan: &Plan) -> Self {
        let (world, count) = (plan.best().candidate.arrangement.layout.world(), plan.host.hosts.get());
        if world.is_multiple_of(count) {
            Self { count, each: world / count }
        } else {
            Self { count: 1, each: world }
        }
    }
}
