//! Properties of a run of which [`Experience`] counts the sources.

use super::{Experience, GroupTopology, StepInputs, topology};
use crate::hardware::GpuSpec;
use dtrain_recipes::{FrozenPrecision, Offload};

/// Number of standard deviations that [`Experience`] adds.
pub(super) const DEVIATIONS: usize = PROPERTIES;

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
    pub fn of_runs<'a>(runs: impl Iterator<Item = (&'a str, StepInputs<'a>, &'a GpuSpec)>) -> Self {
        Self::of(runs.flat_map(|(source, case, gpu)| {
            properties(&case, gpu).into_iter().flatten().map(move |name| (source, name))
        }))
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
}
