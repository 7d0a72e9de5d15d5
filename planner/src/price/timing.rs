//! Step time of a candidate: compute and communication of each stage, and the pipeline bubble between stages.

mod bubble;
mod causes;
mod overlap;
mod timeline;

use crate::layout::parameters::ModelParameters;
use crate::pipeline_schedule::chunks_of;
use crate::price::estimate::TimeBreakdown;
use crate::rates::all_reduce;
use crate::rates::calibrate::Factors;
use crate::rates::compute::{MicroBatchCost, relative_block_flops};
use crate::rates::custom_model::head_is_larger;
use crate::rates::speeds::RankSpeeds;
use crate::step::traffic::{CommunicationOp, TrafficModel, TrafficPurpose, TransferPhase};
use bubble::PipelineFill;
use dtrain_protocol::{Arrangement, Axis, Coord, DeviceKind};
use dtrain_recipes::{Model, OptimizerKind, Recompute, ZeroStage};
use overlap::{CommTime, overlap_share};

/// Slowdown on CPUs for each doubling of the degree along an axis, relative to half the compute time: norms
/// and sums that all tensor-parallel ranks repeat, attention merged from pieces, unevenly used experts,
/// handovers. Medians of small models in `cargo bench --workspace --bench predictions`, relative to two
/// replicas; attention: 1.1 to 1.6.
const LEFT: [(Axis, f64); 4] =
    [(Axis::Tensor, 1.05), (Axis::Context, 1.25), (Axis::Expert, 1.25), (Axis::Pipeline, 1.06)];

/// Cost per value of packing updated weights and unpacking gathered ones, relative to AdamW's cost per
/// parameter. Measured on perceptrons of 2 and 4 million weights over two ranks: 0.9 and 1.07.
const PACKED: f64 = 1.0;

/// Slowdown of passes that are split over several ranks when ranks outnumber cores. Measured like [`LEFT`].
const CROWDED: f64 = 1.3;

/// Returns the time of an optimizer's update relative to AdamW's, which is the measured one.
fn optimizer_factor(kind: OptimizerKind) -> f64 {
    match kind {
        OptimizerKind::Adamw => 1.0,
        OptimizerKind::Lamb => 1.4,
        OptimizerKind::Lion => 0.8,
        OptimizerKind::Sgd => 0.7,
    }
}

/// Inputs for the step time of a candidate that do not depend on the micro-batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimingInputs<'a> {
    pub(crate) model: &'a Model,
    /// Parameters on the largest rank of the layout.
    pub(crate) parts: &'a ModelParameters,
    pub(crate) optimizer: OptimizerKind,
    pub(crate) arrangement: &'a Arrangement,
    pub(crate) speeds: &'a RankSpeeds,
    pub(crate) factors: Factors,
}

/// Split of a rank's batch into micro-batches, with the cost of each micro-batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchCost {
    /// Samples of one forward pass.
    pub(crate) micro: u32,
    /// Number of forward passes in a step.
    pub(crate) micro_batches: u32,
    /// Seconds of a micro-batch on a rank that holds the whole model.
    pub(crate) cost: MicroBatchCost,
}

/// The stages of a pipeline, with the part of each stage's work that does not depend on the micro-batch.
#[derive(Clone, Debug)]
pub(crate) struct PipelineTiming<'a> {
    timing: TimingInputs<'a>,
    stages: Vec<SteadyState<'a>>,
}

/// Work of one pipeline stage, as far as it does not depend on the micro-batch.
#[derive(Clone, Debug)]
struct SteadyState<'a> {
    sender: TrafficModel<'a>,
    /// Work of the stage's blocks in one forward pass, in units of an average block; `again` is the part that
    /// is recomputed.
    blocks: f64,
    again: f64,
    /// 1 if the stage computes the layers outside the blocks, otherwise 0.
    outer: f64,
    /// Traffic that overlaps with each forward pass; `backward` with each backward pass, `reduction` with the
    /// last one.
    forward: CommTime,
    backward: CommTime,
    reduction: CommTime,
    /// Seconds of communication at the end of a step that does not overlap with passes.
    end: f64,
    optimizer: f64,
}

/// Seconds of one pipeline stage: for one micro-batch, and at the end of a step.
#[derive(Clone, Copy, Debug, Default)]
struct StageTimes {
    forward: f64,
    backward: f64,
    /// Part of `backward` that computes weight gradients.
    weights: f64,
    /// Exposed communication in one forward pass.
    sent_forward: f64,
    /// Exposed communication in one backward pass.
    sent_backward: f64,
    /// Seconds of one message to a neighboring stage.
    message: f64,
    /// Seconds of gradient reduction and other communication at the end of a step.
    end: f64,
    optimizer: f64,
}

impl StageTimes {
    /// Returns the seconds that the stage needs for one micro-batch.
    fn micro(&self) -> f64 {
        self.forward + self.backward + self.sent_forward + self.sent_backward
    }

    /// Returns the seconds that the stage needs after its last pass.
    fn end(&self) -> f64 {
        self.end + self.optimizer
    }
}

/// The stages that determine the step time, with their indices: the busiest per micro-batch, and the slowest
/// at the end of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Bottleneck {
    busiest: (usize, StageTimes),
    end: (usize, StageTimes),
    filling: PipelineFill,
}

impl<'a> PipelineTiming<'a> {
    /// Computes, for every stage of a pipeline, the work that does not depend on the micro-batch.
    pub(crate) fn of(timing: TimingInputs<'a>) -> Self {
        let stages =
            (0..timing.arrangement.layout.pipeline.get()).map(|stage| timing.steady(stage)).collect();
        Self { timing, stages }
    }

    /// Returns the time of a step by part; pipelines are simulated action by action if `walked`, otherwise
    /// priced in closed form.
    pub(crate) fn breakdown(&self, split: &BatchCost, walked: bool) -> TimeBreakdown {
        let timing = &self.timing;
        let n = f64::from(split.micro_batches);
        let Bottleneck { busiest: (_, busiest), end: (_, end), filling } = self.deciding(split);
        let waiting = timing.straggler_wait(n * (busiest.forward + busiest.backward), n);
        let bubble = match self.stages.len() {
            1 => 0.0,
            _ => self.bubble(split, &busiest, filling, walked),
        };
        let parts = TimeBreakdown {
            forward: n * busiest.forward,
            backward: n * busiest.backward,
            communication: end.end + n * (busiest.sent_forward + busiest.sent_backward) + waiting,
            bubble,
            optimizer: end.optimizer,
            overhead: n * split.cost.overhead,
        };
        parts.scaled(timing.speeds.whole)
    }

    /// Finds the stages that determine the step time for a given split of the batch.
    fn deciding(&self, split: &BatchCost) -> Bottleneck {
        let mut deciding = Bottleneck::default();
        let Bottleneck { busiest, end, filling } = &mut deciding;
        for (index, steady) in self.stages.iter().enumerate() {
            let stage = self.timing.stage(steady, split);
            filling.all += self.timing.fill_seconds(&stage, split);
            filling.message = filling.message.max(stage.message);
            if stage.micro() > busiest.1.micro() {
                *busiest = (index, stage);
            }
            if stage.end() > end.1.end() {
                *end = (index, stage);
            }
        }
        deciding
    }
}

impl<'a> TimingInputs<'a> {
    /// Returns the work of stage `stage`, as far as it does not depend on the micro-batch.
    fn steady(&self, stage: u32) -> SteadyState<'a> {
        let Self { model, parts, arrangement, .. } = *self;
        let layout = &arrangement.layout;
        let (mut blocks, mut again) = (0.0, 0.0);
        let relative_block_flops = relative_block_flops(model);
        for run in chunks_of(stage, arrangement, model.blocks()) {
            let run = &relative_block_flops[run.start as usize..run.end as usize];
            blocks += run.iter().sum::<f64>();
            again += run.iter().step_by(arrangement.recompute_every as usize).sum::<f64>();
        }
        again *= match arrangement.recompute {
            Recompute::None => 0.0,
            Recompute::Selective => 0.15,
            Recompute::Full => 1.0,
        };
        // Outside the blocks, the head of a decoder or a perceptron computes, and the stem of a residual
        // network.
        let last = stage + 1 == layout.pipeline.get();
        let outer = match model {
            Model::Cnn(_) => stage == 0,
            Model::Custom(own) if !head_is_larger(own) => stage == 0,
            Model::Decoder(_) | Model::Mlp(_) | Model::Custom(_) | Model::Command(_) => last,
        };
        let outer = if outer { 1.0 } else { 0.0 };
        let mut coord = Coord([0; 5]);
        coord.0[Axis::Pipeline as usize] = stage;
        // In a ring, the second rank sends most.
        coord.0[Axis::Context as usize] = layout.context.get().min(2) - 1;
        let sender = TrafficModel::of(model, parts, arrangement, coord);
        let (mut forward, mut backward, mut reduction) =
            (CommTime::default(), CommTime::default(), CommTime::default());
        let mut end = 0.0;
        #[expect(clippy::cast_precision_loss, reason = "a number of steps")]
        let every = arrangement.sync.every() as f64;
        sender.state(|transfer| match transfer.when {
            TransferPhase::Forward => forward.add(self.once(&transfer), transfer.times),
            TransferPhase::Backward => backward.add(self.once(&transfer), transfer.times),
            TransferPhase::LastBackward => reduction.add(self.once(&transfer), transfer.times),
            TransferPhase::Step => end += self.seconds(&transfer),
            TransferPhase::Meeting => end += self.seconds(&transfer) / every,
        });
        let optimizer = self.update(stage);
        SteadyState { sender, blocks, again, outer, forward, backward, reduction, end, optimizer }
    }

    /// Returns the predicted seconds of a single repetition of `transfer`.
    fn once(&self, transfer: &CommunicationOp) -> f64 {
        self.factors.communication * all_reduce::transfer_seconds(transfer, self.arrangement, self.speeds)
    }

    /// Returns the predicted seconds of all repetitions of `transfer`.
    fn seconds(&self, transfer: &CommunicationOp) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let times = transfer.times as f64;
        self.once(transfer) * times
    }

    /// Returns the seconds of a pipeline stage with a given split of the batch.
    fn stage(&self, steady: &SteadyState<'_>, split: &BatchCost) -> StageTimes {
        let SteadyState { blocks, again, outer, .. } = *steady;
        let (cost, cut) = (&split.cost, self.cut());
        let forward = (blocks * cost.block_forward + outer * cost.outer_forward) / cut;
        let products = blocks * cost.block_backward / cut;
        let backward = products + (again * cost.block_forward + outer * cost.outer_backward) / cut;
        let mut computed = StageTimes {
            forward,
            backward,
            // Half of the products of a backward without recompute are gradients of weights.
            weights: 0.5 * products,
            end: steady.end,
            optimizer: steady.optimizer,
            ..StageTimes::default()
        };
        steady.sender.passes(split.micro, |transfer| self.pass(&mut computed, &transfer));
        // Collectives that other ranks wait for are exposed; gradients and gathered weights overlap with
        // passes.
        let hidden = overlap_share(self.arrangement.device);
        computed.sent_forward += steady.forward.exposed(forward, hidden);
        computed.sent_backward += steady.backward.exposed(backward, hidden);
        computed.end += self.reduction(steady, split, &computed);
        computed
    }

    /// Returns the exposed seconds of the gradient reduction at the end of a step.
    fn reduction(&self, steady: &SteadyState<'_>, split: &BatchCost, computed: &StageTimes) -> f64 {
        let StageTimes { forward, backward, .. } = *computed;
        // A reduction that may be stale overlaps with whole steps.
        let steps = self.arrangement.sync.staleness * split.micro_batches;
        let beside = if steps > 0 { f64::from(steps) * (forward + backward) } else { backward };
        steady.reduction.exposed(beside, overlap_share(self.arrangement.device))
    }

    /// Returns the speedup of a pass that is split over the ranks of a replica, compared with one rank.
    fn cut(&self) -> f64 {
        let layout = &self.arrangement.layout;
        f64::from(layout.tensor.get() * layout.context.get()) / self.left_by_cuts()
    }

    /// Returns the slowdown of the ranks in a replica relative to an ideal split of the work: see [`LEFT`].
    fn left_by_cuts(&self) -> f64 {
        let Arrangement { layout, device, .. } = self.arrangement;
        if *device != DeviceKind::Cpu {
            return 1.0;
        }
        let left = |(axis, left): &(Axis, f64)| left.powf(f64::from(layout.degree(*axis)).log2());
        let shares = layout.degree(Axis::Tensor) * layout.degree(Axis::Context) > 1;
        let waits = if shares && self.speeds.crowd > 1.0 { CROWDED } else { 1.0 };
        LEFT.iter().map(left).product::<f64>() * waits
    }

    /// Adds the seconds of communication in the middle of a pass to the times of a stage.
    fn pass(&self, stage: &mut StageTimes, transfer: &CommunicationOp) {
        match transfer.when {
            _ if transfer.purpose == TrafficPurpose::Pipeline => {
                stage.message = stage.message.max(self.once(transfer));
            }
            TransferPhase::Forward => stage.sent_forward += self.seconds(transfer),
            TransferPhase::Backward => stage.sent_backward += self.seconds(transfer),
            TransferPhase::LastBackward | TransferPhase::Step | TransferPhase::Meeting => {
                stage.end += self.seconds(transfer);
            }
        }
    }

    /// Returns the seconds that a replica waits for the slowest one: the expected maximum of as many normal
    /// deviations as there are replicas, for a step of `compute` seconds whose parts vary independently.
    fn straggler_wait(&self, compute: f64, micro_batches: f64) -> f64 {
        let replicas = f64::from(self.arrangement.layout.data.get());
        let deviation = 1.48 * self.speeds.spread / micro_batches.sqrt();
        let doublings = (replicas / 2.0).ln();
        // Exact at 2, within a tenth up to a thousand.
        let largest = if replicas > 1.0 { 0.564 + 0.67 * doublings / (1.0 + 0.07 * doublings) } else { 0.0 };
        largest * deviation * compute
    }

    /// Returns the seconds in which a rank of stage `stage` clips gradients, updates the parameters that it
    /// owns, and copies those that it only holds.
    fn update(&self, stage: u32) -> f64 {
        let Arrangement { zero, shard, .. } = *self.arrangement;
        let held = self.parts.stage(self.arrangement, stage).all().all();
        let shard = if zero == ZeroStage::Zero0 { 1 } else { shard };
        #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
        let held = held as f64;
        let owned = held / f64::from(shard) * optimizer_factor(self.optimizer);
        let packed = match zero {
            ZeroStage::Zero1 | ZeroStage::Zero2 if shard > 1 => PACKED * held,
            ZeroStage::Zero0 | ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3 => 0.0,
        };
        (owned + packed) * self.speeds.optimizer_per_parameter * self.factors.compute
    }
}
