//! How far off an estimate may be: what was seen on published runs, and more for what is not known.

use super::Case;
use super::hardware::Gpu;
use super::layer::Layer;

/// What is not known of a training and was taken to be as its engine does it by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each of them is a fact of its own")]
pub struct Unknown {
    /// The part is not in the table.
    pub hardware: bool,
    /// The engine is not one whose style is known.
    pub software: bool,
    /// Samples of a micro-batch.
    pub micro_batch: bool,
    /// Runs of layers of a stage.
    pub chunks: bool,
    /// What is computed again.
    pub recompute: bool,
    /// How attention is computed.
    pub attention: bool,
    /// The speed of the network, where there is more than one host.
    pub network: bool,
    /// The number format of products.
    pub precision: bool,
    /// What replicas shard; it moves nothing beyond the doubt of the style.
    pub zero: bool,
}

/// Half of the width of an 80 % interval, in standard deviations.
pub const EIGHT_IN_TEN: f64 = 1.2816;

/// Standard deviation of the logarithm of measured over estimated step time.
pub fn of_time(case: &Case<'_>, gpu: &Gpu, layer: &Layer, unknown: Unknown) -> f64 {
    let d = &case.general().doubt;
    let causes = [
        (true, d.base),
        (true, case.engine.profile.doubt),
        (case.model.experts.is_some(), d.experts),
        (case.config.context() > 1.0, d.context),
        (layer.is_bound_by_host(), d.host),
        (!unknown.hardware && !case.constants.generation(gpu).is_measured, d.unmeasured),
        (unknown.hardware, d.unknown_hardware),
        (unknown.software, d.unknown_software),
        (unknown.micro_batch, d.unknown_micro_batch),
        (unknown.chunks, d.unknown_chunks),
        (unknown.recompute, d.unknown_recompute),
        (unknown.attention, d.unknown_attention),
        (unknown.network, d.unknown_network),
        (unknown.precision, d.unknown_precision),
    ];
    let variance: f64 = causes.iter().filter(|(applies, _)| *applies).map(|(_, d)| d * d).sum();
    d.widened * variance.sqrt()
}

/// The same of peak memory.
pub fn of_memory(case: &Case<'_>, unknown: Unknown) -> f64 {
    let d = &case.general().doubt;
    match () {
        () if unknown.recompute || unknown.micro_batch => d.memory_unknown,
        () if case.model.experts.is_some() => d.memory_experts,
        () => d.memory,
    }
}

/// Both ends of the interval that eight in ten measurements fall into.
pub fn interval(estimate: f64, deviation: f64) -> (f64, f64) {
    let factor = (EIGHT_IN_TEN * deviation).exp();
    (estimate / factor, estimate * factor)
}
