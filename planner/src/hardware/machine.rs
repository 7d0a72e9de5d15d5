//! Description of the machines that train: groups of equal hosts, their parts, and the links on each level.

use super::{GpuSpec, Link, LinkClass, gpu, unknown};
use dtrain_protocol::HostFacts;
use dtrain_recipes::number_format::thousands;
use serde::Serialize;

/// Seconds of latency of a message between two devices of a host.
const HOST_LATENCY: f64 = 10e-6;

/// Seconds of latency of a message between hosts.
const NETWORK_LATENCY: f64 = 25e-6;

/// A group of hosts with equal devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostGroup {
    /// Data sheet of each device.
    pub gpu: &'static GpuSpec,
    /// Number of devices in the group.
    pub devices: u32,
    /// Number of devices per host.
    pub per_host: u32,
    /// Link between pairs of devices that a bridge joins; `None` without bridges.
    pub pair: Option<Link>,
    /// Link of a device to all others of its host.
    pub link: Link,
    /// Network of a device to devices of other hosts.
    pub network: Link,
    /// Bytes of memory per device, as the driver reports them.
    pub memory: f64,
    /// Power limit of each device in watts; `None` for that of the data sheet.
    pub watts: Option<f64>,
    /// Facts about the group that were assumed.
    pub assumed: Assumed,
}

/// Facts about a group of hosts that are assumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assumed {
    /// True if the speed of the network is the usual one of the part.
    pub network: bool,
    /// True if class and speed of the links within a host are the usual ones of the part.
    pub link: bool,
}

/// An assumption about a machine, and the way to correct it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// The assumption, in words.
    pub what: String,
    /// The flag or key that corrects it.
    pub correct: String,
}

/// The machines of a training: groups of equal hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The groups, at least one.
    pub groups: Vec<HostGroup>,
}

impl Machine {
    /// Describes the GPUs of `host` from their data sheets; `None` without GPUs. A GPU that the table lacks is
    /// described by a mid-range one.
    pub fn of_host(host: &HostFacts) -> Option<Self> {
        let first = host.gpus.first()?;
        let count = u32::try_from(host.gpus.len()).unwrap_or(u32::MAX);
        let part = gpu(&first.name).unwrap_or_else(unknown);
        #[expect(clippy::cast_precision_loss, reason = "bytes of memory are far below 2^52")]
        let memory = first.memory_bytes as f64;
        let group = HostGroup { memory, ..HostGroup::of(part, host.hosts.get(), count) };
        Some(Self { groups: vec![group] })
    }
}

impl HostGroup {
    /// Creates a group of `hosts` hosts with `per_host` devices each, with the memory and the links that are
    /// usual for `gpu`.
    pub fn of(gpu: &'static GpuSpec, hosts: u32, per_host: u32) -> Self {
        let network = gpu.network_gbits / 8.0 * 1e9;
        Self {
            gpu,
            devices: hosts * per_host,
            per_host,
            pair: None,
            link: Link { class: gpu.link_class, bandwidth: 0.0, latency: HOST_LATENCY },
            network: Link { class: LinkClass::Network, bandwidth: network, latency: NETWORK_LATENCY },
            memory: gpu.memory_bytes(),
            watts: None,
            assumed: Assumed { network: true, link: true },
        }
        .with_link(gpu.link_class, None)
    }

    /// Returns the group with links of `class` within a host, of `bandwidth` bytes/s where that is stated.
    #[must_use]
    pub fn with_link(self, class: LinkClass, bandwidth: Option<f64>) -> Self {
        let gpu = self.gpu;
        let link =
            |class, usual: f64| Link { class, bandwidth: bandwidth.unwrap_or(usual), latency: HOST_LATENCY };
        let nvlink = gpu.link_gbs * 1e9;
        let pcie = |class: LinkClass| gpu.pcie_gbs * 1e9 * class.pcie_share();
        match class {
            LinkClass::NvSwitch => Self { pair: None, link: link(class, nvlink), ..self },
            LinkClass::Bridge => Self {
                pair: Some(link(class, nvlink)),
                link: Link {
                    class: LinkClass::PeerPcie,
                    bandwidth: pcie(LinkClass::PeerPcie),
                    latency: HOST_LATENCY,
                },
                ..self
            },
            LinkClass::PeerPcie | LinkClass::ThroughHost | LinkClass::Network => {
                Self { pair: None, link: link(class, pcie(class)), ..self }
            }
        }
    }

    /// Returns the group with a network of `bandwidth` bytes/s per device.
    #[must_use]
    pub fn with_network(self, bandwidth: f64) -> Self {
        let network = Link { bandwidth, ..self.network };
        Self { network, assumed: Assumed { network: false, ..self.assumed }, ..self }
    }

    /// Returns the number of devices that NVLink joins: those of a host, or of the rack of an NVL72.
    pub fn link_domain(&self) -> u32 {
        const NVL72: u32 = 72;
        // The table has no racks.
        let is_rack = self.gpu.name.starts_with("GB200") || self.gpu.name.starts_with("GB300");
        if is_rack && self.link.class == LinkClass::NvSwitch {
            self.devices.min(NVL72).max(self.per_host)
        } else {
            self.per_host
        }
    }

    /// Returns the number of hosts; a last one may have fewer devices.
    pub fn hosts(&self) -> u32 {
        self.devices.div_ceil(self.per_host)
    }

    /// Returns the number and the name of the devices, such as `16 A10G`.
    pub fn part_count(&self) -> String {
        format!("{} {}", self.devices, self.part())
    }

    /// Returns the name of the devices, with their power limit if they have one.
    pub fn part(&self) -> String {
        let name = self.gpu.name.clone();
        self.watts.map_or_else(|| name.clone(), |watts| format!("{name} {watts}W"))
    }
}

impl Assumption {
    /// Returns what was assumed about the links that `groups` use, with the ways to correct it.
    pub fn of(groups: &[HostGroup]) -> Vec<Self> {
        let has_links = |group: &&HostGroup| group.assumed.link && group.per_host > 1;
        let links = groups.iter().filter(has_links).map(|group| group.pair.unwrap_or(group.link));
        let mut classes: Vec<(LinkClass, Vec<String>)> = Vec::new();
        for Link { class, bandwidth, .. } in links {
            let speed = figure(bandwidth / 1e9);
            match classes.iter_mut().find(|(known, _)| *known == class) {
                Some((_, speeds)) if speeds.contains(&speed) => {}
                Some((_, speeds)) => speeds.push(speed),
                None => classes.push((class, vec![speed])),
            }
        }
        let of_class = |(class, speeds): (LinkClass, Vec<String>)| Self {
            what: format!("{} at {} GB/s", class.words(), speeds.join(" and ")),
            correct: "cluster.gpu.link".into(),
        };
        let mut all: Vec<Self> = classes.into_iter().map(of_class).collect();
        let hosts: u32 = groups.iter().map(HostGroup::hosts).sum();
        let mut networks: Vec<String> = Vec::new();
        for group in groups.iter().filter(|group| group.assumed.network && hosts > 1) {
            let speed = figure(group.network.bandwidth * 8.0 / 1e9);
            if !networks.contains(&speed) {
                networks.push(speed);
            }
        }
        if !networks.is_empty() {
            let what = format!("network of {} Gbit/s per GPU", networks.join(" and "));
            all.push(Self { what, correct: "--network".into() });
        }
        all
    }
}

/// Describes equal hosts: `64 H100 (8 hosts × 8)`.
pub fn equal_hosts(devices: u32, per_host: u32, part: &str) -> String {
    match devices / per_host.max(1) {
        0 | 1 if devices == 1 => format!("one {part}"),
        0 | 1 => format!("{devices} {part} (1 host)"),
        hosts => {
            format!("{} {part} ({} hosts × {per_host})", thousands(devices.into()), thousands(hosts.into()))
        }
    }
}

/// Formats a figure without decimals that mean nothing.
fn figure(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}
