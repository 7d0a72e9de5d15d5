//! Seconds of a step: what each stage computes and sends, and how stages wait for each other.

use crate::calibrate::Factors;
use crate::compute::MicroCost;
use crate::estimate::Breakdown;
use crate::network;
use crate::parameters::Parts;
use crate::schedule::{self, Shape, chunks_of};
use crate::simulate::{PassCost, exposed_reduction, walk};
use crate::speeds::Speeds;
use crate::traffic::{Purpose, Sender, When};
use dtrain_protocol::{Arrangement, Axis, Coord, DeviceKind};
use dtrain_recipes::{Model, OptimizerKind, PipelineSchedule, Recompute, ZeroStage};

/// Share of a backward that communication can hide behind. On a CPU it is done by the cores that compute, so nothing
/// is hidden.
fn overlap(device: DeviceKind) -> f64 {
    match device {
        DeviceKind::Cpu => 0.0,
        DeviceKind::Cuda => 0.5,
    }
}

/// Seconds of the optimizer relative to AdamW, which is the one that is measured.
fn optimizer_factor(kind: OptimizerKind) -> f64 {
    match kind {
        OptimizerKind::Adamw => 1.0,
        OptimizerKind::Lamb => 1.4,
        OptimizerKind::Lion => 0.8,
        OptimizerKind::Sgd => 0.7,
    }
}

/// What decides the time of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing<'a> {
    pub(crate) model: &'a Model,
    /// Its parts as the largest rank of the layout holds them.
    pub(crate) parts: &'a Parts,
    pub(crate) optimizer: OptimizerKind,
    pub(crate) arrangement: &'a Arrangement,
    /// Samples of one forward pass.
    pub(crate) micro: u32,
    /// Forward passes of a step.
    pub(crate) micro_batches: u32,
    /// Seconds of a micro-batch on one rank that holds all.
    pub(crate) cost: MicroCost,
    pub(crate) speeds: &'a Speeds,
    pub(crate) factors: Factors,
}

/// Seconds of one stage: of one micro-batch, and of the end of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
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

impl Stage {
    /// One micro-batch.
    fn micro(&self) -> f64 {
        self.forward + self.backward + self.sent_forward + self.sent_backward
    }
}

/// What fills a pipeline: [`Timing::filling`] of all stages, and the longest message.
#[derive(Clone, Copy, Debug, Default)]
struct Filling {
    all: f64,
    message: f64,
}

/// Seconds sent in one phase, and in how many pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    seconds: f64,
    pieces: u64,
}

impl Sent {
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

impl Timing<'_> {
    /// Where the time of a step goes; pipelines are walked action by action, or taken in closed form.
    pub(crate) fn breakdown(&self, walked: bool) -> Breakdown {
        let stages = self.arrangement.layout.pipeline.get();
        let n = f64::from(self.micro_batches);
        // The stage with most to do for a micro-batch sets the pace, the one with most to do at the end ends last.
        let (mut busiest, mut end, mut filling) = (Stage::default(), Stage::default(), Filling::default());
        for stage in (0..stages).map(|stage| self.stage(stage)) {
            filling.all += self.filling(&stage);
            filling.message = filling.message.max(stage.message);
            if stage.micro() > busiest.micro() {
                busiest = stage;
            }
            if stage.end + stage.optimizer > end.end + end.optimizer {
                end = stage;
            }
        }
        let waiting = self.waiting(n * (busiest.forward + busiest.backward), n);
        let bubble = match stages {
            1 => 0.0,
            _ => self.bubble(&busiest, filling, walked),
        };
        let parts = Breakdown {
            forward: n * busiest.forward,
            backward: n * busiest.backward,
            communication: end.end + n * (busiest.sent_forward + busiest.sent_backward) + waiting,
            bubble,
            optimizer: end.optimizer,
            overhead: n * self.cost.overhead,
        };
        parts.scaled(self.speeds.whole)
    }

    /// Seconds of stage `stage`.
    fn stage(&self, stage: u32) -> Stage {
        let Self { arrangement, cost, .. } = self;
        let layout = &arrangement.layout;
        let (mut blocks, mut again) = (0.0, 0.0);
        for run in chunks_of(stage, arrangement, self.model.blocks()) {
            blocks += f64::from(run.end - run.start);
            again += f64::from((run.end - run.start).div_ceil(arrangement.recompute_every));
        }
        again *= match arrangement.recompute {
            Recompute::None => 0.0,
            Recompute::Selective => 0.15,
            Recompute::Full => 1.0,
        };
        // Around the blocks of a decoder or a perceptron it is the head that computes, of a residual network the stem.
        let outer = match self.model {
            Model::Cnn(_) => stage == 0,
            Model::Decoder(_) | Model::Mlp(_) | Model::Command(_) => stage + 1 == layout.pipeline.get(),
        };
        let outer = if outer { 1.0 } else { 0.0 };
        let cut = f64::from(layout.tensor.get() * layout.context.get());
        let forward = (blocks * cost.block_forward + outer * cost.outer_forward) / cut;
        let products = blocks * cost.block_backward / cut;
        let backward = products + (again * cost.block_forward + outer * cost.outer_backward) / cut;
        let computed = Stage {
            forward,
            backward,
            // Gradients of weights are half of the products of a backward without what is computed again.
            weights: 0.5 * products,
            optimizer: self.update(stage),
            ..Stage::default()
        };
        self.sent(stage, computed)
    }

    /// Adds what the stage sends, from the table of traffic.
    fn sent(&self, stage: u32, mut computed: Stage) -> Stage {
        let mut coord = Coord([0; 5]);
        coord.0[Axis::Pipeline as usize] = stage;
        // Of a ring the second rank sends most.
        coord.0[Axis::Context as usize] = self.arrangement.layout.context.get().min(2) - 1;
        let sender = Sender {
            model: self.model,
            parts: self.parts,
            arrangement: self.arrangement,
            coord,
            micro: self.micro,
        };
        let hidden = overlap(self.arrangement.device);
        // What others wait for is exposed; gradients and gathered weights travel while passes compute.
        let (mut state_forward, mut state_backward, mut reduction) =
            (Sent::default(), Sent::default(), Sent::default());
        sender.each(|transfer| {
            let seconds = self.factors.communication * network::seconds(&transfer, self.speeds);
            #[expect(clippy::cast_precision_loss, reason = "a small count")]
            let all = seconds * transfer.times as f64;
            let is_state = matches!(transfer.purpose, Purpose::Gradients | Purpose::Weights);
            match transfer.when {
                When::Forward | When::Backward if transfer.purpose == Purpose::Pipeline => {
                    computed.message = computed.message.max(seconds);
                }
                When::Forward if is_state => state_forward.add(seconds, transfer.times),
                When::Backward if is_state => state_backward.add(seconds, transfer.times),
                When::Forward => computed.sent_forward += all,
                When::Backward => computed.sent_backward += all,
                When::LastBackward => reduction.add(seconds, transfer.times),
                When::Step => computed.end += all,
            }
        });
        computed.sent_forward += state_forward.exposed(computed.forward, hidden);
        computed.sent_backward += state_backward.exposed(computed.backward, hidden);
        computed.end += reduction.exposed(computed.backward, hidden);
        computed
    }

    /// Seconds that a stage holds up the first micro-batch on its way there and back.
    fn filling(&self, stage: &Stage) -> f64 {
        match self.arrangement.schedule {
            // Its weights are in time anyway, and of later micro-batches as many as there are fill the bubble.
            PipelineSchedule::ZeroBubble => {
                let ahead = f64::from(self.arrangement.layout.pipeline.get() - 1);
                let later = f64::from(self.micro_batches - 1);
                let hidden = if ahead > 0.0 { (later / ahead).min(1.0) } else { 0.0 };
                (stage.micro() - (1.0 + hidden) * stage.weights).max(0.0)
            }
            PipelineSchedule::Gpipe
            | PipelineSchedule::OneForwardOneBackward
            | PipelineSchedule::Interleaved => stage.micro(),
        }
    }

    /// Seconds the busiest stage stands still: while the pipeline fills and drains (Narayanan et al. 2021), and for
    /// messages.
    fn bubble(&self, busiest: &Stage, filling: Filling, walked: bool) -> f64 {
        let Arrangement { layout, chunks, schedule, .. } = *self.arrangement;
        let stages = layout.pipeline.get();
        let shape = Shape { stages, chunks, micros: self.micro_batches };
        let Filling { all, message: transfer } = filling;
        let (p, v) = (f64::from(stages), f64::from(chunks));
        let passes = f64::from(self.micro_batches) * v;
        let closed = (all - self.filling(busiest)) / v + 2.0 * (passes + p - 2.0) * transfer;
        if !walked {
            return closed;
        }
        let pass = |stage: Stage| PassCost {
            forward: (stage.forward + stage.sent_forward) / v,
            input: (stage.backward + stage.sent_backward - stage.weights) / v,
            weights: stage.weights / v,
        };
        let costs: Vec<PassCost> = (0..stages).map(|stage| pass(self.stage(stage))).collect();
        let actions = schedule::passes(schedule, shape);
        walk(&actions, shape, &costs, transfer).map_or(closed, |walked| walked.bubble())
    }

    /// Seconds a replica waits for the slowest: the expected largest of as many normal deviates, for a step of
    /// `compute` seconds whose parts vary independently.
    fn waiting(&self, compute: f64, micro_batches: f64) -> f64 {
        let replicas = f64::from(self.arrangement.layout.data.get());
        let deviation = 1.48 * self.speeds.spread / micro_batches.sqrt();
        let doublings = (replicas / 2.0).ln();
        // Exact at 2, within a tenth up to a thousand.
        let largest = if replicas > 1.0 { 0.564 + 0.67 * doublings / (1.0 + 0.07 * doublings) } else { 0.0 };
        largest * deviation * compute
    }

    /// Seconds to clip and to apply the optimizer to what the rank owns.
    fn update(&self, stage: u32) -> f64 {
        let held = self.parts.stage(self.arrangement, stage).all().all();
        let shard = if self.arrangement.zero == ZeroStage::Zero0 { 1 } else { self.arrangement.shard };
        #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
        let owned = held as f64 / f64::from(shard);
        let kind = optimizer_factor(self.optimizer);
        owned * self.speeds.optimizer_per_parameter * kind * self.factors.compute
    }
}
