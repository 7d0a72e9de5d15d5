//! Time of an all-reduce and of other collectives: from a measured all-reduce curve, or from latency and
//! bandwidth.

use crate::hardware::Link;
use crate::rates::members_on_host::members_on_host;
use crate::rates::speeds::RankSpeeds;
use crate::step::traffic::{CollectiveKind, CommunicationOp};
use dtrain_protocol::Arrangement;

/// Returns the seconds of one repetition of `transfer` in `arrangement`, over the links of `speeds`.
///
/// The measured curve is an all-reduce. Among `n` ranks it takes `2 (n − 1) / n` times as long as sending its
/// bytes one way; half an all-reduce is a reduce-scatter, an all-gather or an all-to-all. Without a measured
/// curve, ranks of one host exchange over its links first, and hosts over the network what is left.
pub fn transfer_seconds(transfer: &CommunicationOp, arrangement: &Arrangement, speeds: &RankSpeeds) -> f64 {
    let ranks = f64::from(transfer.ranks);
    let half = (ranks - 1.0) / ranks;
    let ways = match transfer.kind {
        CollectiveKind::AllReduce => 2.0 * half,
        CollectiveKind::ReduceScatter | CollectiveKind::AllGather | CollectiveKind::AllToAll => half,
        CollectiveKind::Message => 1.0,
    };
    let bytes = 4 * transfer.values;
    if let Some(one_way) = interpolated(&speeds.all_reduce, bytes) {
        return one_way * speeds.all_reduce_scale * ways;
    }
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let size = bytes as f64;
    let level = |Link { bandwidth, latency, .. }: Link, members| Level { members, bandwidth, latency };
    let (inside, network) = match speeds.network {
        Some(network) => (members_on_host(transfer, arrangement, network.ranks_per_host), network.link),
        None => (transfer.ranks, speeds.link),
    };
    let levels = [level(speeds.link, inside), level(network, transfer.ranks.div_ceil(inside))];
    match transfer.kind {
        CollectiveKind::AllReduce => all_reduce(size, &levels),
        CollectiveKind::ReduceScatter | CollectiveKind::AllGather => reduce_scatter(size, &levels),
        CollectiveKind::AllToAll => all_to_all(size, &levels),
        // Others wait for the message that takes longest.
        CollectiveKind::Message if inside < transfer.ranks => network.latency + size / network.bandwidth,
        CollectiveKind::Message => speeds.link.latency + size / speeds.link.bandwidth,
    }
}

/// Interpolates the seconds of an all-reduce of `bytes` bytes in a measured curve of (bytes, seconds), sorted
/// by bytes.
///
/// Linear between points; the first point's time (latency) below, the last point's bandwidth above. `None`
/// for an empty curve.
pub fn interpolated(curve: &[(u64, f64)], bytes: u64) -> Option<f64> {
    let (first, last) = (curve.first()?, curve.last()?);
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let x = |bytes: u64| bytes as f64;
    if bytes <= first.0 {
        return Some(first.1);
    }
    if bytes >= last.0 {
        return Some(last.1 * x(bytes) / x(last.0));
    }
    let above = curve.iter().position(|p| p.0 >= bytes)?;
    let (low, high) = (curve[above - 1], curve[above]);
    Some(low.1 + (high.1 - low.1) * (x(bytes) - x(low.0)) / (x(high.0) - x(low.0)))
}

/// One level of a hierarchical network, such as the links within a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Number of group members within one unit of this level.
    pub members: u32,
    /// Bytes per second that one unit sends at this level.
    pub bandwidth: f64,
    /// Seconds of latency per hop at this level.
    pub latency: f64,
}

/// Returns the seconds of a reduce-scatter or all-gather of `bytes` bytes over nested levels, innermost
/// first: `Σ (n−1)/n · S_i/B_i + hops·α_i`, with `S_i` the bytes left after the inner levels.
pub fn reduce_scatter(bytes: f64, levels: &[Level]) -> f64 {
    let mut left = bytes;
    let mut seconds = 0.0;
    for level in levels.iter().filter(|level| level.members > 1) {
        let n = f64::from(level.members);
        seconds += (n - 1.0) / n * left / level.bandwidth + (n - 1.0) * level.latency;
        left /= n;
    }
    seconds
}

/// Returns the seconds of an all-to-all of `bytes` bytes over nested levels: each rank sends an equal part to
/// every other, and what leaves a host is not reduced before.
fn all_to_all(bytes: f64, levels: &[Level]) -> f64 {
    let ranks: f64 = levels.iter().map(|level| f64::from(level.members)).product();
    let mut nearer = 1.0;
    let mut seconds = 0.0;
    for level in levels.iter().filter(|level| level.members > 1) {
        let n = f64::from(level.members);
        seconds += (n - 1.0) * nearer / ranks * bytes / level.bandwidth + (n - 1.0) * level.latency;
        nearer *= n;
    }
    seconds
}

/// Returns the seconds of an all-reduce of `bytes` bytes over nested levels: a reduce-scatter and an
/// all-gather.
pub fn all_reduce(bytes: f64, levels: &[Level]) -> f64 {
    2.0 * reduce_scatter(bytes, levels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_curve_is_followed_and_its_bandwidth_goes_on() {
        let curve = [(1_000, 1e-3), (3_000, 2e-3)];
        let close = |bytes, seconds: f64| {
            let found = interpolated(&curve, bytes).expect("there is a curve");
            assert!((found - seconds).abs() < 1e-12, "{bytes}: {found}");
        };
        close(10, 1e-3);
        close(1_000, 1e-3);
        close(2_000, 1.5e-3);
        close(6_000, 4e-3);
        assert_eq!(interpolated(&[], 5), None);
    }

    #[test]
    fn one_level_is_the_ring_and_a_second_level_carries_only_the_rest() {
        let inside = Level { members: 8, bandwidth: 100e9, latency: 0.0 };
        let ring = all_reduce(8e9, &[inside]);
        assert!((ring - 2.0 * 7.0 / 8.0 * 8e9 / 100e9).abs() < 1e-9);
        let across = Level { members: 2, bandwidth: 10e9, latency: 0.0 };
        let both = all_reduce(8e9, &[inside, across]);
        assert!((both - ring - 2.0 * 0.5 * 1e9 / 10e9).abs() < 1e-9, "one eighth leaves the host");
        let alone = Level { members: 1, ..inside };
        assert!(all_reduce(8e9, &[alone]) == 0.0);
    }

    #[test]
    fn what_goes_to_each_rank_of_other_hosts_leaves_the_host() {
        let inside = Level { members: 8, bandwidth: 100e9, latency: 0.0 };
        let one = all_to_all(8e9, &[inside]);
        assert!((one - reduce_scatter(8e9, &[inside])).abs() < 1e-9, "on one host both send as much");
        let across = Level { members: 2, bandwidth: 10e9, latency: 0.0 };
        let both = all_to_all(8e9, &[inside, across]);
        assert!((both - 7.0 / 16.0 * 8e9 / 100e9 - 0.5 * 8e9 / 10e9).abs() < 1e-9, "half leaves the host");
    }
}
