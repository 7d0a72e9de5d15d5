//! Parser of the machines that `dtrain plan --on` names.

use super::cloud::{cloud_machine, cloud_machines};
use super::gpu_names::{GpuNameError, ParsedGpuName, models, parse_gpu_name};
use super::{GpuSpec, HostGroup, LinkClass, Machine, SOURCED, normalized_gpu_name, unknown};
use dtrain_recipes::{GpuFacts, GpuLink};

/// Least similarity, from 0 to 1, of a known name that is suggested for a misspelled one.
const LIKE: f64 = 0.8;

/// Separators between the number of hosts and the number of GPUs per host.
const TIMES: [char; 3] = ['x', 'X', '×'];

/// Largest number of hosts, and of GPUs per host.
const MOST: u32 = 1_000_000;

/// A text that names no machine: what is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct MachineError {
    /// What is wrong.
    pub what: String,
    /// The word that was not understood, in a sentence; `None` if no single word is wrong.
    pub cause: Option<String>,
    /// What to write instead.
    pub hint: String,
}

impl MachineError {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), cause: None, hint: hint.into() }
    }

    /// Returns the error for a text that does not have the form of a group of hosts.
    fn form(what: String) -> Self {
        Self::new(
            what,
            "write `--on \"2048x8 H100-SXM-80GB\"` (hosts, GPUs per host, GPU type) or `--on \"4x p4d.24xlarge\"` \
             (a cloud's machine type); `+` joins groups",
        )
    }
}

impl Machine {
    /// Parses groups of equal hosts, joined by `+`: each `HOSTSxGPUS TYPE`, or `HOSTSx MACHINE` with the
    /// machine type of a cloud. `network` is the Gbit/s of a GPU between hosts; `facts` are what the recipe
    /// states about the GPUs.
    pub fn parse(on: &str, network: Option<f64>, facts: &GpuFacts) -> Result<Self, MachineError> {
        let describes = GpuFacts { network: None, ..*facts };
        if on.contains('+') && !describes.is_empty() {
            return Err(MachineError::new(
                "cluster.gpu describes one kind of GPU, and `--on` names several groups",
                "remove cluster.gpu, or plan each group by itself",
            ));
        }
        let groups = on
            .split('+')
            .map(|group| stated(parse_group(group, facts)?, network, facts))
            .collect::<Result<Vec<_>, _>>()?;
        let all = groups.iter().try_fold(0, |all: u32, group| all.checked_add(group.devices));
        match all {
            Some(_) => Ok(Self { groups }),
            None => Err(MachineError::form(format!("`--on {on:?}` is too many GPUs"))),
        }
    }
}

/// Returns the group with what flags and recipe state about its memory, links and network.
fn stated(group: HostGroup, network: Option<f64>, facts: &GpuFacts) -> Result<HostGroup, MachineError> {
    let mut group = group;
    let spec = group.gpu;
    if let Some(class) = facts.link {
        let class = match class {
            GpuLink::Nvswitch => LinkClass::NvSwitch,
            GpuLink::Bridge => LinkClass::Bridge,
            GpuLink::PeerPcie => LinkClass::PeerPcie,
            GpuLink::ThroughHost => LinkClass::ThroughHost,
        };
        let needs_nvlink = matches!(class, LinkClass::NvSwitch | LinkClass::Bridge);
        if needs_nvlink && spec.link_gbs <= 0.0 && facts.link_bandwidth.is_none() {
            return Err(MachineError::new(
                format!("cluster.gpu.link: the table has no NVLink of {}", spec.name),
                "give its speed in GB/s, one way, as cluster.gpu.link_bandwidth, or another link",
            ));
        }
        group = group.with_link(class, facts.link_bandwidth.map(|gbs| gbs * 1e9));
        group.assumed.link = false;
    } else if let Some(gbs) = facts.link_bandwidth {
        group = group.with_link(group.pair.unwrap_or(group.link).class, Some(gbs * 1e9));
        group.assumed.link = false;
    }
    match network.or(facts.network) {
        None => Ok(group),
        Some(gbit) if gbit.is_finite() && gbit > 0.0 => Ok(group.with_network(gbit / 8.0 * 1e9)),
        Some(gbit) => Err(MachineError::new(
            format!("`--network {gbit}` is not a valid bandwidth"),
            "give the Gbit/s per GPU, such as `--network 400`",
        )),
    }
}

/// Parses one group of equal hosts.
fn parse_group(on: &str, facts: &GpuFacts) -> Result<HostGroup, MachineError> {
    let nameless = || MachineError::form(format!("`--on {on:?}` names no GPU type"));
    if on.trim().is_empty() {
        return Err(nameless());
    }
    let count = |text: &str| text.trim().parse().ok().filter(|count| (1..=MOST).contains(count));
    if let Some((hosts, machine)) = cloud_hosts(on) {
        let Some(hosts) = hosts.map_or(Some(1), count) else {
            return Err(MachineError::form(format!(
                "`{}` is not a number of hosts",
                hosts.unwrap_or_default()
            )));
        };
        return match u32::checked_mul(hosts, machine.gpus) {
            Some(_) => with_facts(machine.group(hosts), facts),
            None => Err(MachineError::form(format!("`{on}` is too many GPUs"))),
        };
    }
    let (size, part) = split_count_and_type(on);
    let numbers = size.split_once(TIMES).and_then(|(hosts, each)| count(hosts).zip(count(each)));
    let Some((hosts, per_host)) = numbers else {
        return Err(MachineError::form(format!("`{size}` is not a number of hosts and GPUs per host")));
    };
    if part.is_empty() {
        return Err(nameless());
    }
    if u32::checked_mul(hosts, per_host).is_none() {
        return Err(MachineError::form(format!("`{size}` is too many GPUs")));
    }
    if let Some(machine) = cloud_machine(part) {
        return Err(MachineError::new(
            format!("`{part}` is a machine type with {} GPUs", machine.gpus),
            format!("write the number of machines alone: `--on \"{hosts}x {part}\"`"),
        ));
    }
    match parse_gpu_name(part) {
        Ok(ParsedGpuName { gpu, watts }) => {
            with_facts(HostGroup { watts, ..HostGroup::of(gpu, hosts, per_host) }, facts)
        }
        Err(GpuNameError::Unknown(_) | GpuNameError::Form(..) | GpuNameError::Memory(..))
            if describes_a_part(facts) =>
        {
            let spec = GpuSpec { name: part.to_owned(), ..unknown().clone() };
            with_facts(HostGroup::of(leaked(spec), hosts, per_host), facts)
        }
        Err(error) => Err(unknown_gpu_type(part, &error)),
    }
}

/// Returns `true` if the recipe states enough of a part that the table lacks.
fn describes_a_part(facts: &GpuFacts) -> bool {
    facts.memory.is_some() && facts.tflops.is_some() && facts.memory_bandwidth.is_some()
}

/// Returns the group with the figures of its part that the recipe states.
fn with_facts(group: HostGroup, facts: &GpuFacts) -> Result<HostGroup, MachineError> {
    let mut group = group;
    if facts.tflops.is_some() || facts.memory_bandwidth.is_some() {
        let mut spec = group.gpu.clone();
        if let Some(tflops) = facts.tflops {
            let scale = tflops / spec.dense_16;
            spec.dense_16 = tflops;
            spec.measured_16 = None;
            spec.dense_32 *= scale;
            spec.dense_8 *= scale;
        }
        spec.memory_gbs = facts.memory_bandwidth.unwrap_or(spec.memory_gbs);
        let known = [("dense_16", facts.tflops), ("memory_gbs", facts.memory_bandwidth)];
        let is_stated = |column: &str| known.iter().any(|(name, value)| *name == column && value.is_some());
        spec.unverified = SOURCED
            .into_iter()
            .filter(|column| spec.is_unverified(column) && !is_stated(column))
            .collect::<Vec<_>>()
            .join(" ");
        group.gpu = leaked(spec);
    }
    if let Some(memory) = facts.memory {
        #[expect(clippy::cast_precision_loss, reason = "bytes of memory are far below 2^52")]
        let bytes = memory.0 as f64;
        group.memory = bytes;
    }
    Ok(group)
}

/// Returns a data sheet that lives as long as the process: a command describes a few parts at most.
fn leaked(spec: GpuSpec) -> &'static GpuSpec {
    Box::leak(Box::new(spec))
}

/// Splits `4x p4d.24xlarge` into the number of hosts, if any, and the machine type; `None` if the text names
/// no machine type.
fn cloud_hosts(on: &str) -> Option<(Option<&str>, &'static super::cloud::CloudMachine)> {
    let on = on.trim();
    if let Some(machine) = cloud_machine(on) {
        return Some((None, machine));
    }
    let (hosts, name) = on.split_once(TIMES)?;
    let machine = cloud_machine(name.trim())?;
    Some((Some(hosts), machine))
}

/// Splits `2048x8 H100` into `2048x8` and `H100`; blanks around the `x` are allowed.
fn split_count_and_type(on: &str) -> (&str, &str) {
    let on = on.trim();
    let is_number = |c: char| c.is_ascii_digit() || c == '-';
    let hosts = on.len() - on.trim_start_matches(is_number).len();
    let rest = on[hosts..].trim_start();
    let Some(each) = rest.strip_prefix(TIMES) else { return on.split_once(' ').unwrap_or((on, "")) };
    let part = each.trim_start().trim_start_matches(is_number);
    let size = on[..on.len() - part.len()].trim_end();
    (size, part.trim())
}

/// Returns the error for a text that is no GPU type, with suggestions.
fn unknown_gpu_type(part: &str, error: &GpuNameError) -> MachineError {
    match error {
        GpuNameError::Unknown(odd) => unknown_name(part, odd.as_deref()),
        GpuNameError::Memory(size, sold) => {
            let sold: Vec<String> = sold.iter().map(|size| format!("{size} GB")).collect();
            MachineError::new(
                format!("`{part}` does not exist with {size} GB of memory"),
                format!(
                    "it has {}; describe another with cluster.gpu.memory, cluster.gpu.tflops and \
                     cluster.gpu.memory_bandwidth",
                    sold.join(" or ")
                ),
            )
        }
        GpuNameError::Form(form, known) => MachineError::new(
            format!("`{part}` does not exist as `{form}`"),
            format!("known variants: {}", known.join(", ")),
        ),
        GpuNameError::NoPower => {
            MachineError::new(format!("no power limit of `{part}` is known"), "name the GPU type alone")
        }
        GpuNameError::Power(watts, low, high) => MachineError::new(
            format!("`{part}` cannot run with a power limit of {watts:.0} W"),
            format!("give {low:.0} to {high:.0} W, or no limit"),
        ),
    }
}

fn unknown_name(part: &str, odd: Option<&str>) -> MachineError {
    let failure = |hint: String| MachineError::new(format!("unknown GPU type `{part}`"), hint);
    if let Some(odd) = odd {
        let is_size = odd.chars().all(|c| c.is_ascii_digit() || TIMES.contains(&c));
        let hint = match is_size {
            true => "join groups with `+`, such as `--on \"1x8 H100 + 1x8 A100\"`",
            false => "write the GPU type alone, such as `H100`, `H100-SXM-80GB` or `NVIDIA A100 40GB PCIe`",
        };
        let cause = Some(format!("`{odd}` is no part of the name of a GPU"));
        return MachineError { cause, ..failure(hint.into()) };
    }
    let meant = normalized_gpu_name(part);
    let likeness = |name: &str| strsim::jaro_winkler(&meant, &normalized_gpu_name(name));
    let parts = models().into_iter().map(|model| (likeness(model), model.to_uppercase()));
    // Names of machine types resemble each other.
    let machines =
        cloud_machines().iter().map(|machine| (likeness(&machine.name) - 0.1, machine.name.clone()));
    let mut near: Vec<(f64, String)> =
        parts.chain(machines).filter(|(likeness, _)| *likeness >= LIKE).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<String> = near.into_iter().take(3).map(|(_, name)| name).collect();
    let describe = "describe any other with cluster.gpu.memory, cluster.gpu.tflops and cluster.gpu.memory_bandwidth \
                    (`dtrain plan --set`); docs/parts.md lists the known types";
    match near.split_last() {
        None => failure(describe.into()),
        Some((only, [])) => failure(format!("did you mean {only}? Or {describe}")),
        Some((last, others)) => {
            failure(format!("did you mean {} or {last}? Or {describe}", others.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
