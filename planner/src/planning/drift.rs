//! Plan drift: differences between the inputs of a stored plan and those of today, in words.

use crate::hardware::{gpu, normalized_gpu_name};
use crate::planning::plan::{Plan, rates_digest};
use crate::training::calendar;
use dtrain_protocol::{HostFacts, Rates};
use dtrain_recipes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Settings of a recipe that differ from the defaults: TOML values by dotted path.
type RecipeSettings = BTreeMap<String, String>;

/// One input that has changed since a plan was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanDrift {
    /// A value in the recipe changed.
    Recipe {
        /// Key of the value, such as `train.batch`.
        key: String,
        /// Old value as TOML; `None` if it was unset.
        was: Option<String>,
        /// New value as TOML; `None` if it is now unset.
        is: Option<String>,
        /// Name of the recipe.
        recipe: String,
    },
    /// The host changed; the text says in words what differs.
    Host(String),
    /// The measured rates changed; the text says in words what differs.
    Rates(String),
    /// The version of dtrain changed.
    Program {
        /// Version of dtrain that made the plan.
        was: String,
        /// Version of dtrain that runs today.
        is: String,
    },
}

impl fmt::Display for PlanDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recipe { key, was, is, recipe } => {
                let words = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".into());
                write!(f, "{key}: {} in the plan, {} in {recipe}", words(was), words(is))
            }
            Self::Host(words) | Self::Rates(words) => f.write_str(words),
            Self::Program { was, is } => {
                write!(f, "the plan was made by dtrain {was}, this is dtrain {is}")
            }
        }
    }
}

impl Plan {
    /// Lists the changes of host, rates and program since the plan was made; empty if the plan is still
    /// valid. For plans from data sheets, only the number of hosts and their GPUs count.
    pub fn drift(&self, host: &HostFacts, rates: Option<&Rates>, program: &str) -> Vec<PlanDrift> {
        let changes = if self.is_estimated() { gpu_changes } else { host_changes };
        let mut found: Vec<PlanDrift> = changes(&self.host, host).into_iter().map(PlanDrift::Host).collect();
        found.extend(self.rates_change(rates).map(PlanDrift::Rates));
        if self.program != program {
            found.push(PlanDrift::Program { was: self.program.clone(), is: program.into() });
        }
        found
    }

    fn rates_change(&self, rates: Option<&Rates>) -> Option<String> {
        match (&self.rates, rates) {
            (None, None) => None,
            (Some(_), None) => Some("the rates the plan was made from are gone".into()),
            (None, Some(rates)) => Some(format!(
                "rates were measured on {}; the plan was made from the data sheet",
                calendar::format_day(rates.measured_at_ms)
            )),
            (Some(stamp), Some(rates)) if stamp.digest == rates_digest(rates) => None,
            (Some(stamp), Some(rates)) => Some(format!(
                "rates were measured again on {}; the plan was made from those of {}",
                calendar::format_day(rates.measured_at_ms),
                calendar::format_day(stamp.measured_at_ms)
            )),
        }
    }
}

fn host_changes(was: &HostFacts, is: &HostFacts) -> Vec<String> {
    let mut found = Vec::new();
    if was.processor != is.processor {
        found.push(format!("the host has {}, the plan was made for {}", is.processor, was.processor));
    }
    if was.hosts != is.hosts {
        found.push(format!("there are {} hosts, the plan was made for {}", is.hosts, was.hosts));
    }
    if was.cores != is.cores {
        found.push(format!("the host has {}, the plan was made for {}", cores(is.cores), was.cores));
    }
    // The kernel's share of memory varies slightly between boots.
    if was.memory_bytes.abs_diff(is.memory_bytes) > was.memory_bytes / 50 {
        let (is, was) = (Bytes(is.memory_bytes), Bytes(was.memory_bytes));
        found.push(format!("the host has {is} of memory, the plan was made for {was}"));
    }
    let names = |host: &HostFacts| host.gpus.iter().map(|gpu| gpu.name.clone()).collect::<Vec<_>>();
    if names(was) != names(is) {
        let words = |names: Vec<String>| if names.is_empty() { "no GPU".into() } else { names.join(", ") };
        found.push(format!("the host has {}, the plan was made for {}", words(names(is)), words(names(was))));
    }
    found
}

/// Describes how the hosts of today differ from those of a plan made from data sheets.
fn gpu_changes(was: &HostFacts, is: &HostFacts) -> Vec<String> {
    let mut found = Vec::new();
    if was.hosts != is.hosts {
        let there = if is.hosts.get() == 1 {
            "there is 1 host".into()
        } else {
            format!("there are {} hosts", is.hosts)
        };
        found.push(format!("{there}, the plan was made for {}", was.hosts));
    }
    let count = |host: &HostFacts| match host.gpus.len() {
        0 => "no GPU".to_owned(),
        1 => "1 GPU".to_owned(),
        n => format!("{n} GPUs"),
    };
    if was.gpus.len() != is.gpus.len() {
        found.push(format!("a host has {}, the plan was made for {}", count(is), count(was)));
    }
    let (Some(wanted), Some(there)) = (was.gpus.first(), is.gpus.first()) else { return found };
    if !is_same_part(&wanted.name, &there.name) {
        found.push(format!("the GPUs are {}, the plan was made for {}", there.name, wanted.name));
    }
    // Data sheets round, and a driver reserves some memory. More memory than planned does no harm.
    let least = is.gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0);
    if least < wanted.memory_bytes - wanted.memory_bytes / 50 {
        let (is, was) = (Bytes(least), Bytes(wanted.memory_bytes));
        found.push(format!("a GPU has {is} of memory, the plan was made for {was}"));
    }
    found
}

/// Returns `true` if two GPU names mean the same entry of the hardware table, or are equal when neither is
/// listed.
fn is_same_part(a: &str, b: &str) -> bool {
    match (gpu(a), gpu(b)) {
        (Some(a), Some(b)) => a.name == b.name,
        (None, None) => normalized_gpu_name(a) == normalized_gpu_name(b),
        _ => false,
    }
}

fn cores(n: u32) -> String {
    if n == 1 { "1 core".into() } else { format!("{n} cores") }
}

/// Lists the settings that changed in the recipe named `recipe`. Its name and description are labels and do
/// not count.
pub fn recipe_changes(recipe: &str, was: &RecipeSettings, is: &RecipeSettings) -> Vec<PlanDrift> {
    const LABELS: [&str; 2] = ["name", "description"];
    let keys: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let differs = |key: &&String| !LABELS.contains(&key.as_str()) && was.get(*key) != is.get(*key);
    let change = |key: &String| PlanDrift::Recipe {
        key: key.clone(),
        was: was.get(key).cloned(),
        is: is.get(key).cloned(),
        recipe: recipe.to_owned(),
    };
    keys.into_iter().filter(differs).map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::recipe_changes;
    use crate::fixtures;
    use crate::planning::plan;
    use dtrain_protocol::{Gpu, HostFacts};
    use std::num::NonZeroU32;

    #[test]
    fn changes_of_a_recipe_are_told_key_by_key() {
        let settings = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let was =
            settings(&[("model.layers", "4"), ("name", "\"a\""), ("train.seed", "7"), ("train.batch", "8")]);
        let is =
            settings(&[("model.layers", "3"), ("name", "\"b\""), ("train.batch", "8"), ("layout.data", "2")]);
        let words: Vec<String> =
            recipe_changes("notes.toml", &was, &is).iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "layout.data: not set in the plan, 2 in notes.toml",
                "model.layers: 4 in the plan, 3 in notes.toml",
                "train.seed: 7 in the plan, not set in notes.toml",
            ]
        );
    }

    #[test]
    fn every_change_is_told_in_words() {
        let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
        let request = fixtures::request(&recipe, &host, Some(&rates));
        let plan = plan(&request).expect("the sample fits");
        let words = |host, rates, program| {
            let stale = plan.drift(host, rates, program);
            stale.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(words(&host, Some(&rates), "0.1.0"), Vec::<String>::new());

        let mut larger = fixtures::host(4);
        larger.memory_bytes = 32 << 30;
        assert_eq!(
            words(&larger, Some(&rates), "0.2.0"),
            [
                "the host has 4 cores, the plan was made for 2",
                "the host has 32.0 GiB of memory, the plan was made for 16.0 GiB",
                "the plan was made by dtrain 0.1.0, this is dtrain 0.2.0",
            ]
        );

        let mut again = rates.clone();
        again.measured_at_ms += 86_400_000;
        assert_eq!(
            words(&host, Some(&again), "0.1.0"),
            ["rates were measured again on 2023-11-15; the plan was made from those of 2023-11-14"]
        );
        assert_eq!(words(&host, None, "0.1.0"), ["the rates the plan was made from are gone"]);
    }

    #[test]
    fn a_plan_from_data_sheets_is_held_against_the_hosts_and_their_gpus() {
        let (recipe, here) = (fixtures::recipe(), fixtures::host(2));
        let gpus = |count: usize, name: &str, gib: u64| {
            vec![
                Gpu { device: dtrain_protocol::DeviceKind::Cuda, name: name.into(), memory_bytes: gib << 30 };
                count
            ]
        };
        let mut plan = plan(&fixtures::request(&recipe, &here, None)).expect("the sample fits");
        let hosts = |hosts: u32| NonZeroU32::new(hosts).expect("not zero");
        plan.host = HostFacts { hosts: hosts(4), cores: 0, memory_bytes: 0, ..here.clone() };
        plan.host.gpus = gpus(8, "H100", 80);
        let words = |hosts, gpus| {
            let is = HostFacts { hosts, gpus, ..here.clone() };
            let stale = plan.drift(&is, None, "0.1.0");
            stale.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        // Cores, host memory and the vendor's spelling of the name do not count.
        assert_eq!(words(hosts(4), gpus(8, "NVIDIA H100 80GB HBM3", 79)), Vec::<String>::new());
        assert_eq!(
            words(hosts(1), Vec::new()),
            ["there is 1 host, the plan was made for 4", "a host has no GPU, the plan was made for 8 GPUs"]
        );
        assert_eq!(
            words(hosts(8), gpus(4, "NVIDIA A100-SXM4-40GB", 39)),
            [
                "there are 8 hosts, the plan was made for 4",
                "a host has 4 GPUs, the plan was made for 8 GPUs",
                "the GPUs are NVIDIA A100-SXM4-40GB, the plan was made for H100",
                "a GPU has 39.0 GiB of memory, the plan was made for 80.0 GiB",
            ]
        );
    }
}
