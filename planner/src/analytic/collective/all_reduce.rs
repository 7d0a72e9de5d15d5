//! Seconds of an all-reduce and of its halves, a reduce-scatter and an all-gather, from the latency and the
//! speed of the links within and between hosts.

use super::{GroupTopology, Interconnect};

/// Returns the seconds to all-reduce `bytes` among the members of `group`: a reduce-scatter, then an
/// all-gather.
pub fn all_reduce(bytes: f64, group: GroupTopology, links: &Interconnect) -> f64 {
    2.0 * gather_or_scatter(bytes, group, links)
}

/// Returns the seconds to all-gather or reduce-scatter `bytes` in total among the members of `group`,
/// hierarchically or as one ring, whichever is faster. All members on a host send at once, each over its own
/// network.
pub fn gather_or_scatter(bytes: f64, group: GroupTopology, links: &Interconnect) -> f64 {
    let size = group.size();
    if size <= 1.0 {
        return 0.0;
    }
    let GroupTopology { inside, outside, link, .. } = group;
    let levels =
        (inside - 1.0) / inside * bytes / link + (outside - 1.0) / outside * bytes / inside / links.network;
    let slowest = if group.spans_hosts() { link.min(inside * links.network) } else { link };
    let ring = (size - 1.0) / size * bytes / slowest;
    let within = if inside > 1.0 { links.link_start + (inside - 1.0) * links.link_member } else { 0.0 };
    let across =
        if group.spans_hosts() { links.network_start + (outside - 1.0) * links.network_member } else { 0.0 };
    levels.min(ring) + within + across
}

#[cfg(test)]
mod tests {
    use super::super::tests::hosts_of_eight;
    use super::*;

    #[test]
    fn a_group_that_leaves_its_host_uses_the_network_of_all_its_members() {
        let links = hosts_of_eight();
        let whole = links.group(16.0, 1.0);
        assert_eq!(whole, GroupTopology { inside: 8.0, outside: 2.0, link: links.link, class: links.class });
        let apart = links.group(2.0, 8.0);
        assert_eq!(apart, GroupTopology { inside: 1.0, outside: 2.0, link: links.link, class: links.class });
        let (bytes, seconds) = (8e9, |group| gather_or_scatter(8e9, group, &links));
        let alone = 0.5 * bytes / links.network;
        assert!((seconds(apart) / alone - 1.0).abs() < 0.01);
        assert!(seconds(whole) < 0.3 * alone, "eight networks carry what crosses: {}", seconds(whole));
    }
}
