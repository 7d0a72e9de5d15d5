//! Changes of a layout that would make its step faster, but need more memory than a device has.

use crate::analytic::search::{SearchProblem, to_count};
use crate::analytic::{Degrees, PeakMemory, StepConfig, StepTimes};
use dtrain_protocol::{Arrangement, EmbeddingHeadCost};
use dtrain_recipes::{PipelineSchedule, Recompute, ZeroStage};
use serde::Serialize;

/// A change of the chosen layout for which the memory does not suffice, though its step would be faster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryLimit {
    /// The change, in words.
    pub change: String,
    /// Estimated seconds per step after the change.
    pub step_seconds: f64,
    /// Peak bytes of the heaviest rank after the change.
    pub peak_bytes: f64,
}

/// Returns the changes of `chosen`, which takes `seconds` per step, that would make it faster but do not fit,
/// the fastest first. Each changes one property and lets the number of replicas follow.
pub(super) fn memory_limits(problem: &SearchProblem, chosen: &StepConfig, seconds: f64) -> Vec<MemoryLimit> {
    let limit = |(change, config): (String, StepConfig)| {
        let case = problem.at(&config);
        let (step_seconds, peak_bytes) = (StepTimes::of(&case).total(), PeakMemory::of(&case).total());
        (step_seconds < seconds && peak_bytes > problem.cluster.memory).then_some(MemoryLimit {
            change,
            step_seconds,
            peak_bytes,
        })
    };
    let is_possible = |config: &StepConfig| {
        let per_round = config.degrees().data * config.micro_batch;
        let (pins, arrangement) = (&problem.pins, &config.arrangement);
        let has_pins = pins.data.is_none_or(|pin| pin == arrangement.layout.data.get())
            && pins.shard.is_none_or(|pin| pin == arrangement.shard);
        has_pins && config.batch.is_multiple_of(per_round) && problem.allows(config)
    };
    let all = changes(problem, chosen).into_iter().filter(|(_, config)| is_possible(config));
    let mut limits: Vec<MemoryLimit> = all.filter_map(limit).collect();
    limits.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
    limits
}

/// Returns `chosen` with a larger micro-batch, less recompute, less sharding or fewer model-parallel ranks,
/// as far as the pins allow.
fn changes(problem: &SearchProblem, chosen: &StepConfig) -> Vec<(String, StepConfig)> {
    let (pins, arrangement, degrees) = (&problem.pins, chosen.arrangement, chosen.degrees());
    let mut all = Vec::new();
    if pins.micro_batch.is_none() {
        let micro_batch = 2 * chosen.micro_batch;
        all.push((format!("micro-batch {micro_batch}"), StepConfig { micro_batch, ..*chosen }));
    }
    let mut with = |change: &str, changed: Arrangement| {
        all.push((change.to_owned(), StepConfig { arrangement: changed, ..*chosen }));
    };
    if arrangement.recompute != Recompute::None && pins.recompute.is_none() {
        with("no recompute", Arrangement { recompute: Recompute::None, recompute_every: 1, ..arrangement });
    }
    if pins.zero.is_none() {
        let less = match arrangement.zero {
            ZeroStage::Zero0 => None,
            ZeroStage::Zero1 => Some(("no ZeRO", ZeroStage::Zero0)),
            ZeroStage::Zero2 => Some(("ZeRO-1", ZeroStage::Zero1)),
            ZeroStage::Zero3 => Some(("ZeRO-2", ZeroStage::Zero2)),
        };
        if let Some((change, zero)) = less {
            let shard = if zero == ZeroStage::Zero0 { 1 } else { arrangement.shard };
            with(change, Arrangement { zero, shard, ..arrangement });
        }
    }
    let halves = |axis: &str, degree: u32, pin: Option<u32>, fewer: Degrees| {
        (pin.is_none() && degree.is_multiple_of(2))
            .then(|| (format!("{axis} parallel {}", degree / 2), fewer))
    };
    let data = 2 * degrees.data;
    let fewer = [
        halves(
            "tensor",
            degrees.tensor,
            pins.tensor,
            Degrees { tensor: degrees.tensor / 2, data, ..degrees },
        ),
        halves(
            "pipeline",
            degrees.pipeline,
            pins.pipeline,
            Degrees { pipeline: degrees.pipeline / 2, data, ..degrees },
        ),
        halves(
            "context",
            degrees.context,
            pins.context,
            Degrees { context: degrees.context / 2, data, ..degrees },
        ),
    ];
    let heads = to_count(problem.model.heads);
    let fits_model = |degrees: &Degrees| heads.is_multiple_of(degrees.tensor.max(1));
    let of = |(change, degrees): (String, Degrees)| Some((change, with_degrees(chosen, degrees)?));
    all.extend(fewer.into_iter().flatten().filter(|(_, degrees)| fits_model(degrees)).filter_map(of));
    all
}

/// Returns `chosen` with other degrees; what they leave no use for is switched off. `None` if the experts
/// cannot be spread so.
fn with_degrees(chosen: &StepConfig, degrees: Degrees) -> Option<StepConfig> {
    let mut changed = chosen.with_degrees(degrees, chosen.arrangement.expert_fold > 1)?;
    let arrangement = &mut changed.arrangement;
    if arrangement.shard == chosen.arrangement.replicas() {
        arrangement.shard = arrangement.replicas();
    }
    arrangement.sequence &= degrees.tensor > 1;
    if degrees.pipeline == 1 {
        arrangement.schedule = PipelineSchedule::OneForwardOneBackward;
        arrangement.chunks = 1;
        arrangement.ends = EmbeddingHeadCost::FREE;
    }
    Some(changed)
}
