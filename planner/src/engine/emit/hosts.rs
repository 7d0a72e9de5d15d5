//! On how many hosts a plan trains.

use crate::Plan;

/// Hosts of a plan, with as many ranks each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostShape {
    pub(super) count: u32,
    /// Ranks of one host.
    pub(super) each: u32,
}

impl HostShape {
    /// Those that `plan` was made for. Ranks that they cannot share evenly are on one.
    pub(super) fn of(plan: &Plan) -> Self {
        let (world, count) = (plan.best().candidate.arrangement.layout.world(), plan.host.hosts.get());
        if world.is_multiple_of(count) {
            Self { count, each: world / count }
        } else {
            Self { count: 1, each: world }
        }
    }
}
