//! Machine types of clouds, and ready-made systems: their GPUs, links and networks.

use super::gpu_names::parse_gpu_name;
use super::gpu_spec::rows;
use super::{HostGroup, LinkClass};
use serde::Deserialize;
use std::sync::LazyLock;

/// A machine type of a cloud; `data/cloud_machines.csv` gives the units.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand at the head of the table")]
pub struct CloudMachine {
    pub name: String,
    pub provider: String,
    pub gpus: u32,
    pub part: String,
    pub network_gbits: f64,
    pub network_kind: String,
    pub link_class: LinkClass,
    pub source: String,
    pub unverified: String,
}

static MACHINES: LazyLock<Vec<CloudMachine>> =
    LazyLock::new(|| rows(include_str!("data/cloud_machines.csv")));

/// Returns all machine types of the table.
pub fn cloud_machines() -> &'static [CloudMachine] {
    &MACHINES
}

/// Finds the machine type called `name`, in any case and with any separators.
pub fn cloud_machine(name: &str) -> Option<&'static CloudMachine> {
    let plain = |text: &str| -> String {
        text.to_lowercase().chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect()
    };
    let wanted = plain(name);
    MACHINES.iter().find(|machine| plain(&machine.name) == wanted)
}

impl CloudMachine {
    /// Returns `hosts` machines of this type.
    ///
    /// # Panics
    /// If the part is missing in the table of GPUs, which a test rules out.
    pub fn group(&self, hosts: u32) -> HostGroup {
        let part = parse_gpu_name(&self.part).expect("a test reads the file").gpu;
        let group = HostGroup::of(part, hosts, self.gpus).with_link(self.link_class, None);
        let group = if self.network_gbits > 0.0 {
            group.with_network(self.network_gbits / f64::from(self.gpus) / 8.0 * 1e9)
        } else {
            group
        };
        HostGroup { assumed: super::Assumed { link: false, ..group.assumed }, ..group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_type_has_a_known_part_and_a_source() {
        for machine in cloud_machines() {
            let group = machine.group(2);
            assert!(machine.gpus > 0 && group.link.bandwidth > 0.0, "{machine:?}");
            assert!(!machine.source.is_empty() || !machine.unverified.is_empty(), "{machine:?}");
            assert!(machine.link_class != LinkClass::Bridge || group.pair.is_some(), "{machine:?}");
        }
    }

    #[test]
    fn machine_types_are_found_by_their_names() {
        let name = |name| cloud_machine(name).map(|machine| machine.name.as_str());
        assert_eq!(name("p4d.24xlarge"), Some("p4d.24xlarge"));
        assert_eq!(name("A3-HighGPU-8g"), Some("a3-highgpu-8g"));
        assert_eq!(name("p4d.25xlarge"), None);
    }
}
