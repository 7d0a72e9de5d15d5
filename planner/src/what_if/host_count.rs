//! Chooses the number of hosts: fewer hosts whose number divides well can be faster than all hosts.

use crate::analytic::search::{SearchProblem, fastest, fastest_beside};
use crate::hardware::HostGroup;
use crate::layout::batch_split::divisors;

/// Share of the step time that fewer hosts must save to be chosen.
const WORTH: f64 = 0.01;

/// Highest number of smaller clusters that are tried.
const TRIED: usize = 8;

/// Returns the hosts to use: all, unless fewer are faster or only fewer have a valid layout.
pub(super) fn cluster_to_use(problem: &SearchProblem) -> HostGroup {
    let fewer = smaller_clusters(problem.cluster);
    if fewer.is_empty() {
        return problem.cluster;
    }
    let mut best = (problem.cluster, fastest(problem, f64::INFINITY));
    for cluster in fewer {
        let fewer = SearchProblem { cluster, ..problem.clone() };
        let found = match &best.1 {
            Some(known) => fastest_beside(&fewer, &known.config, (1.0 - WORTH) * known.seconds),
            None => fastest(&fewer, f64::INFINITY),
        };
        if found.is_some() {
            best = (cluster, found);
        }
    }
    best.0
}

/// Returns clusters of fewer hosts, at least half of them; numbers with the most divisors come first.
fn smaller_clusters(cluster: HostGroup) -> Vec<HostGroup> {
    let HostGroup { devices, per_host, .. } = cluster;
    let hosts = devices / per_host;
    // A power of two divides as well as any.
    if hosts.is_power_of_two() {
        return Vec::new();
    }
    let least = if hosts <= 16 { hosts.div_ceil(2) } else { hosts - hosts / 5 };
    let count = |hosts: &u32| divisors(u64::from(*hosts) * u64::from(per_host)).len();
    let mut all: Vec<u32> = (least.max(1)..hosts).collect();
    all.sort_by(|a, b| count(b).cmp(&count(a)).then(b.cmp(a)));
    all.into_iter().take(TRIED).map(|hosts| HostGroup { devices: hosts * per_host, ..cluster }).collect()
}
