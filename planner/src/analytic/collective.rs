//! Alpha-beta (latency and bandwidth) formulas of all-reduce, all-gather, all-to-all and point-to-point
//! messages.

mod all_reduce;
mod all_to_all;

pub use all_reduce::{all_reduce, gather_or_scatter};
pub use all_to_all::all_to_all;

use super::constants::GeneralConstants;
use crate::hardware::{HostGroup, LinkClass};

/// Speed and latency of the links between the devices of a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interconnect {
    /// Bytes/s, one way, that collectives reach between a device and the other devices of its host.
    pub link: f64,
    /// Bytes/s that collectives reach between the two devices of a pair with a bridge; `None` without bridges.
    pub pair: Option<f64>,
    /// Class of the link between a device and the other devices of its host.
    pub class: LinkClass,
    /// Number of other devices to which each is linked directly; `None` if a switch joins them.
    pub mesh_peers: Option<f64>,
    /// Bytes/s that collectives reach over the network, per device.
    pub network: f64,
    /// Bytes/s of copies between a device and host memory, while all devices of the host copy.
    pub host: f64,
    /// Devices per host (per rack, if they share one NVLink domain).
    pub per_host: f64,
    /// Seconds to start a collective within a host.
    pub link_start: f64,
    /// Seconds that each further member on a host adds to a collective.
    pub link_member: f64,
    /// Seconds to start a collective or message between hosts.
    pub network_start: f64,
    /// Seconds that each further host adds to a collective, as a ring passes through all hosts.
    pub network_member: f64,
    /// Share of the links' bandwidth that an all-to-all reaches.
    pub all_to_all: f64,
}

impl Interconnect {
    /// Creates the links of `group`, of which an engine reaches at most `reaches(bandwidth)` bytes/s.
    pub fn of(group: &HostGroup, reaches: impl Fn(f64) -> f64, c: &GeneralConstants) -> Self {
        Self {
            link: reaches(group.link.bandwidth) * c.link,
            pair: group.pair.map(|pair| reaches(pair.bandwidth) * c.link),
            class: group.link.class,
            // Hosts of more devices than a mesh joins have switches.
            mesh_peers: group
                .gpu
                .generation()
                .mesh_peers
                .filter(|_| group.link.class == LinkClass::NvSwitch && group.link_domain() <= 8),
            network: reaches(group.network.bandwidth) * c.network,
            host: reaches(group.gpu.pcie_gbs * 1e9) * c.host_link,
            per_host: group.link_domain().into(),
            link_start: c.link_start,
            link_member: c.link_member,
            network_start: c.network_start,
            network_member: c.network_member,
            all_to_all: c.all_to_all,
        }
    }

    /// Returns these links as they would be under the constants `to` instead of `from`.
    #[must_use]
    pub fn with_constants(&self, from: &GeneralConstants, to: &GeneralConstants) -> Self {
        Self {
            link: self.link / from.link * to.link,
            pair: self.pair.map(|pair| pair / from.link * to.link),
            network: self.network / from.network * to.network,
            host: self.host / from.host_link * to.host_link,
            link_start: to.link_start,
            link_member: to.link_member,
            network_start: to.network_start,
            network_member: to.network_member,
            all_to_all: to.all_to_all,
            ..*self
        }
    }

    /// Returns the spread over hosts of a group of `degree` ranks that are `stride` ranks apart.
    pub fn group(&self, degree: f64, stride: f64) -> GroupTopology {
        let inside = (self.per_host / stride).floor().max(1.0).min(degree);
        let is_pair = stride <= 1.0 && inside <= 2.0;
        let pair = self.pair.filter(|_| is_pair).map(|link| (link, LinkClass::Bridge));
        let (link, class) = pair.unwrap_or((self.link, self.class));
        // A group uses the links among its members alone.
        let used = self.mesh_peers.map_or(1.0, |peers| ((inside - 1.0) / peers).clamp(1.0 / peers, 1.0));
        let link = link * used;
        GroupTopology { inside, outside: degree / inside, link, class }
    }
}

/// Spread of the ranks of a communication group over hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupTopology {
    /// Number of members of the group on each host.
    pub inside: f64,
    /// Number of hosts that the group is on.
    pub outside: f64,
    /// Bytes/s that collectives reach between the members on one host.
    pub link: f64,
    /// Class of the links between the members on one host.
    pub class: LinkClass,
}

impl GroupTopology {
    /// Returns the number of members of the group.
    pub fn size(self) -> f64 {
        self.inside * self.outside
    }

    /// Returns `true` if the group spans several hosts.
    pub fn spans_hosts(self) -> bool {
        self.outside > 1.0
    }
}

/// Returns the seconds to send a message of `bytes` to one other rank, over the network if `leaves`. A
/// message has fewer channels than a collective, so it reaches only `share` of a link.
pub fn point_to_point(bytes: f64, leaves: bool, share: f64, links: &Interconnect) -> f64 {
    let inside = links.link * share;
    let (speed, start) =
        if leaves { (links.network.min(inside), links.network_start) } else { (inside, links.link_start) };
    bytes / speed + start
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn hosts_of_eight() -> Interconnect {
        let part = crate::hardware::gpu("A100 SXM4 80GB").expect("it is in the table");
        let group = HostGroup::of(part, 2, 8).with_network(25e9);
        Interconnect::of(&group, |bandwidth| bandwidth, &crate::analytic::Constants::shipped().general)
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
}
