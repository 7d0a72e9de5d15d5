//! Numbers of ranks to try on given hosts, each with its threads.

use super::{RankPool, max_ranks};
use dtrain_protocol::{DeviceKind, HostFacts, Rates};
use dtrain_recipes::Recipe;

/// Returns the numbers of ranks to try, each with threads. A pinned number of ranks may exceed the cores; an
/// open one does not.
pub(super) fn pools(
    recipe: &Recipe,
    host: &HostFacts,
    rates: Option<&Rates>,
    device: DeviceKind,
) -> Vec<RankPool> {
    let pins = &recipe.layout;
    let pinned: u32 = [pins.data, pins.tensor, pins.pipeline, pins.context, pins.expert]
        .into_iter()
        .flatten()
        .fold(1, u32::saturating_mul);
    let ranks: Vec<u32> = match recipe.cluster.ranks {
        Some(ranks) => vec![ranks],
        None => {
            let most = max_ranks(host, device);
            let beyond = if device == DeviceKind::Cpu { pinned } else { 0 };
            (1..=most.max(beyond)).filter(|r| *r <= most || *r == beyond).collect()
        }
    };
    let mut pools = Vec::new();
    let is_even = |ranks: &u32| ranks.is_multiple_of(pinned) && ranks.is_multiple_of(host.hosts.get());
    for ranks in ranks.into_iter().filter(is_even) {
        for threads in threads(host, rates, device, ranks) {
            pools.push(RankPool { ranks, threads, device });
        }
    }
    pools
}

/// Returns the numbers of threads per rank to try for `ranks` ranks: the measured ones, or else an equal
/// share of the cores.
fn threads(host: &HostFacts, rates: Option<&Rates>, device: DeviceKind, ranks: u32) -> Vec<u32> {
    let measured = rates.iter().flat_map(|rates| &rates.by_ranks);
    let mut threads: Vec<u32> =
        measured.filter(|r| r.ranks == ranks && r.device == device).map(|r| r.threads.max(1)).collect();
    threads.sort_unstable();
    threads.dedup();
    if threads.is_empty() {
        threads.push((host.all_cores() / ranks).max(1));
    }
    threads
}
