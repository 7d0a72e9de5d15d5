//! Latency and bandwidth (alpha-beta) formulas of collectives and messages, within hosts and between them.

use super::constants::GeneralConstants;

/// What joins the devices of a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interconnect {
    /// Bytes a second one way between a device and the others of its host, as collectives reach them.
    pub link: f64,
    /// Bytes a second of network for each device, as collectives reach them.
    pub network: f64,
    /// Devices of a host (of a rack, where all of its devices share one NVLink domain).
    pub per_host: f64,
    /// Seconds to start a collective in a host.
    pub link_start: f64,
    /// Seconds that a further member of it adds.
    pub link_member: f64,
    /// Seconds to start a collective or message between hosts.
    pub network_start: f64,
    /// Seconds that a further host of it adds: rings pass all of them.
    pub network_member: f64,
    /// Share of the bandwidths that an all-to-all reaches.
    pub all_to_all: f64,
}

impl Interconnect {
    /// Links of `link` and `network` bytes a second on the data sheet.
    pub fn of(link: f64, network: f64, per_host: f64, c: &GeneralConstants) -> Self {
        Self {
            link: link * c.link,
            network: network * c.network,
            per_host,
            link_start: c.link_start,
            link_member: c.link_member,
            network_start: c.network_start,
            network_member: c.network_member,
            all_to_all: c.all_to_all,
        }
    }

    /// The same links where the constants are `to` rather than `from`.
    #[must_use]
    pub fn with_constants(&self, from: &GeneralConstants, to: &GeneralConstants) -> Self {
        Self::of(self.link / from.link, self.network / from.network, self.per_host, to)
    }

    /// A group of `degree` ranks that are `stride` apart.
    pub fn group(&self, degree: f64, stride: f64) -> GroupTopology {
        let inside = (self.per_host / stride).floor().max(1.0).min(degree);
        GroupTopology { inside, outside: degree / inside }
    }
}

/// How the ranks of a group lie on hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupTopology {
    /// Members on one host.
    pub inside: f64,
    /// Hosts.
    pub outside: f64,
}

impl GroupTopology {
    /// Members.
    pub fn size(self) -> f64 {
        self.inside * self.outside
    }

    /// Whether it is on more than one host.
    pub fn spans_hosts(self) -> bool {
        self.outside > 1.0
    }
}

/// Seconds of an all-gather or a reduce-scatter of `bytes`, the whole of it: level by level, or one ring over all members,
/// whichever is shorter. All members of a host send at once, each over its own network.
pub fn gather_or_scatter(bytes: f64, group: GroupTopology, links: &Interconnect) -> f64 {
    let size = group.size();
    if size <= 1.0 {
        return 0.0;
    }
    let GroupTopology { inside, outside } = group;
    let levels = (inside - 1.0) / inside * bytes / links.link
        + (outside - 1.0) / outside * bytes / inside / links.network;
    let slowest = if group.spans_hosts() { links.link.min(inside * links.network) } else { links.link };
    let ring = (size - 1.0) / size * bytes / slowest;
    let within = if inside > 1.0 { links.link_start + (inside - 1.0) * links.link_member } else { 0.0 };
    let across =
        if group.spans_hosts() { links.network_start + (outside - 1.0) * links.network_member } else { 0.0 };
    levels.min(ring) + within + across
}

/// Seconds of an all-reduce: a reduce-scatter and an all-gather.
pub fn all_reduce(bytes: f64, group: GroupTopology, links: &Interconnect) -> f64 {
    2.0 * gather_or_scatter(bytes, group, links)
}

/// Seconds of a message of `bytes`. It has fewer channels than a collective, and reaches `share` of a link, between hosts as of
/// a slower network.
pub fn point_to_point(bytes: f64, leaves: bool, share: f64, links: &Interconnect) -> f64 {
    let inside = links.link * share;
    let (speed, start) =
        if leaves { (links.network.min(inside), links.network_start) } else { (inside, links.link_start) };
    bytes / speed + start
}

/// Seconds in which every member sends each other its part of `bytes`. Where tokens go to `once` experts each and a token
/// crosses the network once for each host, fewer bytes may cross.
pub fn all_to_all(bytes: f64, once: Option<f64>, group: GroupTopology, links: &Interconnect) -> f64 {
    let size = group.size();
    if size <= 1.0 {
        return 0.0;
    }
    let GroupTopology { inside, outside } = group;
    let within = bytes * (inside - 1.0) / size / (links.link * links.all_to_all);
    let all = bytes * (size - inside) / size;
    let sent = once.map_or(all, |chosen| {
        let hosts = (outside - 1.0) * (1.0 - (1.0 - 1.0 / outside).powf(chosen));
        all.min(bytes / chosen * hosts)
    });
    let across = sent / (links.network * links.all_to_all);
    let start = links.link_start + if group.spans_hosts() { links.network_start } else { 0.0 };
    within.max(across) + start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts_of_eight() -> Interconnect {
        Interconnect::of(300e9, 25e9, 8.0, &crate::analytic::Constants::shipped().general)
    }

    #[test]
    fn a_group_that_leaves_its_host_uses_the_network_of_all_its_members() {
        let links = hosts_of_eight();
        let whole = links.group(16.0, 1.0);
        assert_eq!(whole, GroupTopology { inside: 8.0, outside: 2.0 });
        let apart = links.group(2.0, 8.0);
        assert_eq!(apart, GroupTopology { inside: 1.0, outside: 2.0 });
        let (bytes, seconds) = (8e9, |group| gather_or_scatter(8e9, group, &links));
        let alone = 0.5 * bytes / links.network;
        assert!((seconds(apart) / alone - 1.0).abs() < 0.01);
        assert!(seconds(whole) < 0.3 * alone, "eight networks carry what crosses: {}", seconds(whole));
    }

    #[test]
    fn a_message_of_few_channels_is_as_fast_as_a_slow_network_and_hosts_in_a_ring_wait_for_each_other() {
        let links = hosts_of_eight();
        let seconds = |share| point_to_point(1e9, true, share, &links) - links.network_start;
        assert!(
            (seconds(0.25) / seconds(1.0) - 1.0).abs() < 1e-9,
            "a quarter of a link is faster than the network"
        );
        assert!(seconds(0.05) > 1.2 * seconds(1.0));
        let gather = |hosts: f64| gather_or_scatter(0.0, links.group(8.0 * hosts, 1.0), &links);
        assert!(gather(1024.0) > 10.0 * gather(16.0), "{} {}", gather(1024.0), gather(16.0));
    }

    #[test]
    fn an_all_to_all_that_sends_a_token_once_to_each_host_is_shorter() {
        let links = hosts_of_eight();
        let group = links.group(64.0, 1.0);
        let (every, once) = (all_to_all(1e9, None, group, &links), all_to_all(1e9, Some(8.0), group, &links));
        assert!(once < 0.9 * every, "{once} {every}");
        assert!(all_to_all(1e9, None, links.group(1.0, 1.0), &links) <= 0.0);
    }
}
