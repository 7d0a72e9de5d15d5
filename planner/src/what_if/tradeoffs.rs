//! Trade-offs between time, memory and cost, on all devices or fewer.

use super::TIE;
use crate::analytic::StepConfig;
use crate::analytic::search::{LayoutSearchResult, PricedLayout, SearchProblem, fastest_beside, to_count};
use crate::choice::pareto_front::ParetoFront;
use crate::choice::tradeoffs::{CostBasis, Tradeoff, Tradeoffs};
use crate::hardware::HostGroup;
use crate::price::candidate_cost::CandidateCost;
use dtrain_recipes::Bytes;

/// Returns the choice beside the Pareto front of time, memory and cost: over all layouts `found` on all
/// devices, and the fastest on half of them, a quarter and so on, while the others are idle.
pub(super) fn tradeoffs(
    problem: &SearchProblem,
    found: LayoutSearchResult,
    chosen: &PricedLayout,
    cost_basis: CostBasis,
) -> Tradeoffs<StepConfig> {
    let mut front = ParetoFront::default();
    for point in found.front {
        front.insert(point.cost, point.what);
    }
    let memory = problem.cluster.memory;
    let mut known = *chosen;
    for cluster in halves(problem.cluster) {
        let fewer = SearchProblem { cluster, ..problem.clone() };
        let Some(fastest) = fastest_beside(&fewer, &known.config, f64::INFINITY) else { break };
        known = fastest;
        let cost = CandidateCost::of(fastest.seconds, fastest.bytes / memory, cluster.devices);
        front.insert(cost, fastest.config);
    }
    let of = |cost: CandidateCost, config: StepConfig| priced_point(&cost_basis, cost, config, memory);
    let choice = CandidateCost::of(chosen.seconds, chosen.bytes / memory, to_count(chosen.config.ranks()));
    let points = front.into_points().into_iter().map(|point| of(point.cost, point.what));
    Tradeoffs::of(of(choice, chosen.config), points.collect(), TIE)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
fn priced_point(
    cost_basis: &CostBasis,
    cost: CandidateCost,
    config: StepConfig,
    memory: f64,
) -> Tradeoff<StepConfig> {
    let bytes = Bytes((cost.memory_fraction * memory) as u64);
    cost_basis.tradeoff(config, cost, bytes, to_count(config.ranks()))
}

/// Returns the cluster with half its hosts, a quarter and so on, then with half the devices of the last host
/// and so on.
fn halves(cluster: HostGroup) -> impl Iterator<Item = HostGroup> {
    std::iter::successors(Some(cluster), |cluster| {
        let HostGroup { devices, per_host, .. } = *cluster;
        match devices / per_host {
            0 | 1 if devices > 1 => {
                Some(HostGroup { devices: devices / 2, per_host: devices / 2, ..*cluster })
            }
            0 | 1 => None,
            hosts => Some(HostGroup { devices: hosts / 2 * per_host, ..*cluster }),
        }
    })
    .skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::gpu;

    #[test]
    fn fewer_devices_are_whole_hosts_and_then_parts_of_one() {
        let part = gpu("H100").expect("it is in the table");
        let found: Vec<(u32, u32)> =
            halves(HostGroup::of(part, 5, 8)).map(|fewer| (fewer.devices, fewer.per_host)).collect();
        assert_eq!(found, [(16, 8), (8, 8), (4, 4), (2, 2), (1, 1)]);
    }
}
