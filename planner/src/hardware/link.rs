//! Links between the devices of a machine: class, bandwidth and latency.

use serde::{Deserialize, Serialize};

/// Class of a link between devices, which decides how collectives use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkClass {
    /// NVLink through switches, or xGMI and similar links among all devices of a host.
    #[serde(rename = "nvswitch")]
    NvSwitch,
    /// NVLink bridges between pairs of devices; pairs exchange over PCIe with peer access.
    Bridge,
    /// PCIe with peer access: devices exchange directly.
    PeerPcie,
    /// PCIe without peer access: everything is copied through host memory.
    ThroughHost,
    /// A network between hosts.
    Network,
}

impl LinkClass {
    /// Returns the class in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::NvSwitch => "NVLink among all GPUs",
            Self::Bridge => "NVLink bridges between pairs",
            Self::PeerPcie => "PCIe with peer access",
            Self::ThroughHost => "PCIe through host memory",
            Self::Network => "network",
        }
    }

    /// Returns the share of the PCIe bandwidth that reaches a device while all devices of a host exchange.
    /// Copies through host memory cross the bus twice and meet in it.
    pub(super) fn pcie_share(self) -> f64 {
        match self {
            Self::ThroughHost => 0.35,
            Self::NvSwitch | Self::Bridge | Self::PeerPcie | Self::Network => 0.75,
        }
    }

    /// Returns the share of the communication that an engine hides over NVLink that it also hides over this
    /// link. Copies over PCIe take multiprocessors and memory bandwidth from the computation they hide behind.
    pub fn overlap_share(self) -> f64 {
        match self {
            Self::NvSwitch | Self::Bridge | Self::Network => 1.0,
            Self::PeerPcie => 0.7,
            Self::ThroughHost => 0.5,
        }
    }
}

/// A link of each device to the others on one level of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Class of the link.
    pub class: LinkClass,
    /// Bytes/s of one device, one way, as the data sheet has them.
    pub bandwidth: f64,
    /// Seconds of latency of one message.
    pub latency: f64,
}
