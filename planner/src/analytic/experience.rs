//! The published runs that the constants have seen: how many sources measured what an estimate depends on. What
//! few measured is less certain.

use super::{GroupTopology, StepInputs, topology};
use crate::hardware::GpuSpec;
use dtrain_recipes::{FrozenPrecision, Offload};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Numbers of sources of published runs, by property of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Experience {
    sources: Arc<BTreeMap<String, u32>>,
}

/// Properties of a run that its time depends on in a way of its own, in a fixed order.
const PROPERTIES: usize = 10;

/// Returns the names of the properties of `case` on `gpu`; `None` for those that it does not have.
fn properties(case: &StepInputs<'_>, gpu: &GpuSpec) -> [Option<String>; PROPERTIES] {
    let (config, style) = (&case.config, case.engine.style.name());
    let (ranks, per_host) = (config.ranks(), case.links.per_host);
    let with = |has: bool, name: &str| has.then(|| format!("{style}, {name}"));
    let generation = &gpu.generation;
    let over = |group: GroupTopology, what: &str| {
        let links = if case.links.mesh_peers.is_some() { "a mesh" } else { group.class.words() };
        (group.inside > 1.0).then(|| format!("{what} over {links}"))
    };
    let offload = config.arrangement.state.offload;
    [
        Some(generation.clone()),
        Some(format!("{style} on {generation}")),
        with(ranks <= 1.0, "one GPU"),
        with(ranks > per_host, "several hosts"),
        with(config.tensor() > 1.0, "tensor parallel"),
        with(config.pipeline() > 1.0, "pipeline"),
        over(topology::tensor_group(case), "tensor parallel"),
        over(topology::replica_group(case), "replicas"),
        with(offload != Offload::None, "offload"),
        case.model.adapters.map(|adapters| match adapters.frozen {
            Some(FrozenPrecision::Int8 | FrozenPrecision::Nf4) => format!("{style}, quantized adapters"),
            _ => format!("{style}, adapters"),
        }),
    ]
}

impl Experience {
    /// Counts the sources of `runs`, each with its source, for each property.
    pub fn of<'a>(runs: impl Iterator<Item = (&'a str, StepInputs<'a>, &'a GpuSpec)>) -> Self {
        let mut seen: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (source, case, gpu) in runs {
            for name in properties(&case, gpu).into_iter().flatten() {
                seen.entry(name).or_default().insert(source);
            }
        }
        let count = |sources: BTreeSet<&str>| u32::try_from(sources.len()).unwrap_or(u32::MAX);
        Self { sources: Arc::new(seen.into_iter().map(|(name, sources)| (name, count(sources))).collect()) }
    }

    /// Returns the number of sources that measured runs with the property `name`.
    pub fn sources(&self, name: &str) -> u32 {
        self.sources.get(name).copied().unwrap_or(0)
    }

    /// Returns each property of `case` on `gpu` with the number of sources that measured it.
    pub fn of_case(&self, case: &StepInputs<'_>, gpu: &GpuSpec) -> [Option<(String, u32)>; PROPERTIES] {
        properties(case, gpu).map(|name| name.map(|name| (name.clone(), self.sources(&name))))
    }

    /// Returns the standard deviations of ln(measured / predicted) that properties add, which shrink with the
    /// number of sources: `of_new` for a property that no source measured.
    pub(super) fn deviations(&self, case: &StepInputs<'_>, gpu: &GpuSpec, of_new: f64) -> [f64; PROPERTIES] {
        self.of_case(case, gpu)
            .map(|property| property.map_or(0.0, |(_, sources)| of_new / f64::from(1 + sources).powi(3)))
    }

    /// Returns the contents of the data file.
    pub fn page(&self) -> String {
        let lines = self.sources.iter().map(|(name, sources)| format!("\"{name}\" = {sources}\n"));
        lines.collect()
    }
}

/// Number of standard deviations that [`Experience`] adds.
pub(super) const DEVIATIONS: usize = PROPERTIES;
