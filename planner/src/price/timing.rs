//! Seconds of a step: what each stage computes and sends, and how stages wait for each other.

mod causes;
mod timeline;

use crate::layout::parameters::ModelParameters;
use crate::price::estimate::TimeBreakdown;
use crate::rates::calibrate::Factors;
use crate::rates::compute::{MicroBatchCost, relative_block_flops};
use crate::rates::custom_model::head_is_larger;
use crate::rates::network;
use crate::rates::speeds::RankSpeeds;
use crate::step::schedule::chunks_of;
use crate::step::simulate::exposed_reduction;
use crate::step::traffic::{CommunicationOp, TrafficModel, TrafficPurpose, TransferPhase};
use dtrain_protocol::{Arrangement, Axis, Coord, DeviceKind};
use dtrain_recipes::{Model, OptimizerKind, PipelineSchedule, Recompute, ZeroStage};

/// Share of a backward that communication can hide behind. On a CPU it is done by the cores that compute, so nothing
/// is hidden.
fn overlap(device: DeviceKind) -> f64 {
    match device {
        DeviceKind::Cpu => 0.0,
        DeviceKind::Cuda | DeviceKind::Wgpu => 0.5,
    }
}

/// What computing takes with one more halving along an axis, on CPUs, over what half of it would: norms and sums that every
/// tensor-parallel rank repeats, attention in pieces whose parts are put together between two waits, experts that are not asked
/// equally often, stages that hand over. Medians over small models of `cargo bench --workspace --bench predictions`, each beside the
/// same model with two replicas; those of attention in pieces lie between 1.1 and 1.6.
const LEFT: [(Axis, f64); 4] =
    [(Axis::Tensor, 1.05), (Axis::Context, 1.25), (Axis::Expert, 1.25), (Axis::Pipeline, 1.06)];

/// Seconds to pack the weights that a rank moved and to unpack those that it gathers, for each value that it holds, over
/// those of AdamW for one parameter. Measured on perceptrons of 2 and 4 million weights over two ranks: 0.9 and 1.07.
const PACKED: f64 = 1.0;

/// How much longer passes take that several ranks share where there are more ranks than cores: whoever is waited for may not
/// run. Measured as [`LEFT`].
const CROWDED: f64 = 1.3;

/// Seconds of the optimizer relative to AdamW, which is the one that is measured.
fn optimizer_factor(kind: OptimizerKind) -> f64 {
    match kind {
        OptimizerKind::Adamw => 1.0,
        OptimizerKind::Lamb => 1.4,
        OptimizerKind::Lion => 0.8,
        OptimizerKind::Sgd => 0.7,
    }
}

/// What decides the time of a step, whatever its batch is split into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimingInputs<'a> {
    pub(crate) model: &'a Model,
    /// Its parts as the largest rank of the layout holds them.
    pub(crate) parts: &'a ModelParameters,
    pub(crate) optimizer: OptimizerKind,
    pub(crate) arrangement: &'a Arrangement,
    pub(crate) speeds: &'a RankSpeeds,
    pub(crate) factors: Factors,
}

/// How the batch of a rank is split, and what a part of it costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchCost {
    /// Samples of one forward pass.
    pub(crate) micro: u32,
    /// Forward passes of a step.
    pub(crate) micro_batches: u32,
    /// Seconds of a micro-batch on one rank that holds all.
    pub(crate) cost: MicroBatchCost,
}

/// Every stage of a pipeline, with what it does in each step alike.
#[derive(Clone, Debug)]
pub(crate) struct PipelineTiming<'a> {
    timing: TimingInputs<'a>,
    stages: Vec<SteadyState<'a>>,
}

/// What a stage does, whatever passes through it.
#[derive(Clone, Debug)]
struct SteadyState<'a> {
    sender: TrafficModel<'a>,
    /// Its blocks, and the part of their forwards that is computed again.
    blocks: f64,
    again: f64,
    /// 1 where what lies around the blocks computes, otherwise 0.
    outer: f64,
    /// State that travels beside each forward, beside each backward, and beside the last one.
    forward: CommTime,
    backward: CommTime,
    reduction: CommTime,
    /// Seconds of what is sent at the end of a step.
    end: f64,
    optimizer: f64,
}

/// Seconds of one stage: of one micro-batch, and of the end of a step.
#[derive(Clone, Copy, Debug, Default)]
struct StageTimes {
    forward: f64,
    backward: f64,
    /// Of `backward`, the gradients of weights.
    weights: f64,
    /// Communication inside one forward that nothing hides.
    sent_forward: f64,
    /// Communication inside one backward that nothing hides.
    sent_backward: f64,
    /// Of one message to a neighbour.
    message: f64,
    /// The reduction and everything else that is sent at the end of a step.
    end: f64,
    optimizer: f64,
}

impl StageTimes {
    /// One micro-batch.
    fn micro(&self) -> f64 {
        self.forward + self.backward + self.sent_forward + self.sent_backward
    }

    /// What follows the passes.
    fn end(&self) -> f64 {
        self.end + self.optimizer
    }
}

/// The stages that decide a step, with their indices: the one with most to do for a micro-batch sets the pace, the one with
/// most to do at the end ends last.
#[derive(Clone, Copy, Debug, Default)]
struct Bottleneck {
    busiest: (usize, StageTimes),
    end: (usize, StageTimes),
    filling: PipelineFill,
}

/// What fills a pipeline: [`TimingInputs::fill_seconds`] of all stages, and the longest message.
#[derive(Clone, Copy, Debug, Default)]
struct PipelineFill {
    all: f64,
    message: f64,
}

/// Seconds sent in one phase, and in how many pieces.
#[derive(Clone, Copy, Debug, Default)]
struct CommTime {
    seconds: f64,
    pieces: u64,
}

impl CommTime {
    fn add(&mut self, seconds: f64, times: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let all = seconds * times as f64;
        self.seconds += all;
        self.pieces += times;
    }

    /// What of it nothing hides, when it goes on beside `compute` seconds of which the share `overlap` hides it.
    fn exposed(&self, compute: f64, overlap: f64) -> f64 {
        if self.pieces == 0 { 0.0 } else { exposed_reduction(self.seconds, self.pieces, compute, overlap) }
    }
}

impl<'a> PipelineTiming<'a> {
    /// All stages of a pipeline.
    pub(crate) fn of(timing: TimingInputs<'a>) -> Self {
        let stages =
            (0..timing.arrangement.layout.pipeline.get()).map(|stage| timing.steady(stage)).collect();
        Self { timing, stages }
    }

    /// Where the time of a step goes; pipelines are walked action by action, or taken in closed form.
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

    /// The stages that decide a step.
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

    /// Seconds the busiest stage stands still: while the pipeline fills and drains (Narayanan et al. 2021), and for
    /// messages.
    fn bubble(&self, split: &BatchCost, busiest: &StageTimes, filling: PipelineFill, walked: bool) -> f64 {
        let Arrangement { layout, chunks, .. } = *self.timing.arrangement;
        let PipelineFill { all, message: transfer } = filling;
        let (p, v) = (f64::from(layout.pipeline.get()), f64::from(chunks));
        let passes = f64::from(split.micro_batches) * v;
        let closed =
            (all - self.timing.fill_seconds(busiest, split)) / v + 2.0 * (passes + p - 2.0) * transfer;
        if !walked {
            return closed;
        }
        self.walked(split, transfer).map_or(closed, |walked| walked.bubble())
    }
}

impl<'a> TimingInputs<'a> {
    /// What stage `stage` does, whatever passes through it.
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
        // Around the blocks of a decoder or a perceptron it is the head that computes, of a residual network the stem.
        let last = stage + 1 == layout.pipeline.get();
        let outer = match model {
            Model::Cnn(_) => stage == 0,
            Model::Custom(own) if !head_is_larger(own) => stage == 0,
            Model::Decoder(_) | Model::Mlp(_) | Model::Custom(_) | Model::Command(_) => last,
        };
        let outer = if outer { 1.0 } else { 0.0 };
        let mut coord = Coord([0; 5]);
        coord.0[Axis::Pipeline as usize] = stage;
        // Of a ring the second rank sends most.
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

    /// Seconds of one of the collectives that `transfer` stands for.
    fn once(&self, transfer: &CommunicationOp) -> f64 {
        self.factors.communication * network::transfer_seconds(transfer, self.speeds)
    }

    /// Seconds of all of them.
    fn seconds(&self, transfer: &CommunicationOp) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let times = transfer.times as f64;
        self.once(transfer) * times
    }

    /// Seconds of a stage.
    fn stage(&self, steady: &SteadyState<'_>, split: &BatchCost) -> StageTimes {
        let SteadyState { blocks, again, outer, .. } = *steady;
        let (cost, cut) = (&split.cost, self.cut());
        let forward = (blocks * cost.block_forward + outer * cost.outer_forward) / cut;
        let products = blocks * cost.block_backward / cut;
        let backward = products + (again * cost.block_forward + outer * cost.outer_backward) / cut;
        let mut computed = StageTimes {
            forward,
            backward,
            // Gradients of weights are half of the products of a backward without what is computed again.
            weights: 0.5 * products,
            end: steady.end,
            optimizer: steady.optimizer,
            ..StageTimes::default()
        };
        steady.sender.passes(split.micro, |transfer| self.pass(&mut computed, &transfer));
        // What others wait for is exposed; gradients and gathered weights travel while passes compute.
        let hidden = overlap(self.arrangement.device);
        computed.sent_forward += steady.forward.exposed(forward, hidden);
        computed.sent_backward += steady.backward.exposed(backward, hidden);
        computed.end += self.reduction(steady, split, &computed);
        computed
    }

    /// Seconds of the reduction at the end of a step that nothing hides.
    fn reduction(&self, steady: &SteadyState<'_>, split: &BatchCost, computed: &StageTimes) -> f64 {
        let StageTimes { forward, backward, .. } = *computed;
        // Where it may wait, it has whole steps.
        let steps = self.arrangement.sync.staleness * split.micro_batches;
        let beside = if steps > 0 { f64::from(steps) * (forward + backward) } else { backward };
        steady.reduction.exposed(beside, overlap(self.arrangement.device))
    }

    /// Ranks among which the work of a pass is cut, less what is left to each.
    fn cut(&self) -> f64 {
        let layout = &self.arrangement.layout;
        f64::from(layout.tensor.get() * layout.context.get()) / self.left_by_cuts()
    }

    /// How much longer the ranks of a replica compute, all together, than one would alone: see [`LEFT`].
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

    /// Adds what is sent in the middle of a pass.
    fn pass(&self, stage: &mut StageTimes, transfer: &CommunicationOp) {
        match transfer.when {
            _ if transfer.purpose == TrafficPurpose::Pipeline => {
                stage.message = stage.message.max(self.once(transfer));
            }
            TransferPhase::Forward => stage.sent_forward += self.seconds(transfer),
            TransferPhase::Backward => stage.sent_backward += self.seconds(transfer),
            TransferPhase::LastBackward | TransferPhase::Step | TransferPhase::Meeting => {
                stage.end += self.seconds(transfer)
            }
        }
    }

    /// Seconds that a stage holds up the first micro-batch on its way there and back.
    fn fill_seconds(&self, stage: &StageTimes, split: &BatchCost) -> f64 {
        match self.arrangement.schedule {
            // Its weights are in time anyway, and of later micro-batches as many as there are fill the bubble.
            PipelineSchedule::ZeroBubble => {
                let ahead = f64::from(self.arrangement.layout.pipeline.get() - 1);
                let later = f64::from(split.micro_batches - 1);
                let hidden = if ahead > 0.0 { (later / ahead).min(1.0) } else { 0.0 };
                (stage.micro() - (1.0 + hidden) * stage.weights).max(0.0)
            }
            PipelineSchedule::Gpipe
            | PipelineSchedule::OneForwardOneBackward
            | PipelineSchedule::Interleaved => stage.micro(),
        }
    }

    /// Seconds a replica waits for the slowest: the expected largest of as many normal deviates, for a step of
    /// `compute` seconds whose parts vary independently.
    fn straggler_wait(&self, compute: f64, micro_batches: f64) -> f64 {
        let replicas = f64::from(self.arrangement.layout.data.get());
        let deviation = 1.48 * self.speeds.spread / micro_batches.sqrt();
        let doublings = (replicas / 2.0).ln();
        // Exact at 2, within a tenth up to a thousand.
        let largest = if replicas > 1.0 { 0.564 + 0.67 * doublings / (1.0 + 0.07 * doublings) } else { 0.0 };
        largest * deviation * compute
    }

    /// Seconds to clip, to apply the optimizer to what the rank owns, and to copy what it keeps whole but does not own.
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
