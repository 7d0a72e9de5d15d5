//! Number of hosts of a plan, and ranks per host.

use crate::planning::plan::Plan;

/// Number of hosts of a plan, each of which has the same number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostShape {
    pub(super) count: u32,
    /// Number of ranks on each host.
    pub(super) each: u32,
}

impl HostShape {
    /// Returns the hosts that `plan` was made for; a single host if they cannot share the ranks evenly.
    pub(super) fn of(plan: &Plan) -> Self {
        let (world, count) = (plan.best().candidate.arrangement.layout.world(), plan.host.hosts.get());
        if world.is_multiple_of(count) {
            Self { count, each: world / count }
        } else {
            Self { count: 1, each: world }
        }
    }
}
