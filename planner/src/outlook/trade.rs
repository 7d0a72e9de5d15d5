//! Time, memory and money against each other, on all devices and on fewer.

use super::TIE;
use crate::analytic::Config;
use crate::analytic::search::{Choice, Cluster, Found, Question, fastest_beside, whole};
use crate::front::{Cost, Front};
use crate::weighed::{Bill, Compromise, Weighed};
use dtrain_recipes::Bytes;

/// The choice beside what nothing betters in time, memory and money at once: among all layouts of all devices, which are
/// `found`, and the fastest of half of them, a quarter and so on, where the others stay idle.
pub(super) fn weighed(question: &Question, found: Found, chosen: &Choice, bill: Bill) -> Weighed<Config> {
    let mut front = Front::default();
    for point in found.front {
        front.note(point.cost, point.what);
    }
    let memory = question.cluster.memory;
    let mut known = *chosen;
    for cluster in halves(question.cluster) {
        let fewer = Question { cluster, ..question.clone() };
        let Some(fastest) = fastest_beside(&fewer, &known.config, f64::INFINITY) else { break };
        known = fastest;
        let cost = Cost::of(fastest.seconds, fastest.bytes / memory, cluster.devices);
        front.note(cost, fastest.config);
    }
    let of = |cost: Cost, config: Config| compromise(&bill, cost, config, memory);
    let choice = Cost::of(chosen.seconds, chosen.bytes / memory, whole(chosen.config.ranks()));
    let points = front.into_points().into_iter().map(|point| of(point.cost, point.what));
    Weighed::of(of(choice, chosen.config), points.collect(), TIE)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
fn compromise(bill: &Bill, cost: Cost, config: Config, memory: f64) -> Compromise<Config> {
    let bytes = Bytes((cost.memory_full * memory) as u64);
    bill.compromise(config, cost, bytes, whole(config.ranks()))
}

/// Half of the hosts of a cluster, half of those and so on; then half of the devices of a host.
fn halves(cluster: Cluster) -> impl Iterator<Item = Cluster> {
    std::iter::successors(Some(cluster), |cluster| {
        let Cluster { devices, per_host, .. } = *cluster;
        match devices / per_host {
            0 | 1 if devices > 1 => Some(Cluster { devices: devices / 2, per_host: devices / 2, ..*cluster }),
            0 | 1 => None,
            hosts => Some(Cluster { devices: hosts / 2 * per_host, ..*cluster }),
        }
    })
    .skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::hardware::gpu;

    #[test]
    fn fewer_devices_are_whole_hosts_and_then_parts_of_one() {
        let part = gpu("H100").expect("it is in the table");
        let found: Vec<(u32, u32)> =
            halves(Cluster::of(part, 5, 8)).map(|fewer| (fewer.devices, fewer.per_host)).collect();
        assert_eq!(found, [(16, 8), (8, 8), (4, 4), (2, 2), (1, 1)]);
    }
}
