//! Uncertainty of estimates, and the prediction interval around each. Fitted constants share a
//! [`Covariance`]; each effect that the formulas leave out adds variance, more so if published runs cover it
//! badly.
//!
//! [`Covariance`]: super::constants::covariance::Covariance

use super::run_properties::DEVIATIONS;
use super::{Constants, MatmulPrecision, StepInputs, StepTimes, Transformer, topology};
use crate::hardware::{GpuSpec, LinkClass};
use crate::normal::cumulative;
use dtrain_recipes::{PipelineSchedule, ZeroStage};

/// Inputs of a training that are unknown, so that a default stands in for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each of them is a fact of its own")]
pub struct MissingInputs {
    /// True if the GPU is not in the table.
    pub hardware: bool,
    /// True if the engine has no known style.
    pub software: bool,
    /// True if the number of samples per micro-batch is unknown.
    pub micro_batch: bool,
    /// True if the number of chunks per stage is unknown.
    pub chunks: bool,
    /// True if the recompute mode is unknown.
    pub recompute: bool,
    /// True if the attention kernel is unknown.
    pub attention: bool,
    /// True if the speed of the network is unknown and the training is on more than one host.
    pub network: bool,
    /// True if the number format of matrix products is unknown.
    pub precision: bool,
    /// True if the ZeRO stage is unknown.
    pub zero: bool,
}

/// Returns `true` if a figure of the data sheet of `gpu` on which the time of `case` depends was found in no source.
fn has_unverified_figure(case: &StepInputs<'_>, gpu: &GpuSpec) -> bool {
    let products = match case.products {
        MatmulPrecision::Bits32 => "dense_32",
        MatmulPrecision::Bits16 | MatmulPrecision::F16 => "dense_16",
        MatmulPrecision::Bits8 | MatmulPrecision::Blocks8 | MatmulPrecision::Blocks4 => "dense_8",
    };
    let uses_nvlink = case.config.ranks() > 1.0 && case.links.class == LinkClass::NvSwitch;
    [products, "memory_gbs"]
        .into_iter()
        .chain(uses_nvlink.then_some("link_gbs"))
        .any(|column| gpu.is_unverified(column))
}

/// Half-width of an 80 % prediction interval, in standard deviations.
pub const Z_80_PERCENT: f64 = 1.2816;

/// Number of causes of uncertainty, besides the fitted constants.
const CAUSES: usize = 22 + DEVIATIONS;

/// Standard deviations of ln(measured / estimated step time) of one layout, by cause.
#[derive(Clone, Debug, PartialEq)]
pub struct LogStdDevs {
    /// Signed standard deviations along each uncertain direction of the fitted constants.
    constants: Vec<f64>,
    /// Standard deviations by cause, which are correlated between layouts.
    causes: [f64; CAUSES],
    /// Standard deviation of the error that is independent for each layout.
    own: f64,
}

impl LogStdDevs {
    /// Returns the standard deviation of ln(measured / estimated step time) from all causes together.
    pub fn deviation(&self) -> f64 {
        let shared = self.constants.iter().chain(&self.causes).map(|part| part * part).sum::<f64>();
        (shared + self.own * self.own).sqrt()
    }

    /// Returns the standard deviation from all fitted constants, that of each layout for itself, and those by
    /// cause.
    pub fn by_cause(&self) -> Vec<f64> {
        let constants = self.constants.iter().map(|part| part * part).sum::<f64>().sqrt();
        [constants, self.own].into_iter().chain(self.causes).collect()
    }

    /// Returns the standard deviation of the logarithm of the ratio of two step times, in which common errors
    /// cancel.
    pub fn deviation_of_ratio(&self, other: &Self) -> f64 {
        let (ours, theirs) =
            (self.constants.iter().chain(&self.causes), other.constants.iter().chain(&other.causes));
        let apart: f64 = ours.zip(theirs).map(|(a, b)| (a - b) * (a - b)).sum();
        (apart + self.own * self.own + other.own * other.own).sqrt()
    }
}

/// Returns the uncertainty of the step time of `case` on `gpu`, given the inputs that are `unknown`.
pub fn step_time_uncertainty(case: &StepInputs<'_>, gpu: &GpuSpec, unknown: MissingInputs) -> LogStdDevs {
    LogStdDevs {
        constants: case.constants.covariance.directions(case, gpu),
        causes: causes(case, gpu, unknown),
        own: case.general().doubt.base,
    }
}

fn causes(case: &StepInputs<'_>, gpu: &GpuSpec, unknown: MissingInputs) -> [f64; CAUSES] {
    let known = of_effects(case, gpu, unknown);
    let unseen = if unknown.hardware {
        [0.0; DEVIATIONS]
    } else {
        case.constants.experience.deviations(case, gpu, case.general().doubt.unseen)
    };
    let mut all = [0.0; CAUSES];
    all[..known.len()].copy_from_slice(&known);
    all[known.len()..].copy_from_slice(&unseen);
    all
}

/// Returns the standard deviations by effect that the formulas leave out, and by unknown input.
fn of_effects(case: &StepInputs<'_>, gpu: &GpuSpec, unknown: MissingInputs) -> [f64; CAUSES - DEVIATIONS] {
    let (d, config, profile) = (&case.general().doubt, &case.config, &case.engine.profile);
    let step = StepTimes::of(case);
    let layer = &step.layer;
    let all = layer.total().max(f64::MIN_POSITIVE);
    // Layers make up most of a step.
    let share = |seconds: f64| (seconds / all).min(1.0);
    let of_step = |seconds: f64| seconds / step.total();
    let hosts = config.ranks() / profile.largest;
    let tensor = topology::tensor_group(case);
    let split = share(layer.core.sum() + layer.context.sum());
    let applies = |applies: bool, deviation: f64| if applies { deviation } else { 0.0 };
    [
        profile.doubt,
        applies(case.model.experts.is_some(), d.experts),
        d.exchange * share(layer.expert.sum()),
        applies(config.context() > 1.0, d.context * split),
        applies(config.context() > 1.0 && case.tokens() < d.short, d.context_short),
        applies(layer.is_bound_by_host(), d.host),
        d.messages * of_step(step.messages),
        applies(tensor.spans_hosts(), d.tensor_hosts * share(layer.tensor.sum())),
        // Two thirds of the bubble may remain.
        applies(
            config.arrangement.schedule == PipelineSchedule::ZeroBubble,
            2.0 * of_step(step.bubble) + d.zero_bubble,
        ),
        applies(config.arrangement.zero == ZeroStage::Zero2, d.zero_2),
        d.larger * hosts.max(1.0).ln(),
        d.power * (1.0 - case.device.power),
        applies(unknown.hardware, d.unknown_hardware),
        applies(has_unverified_figure(case, gpu), d.unverified),
        applies(unknown.software, d.unknown_software),
        applies(unknown.micro_batch, d.unknown_micro_batch),
        applies(unknown.chunks, d.unknown_chunks),
        applies(unknown.recompute, d.unknown_recompute),
        applies(unknown.attention, d.unknown_attention * share(layer.core.sum())),
        applies(unknown.network, d.unknown_network),
        applies(unknown.precision, d.unknown_precision),
        applies(unknown.zero, d.unknown_zero),
    ]
}

/// Returns the standard deviation of ln(measured / estimated peak memory).
pub fn memory_uncertainty(case: &StepInputs<'_>, unknown: MissingInputs) -> f64 {
    let d = &case.general().doubt;
    match () {
        () if unknown.recompute || unknown.micro_batch => d.memory_unknown,
        () => model_memory_uncertainty(case.model, case.constants),
    }
}

/// Returns the standard deviation of ln(measured / estimated peak memory) of `model` in a known layout.
pub fn model_memory_uncertainty(model: &Transformer, constants: &Constants) -> f64 {
    let d = &constants.general.doubt;
    if model.experts.is_some() { d.memory_experts } else { d.memory }
}

/// Returns the lower and the upper end of the 80 % prediction interval around `estimate`, given the standard
/// deviation of its logarithm.
pub fn prediction_interval(estimate: f64, deviation: f64) -> (f64, f64) {
    let factor = (Z_80_PERCENT * deviation).exp();
    (estimate / factor, estimate * factor)
}

/// Returns the probability that a quantity with the estimate `estimate`, whose 80 % interval ends at `high`,
/// exceeds `limit`.
pub fn exceedance_probability(estimate: f64, high: f64, limit: f64) -> f64 {
    let deviation = (high / estimate).ln() / Z_80_PERCENT;
    if deviation <= 0.0 {
        return if estimate > limit { 1.0 } else { 0.0 };
    }
    1.0 - cumulative((limit / estimate).ln() / deviation)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::analytic::device_throughput::MatmulPrecision;
    use crate::analytic::search::SearchProblem;
    use crate::analytic::{Constants, Degrees, Software, StepConfig, Transformer};
    use crate::engine::{AttentionKernel, SoftwareStyle};
    use crate::hardware::{HostGroup, gpu};
    use dtrain_protocol::Arrangement;
    use dtrain_recipes::LayoutPins;
    use std::sync::LazyLock;

    static QUESTION: LazyLock<SearchProblem> = LazyLock::new(|| SearchProblem {
        model: Transformer {
            layers: 32.0,
            hidden: 4096.0,
            heads: 32.0,
            kv_heads: 8.0,
            head: 128.0,
            head_value: 128.0,
            latent: None,
            window: None,
            ffn: 14_336.0,
            is_gated: true,
            experts: None,
            is_tied: None,
            adapters: None,
            vocabulary: 128_256.0,
            sequence: 8192.0,
            mtp_layers: 0.0,
        },
        cluster: HostGroup::of(gpu("H100").expect("it is in the table"), 8, 8),
        engine: Software::of(SoftwareStyle::Modern, Constants::shipped()),
        runs_on: None,
        kernel: AttentionKernel::Fused,
        products: MatmulPrecision::Bits16,
        state: dtrain_recipes::StatePolicy::PLAIN,
        batch: 512,
        pins: LayoutPins::default(),
        sync: dtrain_recipes::Synchronisation::EXACT,
        constants: Constants::shipped(),
    });

    fn config(degrees: Degrees) -> StepConfig {
        let arrangement = Arrangement { zero: ZeroStage::Zero1, ..Arrangement::SINGLE };
        let any = StepConfig { arrangement, micro_batch: 1, batch: 512 };
        let mut config = any.with_degrees(degrees, false).expect("there are no experts");
        config.arrangement.shard = config.arrangement.replicas();
        config
    }

    /// Returns the inputs of an 8B Llama under Megatron on 64 H100s with this tensor degree.
    pub(in crate::analytic) fn case(tensor: u32) -> StepInputs<'static> {
        QUESTION.at(&config(Degrees { tensor, data: 64 / tensor, ..Degrees::ONE }))
    }

    fn doubt(case: &StepInputs<'_>) -> LogStdDevs {
        step_time_uncertainty(case, gpu("H100").expect("it is in the table"), MissingInputs::default())
    }

    #[test]
    fn what_no_published_run_shows_is_more_uncertain() {
        let usual = doubt(&case(8)).deviation();
        assert!(doubt(&case(16)).deviation() > 1.5 * usual, "tensor parallel over two hosts");
        let with = |change: fn(&mut StepConfig)| {
            let mut case = case(8);
            change(&mut case.config);
            doubt(&case).deviation()
        };
        assert!(with(|config| config.arrangement.zero = ZeroStage::Zero2) > usual);
        let pipeline = |schedule| {
            let mut config = config(Degrees { pipeline: 4, data: 16, ..Degrees::ONE });
            config.arrangement.schedule = schedule;
            doubt(&QUESTION.at(&config)).deviation()
        };
        let (known, new) = (PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble);
        assert!(pipeline(new) > pipeline(known));
        let ring =
            |context| doubt(&QUESTION.at(&config(Degrees { context, data: 64 / context, ..Degrees::ONE })));
        assert!(ring(8).deviation() > ring(2).deviation(), "pieces of 1,024 tokens");
    }

    #[test]
    fn two_like_cases_are_better_compared_than_known() {
        let (one, other) = (doubt(&case(1)), doubt(&case(2)));
        let apart = one.deviation_of_ratio(&other);
        assert!(apart < 0.8 * one.deviation().hypot(other.deviation()), "{apart}");
        assert!(one.deviation_of_ratio(&doubt(&case(16))) > apart);
    }

    #[test]
    fn the_probability_above_a_limit_is_that_of_the_interval() {
        assert!((exceedance_probability(60.0, 70.0, 70.0) - 0.1).abs() < 1e-4);
        assert!((exceedance_probability(60.0, 70.0, 60.0) - 0.5).abs() < 1e-4);
        assert!(exceedance_probability(60.0, 62.0, 80.0) < 1e-3);
        assert_eq!(
            [exceedance_probability(1.0, 1.0, 2.0), exceedance_probability(2.0, 2.0, 1.0)],
            [0.0, 1.0]
        );
    }
}
