//! Facts about the GPUs of a cluster that data sheets do not have, for `dtrain plan --on`.

use crate::keyword_enum::keyword_enum;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// Facts about the GPUs that `plan --on` names: for a part that dtrain does not know, and for hosts whose links
/// differ from those that are usual for the part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Memory of one GPU, as its driver reports it; `None` for that of the data sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// TFLOP/s of dense matrix products in 16 bits with f32 accumulation; `None` for those of the data sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// Memory bandwidth in GB/s; `None` for that of the data sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bandwidth: Option<f64>,
    /// Class of the links between the GPUs of a host; `None` for the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<GpuLink>,
    /// GB/s of these links of one GPU, one way; `None` for the usual speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bandwidth: Option<f64>,
    /// Gbit/s of network between hosts for each GPU; `None` for the usual speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<f64>,
}

impl GpuFacts {
    /// Returns `true` if no fact is stated.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

keyword_enum! {
    /// A class of links between the GPUs of a host.
    pub enum GpuLink {
        /// NVLink or a similar link among all GPUs of a host.
        Nvswitch = "nvswitch",
        /// NVLink bridges between pairs of GPUs; pairs exchange over PCIe.
        Bridge = "bridge",
        /// PCIe with peer access: GPUs exchange directly.
        PeerPcie = "peer-pcie",
        /// PCIe without peer access: everything is copied through host memory.
        ThroughHost = "through-host",
    }
}
