//! Prices a candidate: the one place where compute, communication, schedule and memory come together.

use crate::calibrate::Factors;
use crate::compute::MicroCost;
use crate::estimate::Breakdown;
use crate::memory::{self, Held, Memory};
use crate::network::{self, Level};
use crate::schedule::{self, Shape};
use crate::simulate::{PassCost, exposed_reduction, walk};
use crate::space::{Place, Space, Way};
use crate::speeds::{Source, Speeds, nearest, speeds};
use crate::{BatchSplit, Candidate};
use dtrain_protocol::{Arrangement, DeviceKind, HostFacts, Layout, RankRates, Rates};
use dtrain_recipes::{
    Bytes, Model, Optimizer, OptimizerKind, PipelineSchedule, Precision, Recompute, ZeroStage,
};
use std::num::{NonZeroU32, NonZeroU64};

/// Bytes of one bucket of gradients, as the worker cuts them.
pub const BUCKET_BYTES: u64 = 1 << 20;

/// Share of the last backward that the reduction of gradients can hide behind. On a CPU the reduction is done
/// by the cores that compute, so nothing is hidden.
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

/// What is asked about: everything but the layout.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The model.
    pub model: &'a Model,
    /// The update rule.
    pub optimizer: &'a Optimizer,
    /// The host.
    pub host: &'a HostFacts,
    /// Measured speeds, where there are any.
    pub rates: Option<&'a Rates>,
    /// Correction from earlier trials.
    pub factors: Factors,
}

/// Prices every candidate of a space.
#[derive(Clone, Debug)]
pub struct Judge<'a> {
    case: Case<'a>,
    space: &'a Space,
    micros: Vec<u32>,
    speeds: Vec<Speeds>,
}

/// A price, or how far it is from fitting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It fits and a step takes this many seconds.
    Fits(f64),
    /// It needs this many bytes more than there are.
    TooMuch(Bytes),
}

impl<'a> Judge<'a> {
    /// Prepares the tables: the cost of every micro-batch on every pool.
    pub fn new(case: Case<'a>, space: &'a Space) -> Self {
        let mut judge = Self::by_parts(case, space);
        for (pool, speeds) in space.pools.iter().zip(&mut judge.speeds) {
            speeds.whole = nearest(&case, *pool).and_then(|rates| whole(&case, rates)).unwrap_or(1.0);
        }
        judge
    }

    /// As [`Judge::new`], taking a step for the sum of its parts.
    fn by_parts(case: Case<'a>, space: &'a Space) -> Self {
        let micros = space.all_micros();
        let speeds = space.pools.iter().map(|pool| speeds(&case, *pool, &micros)).collect();
        Self { case, space, micros, speeds }
    }

    /// The space that is judged.
    pub fn space(&self) -> &'a Space {
        self.space
    }

    /// Seconds of a step, with pipelines priced in closed form; or the bytes that are missing.
    pub fn verdict(&self, place: Place) -> Verdict {
        let (way, micro, micro_batches) = self.parts_of(place);
        let needed = memory::peak(&self.held(&way, micro, micro_batches)).total();
        let available = self.available(&way);
        if needed > available {
            return Verdict::TooMuch(Bytes(needed.0 - available.0));
        }
        Verdict::Fits(self.breakdown(&way, micro, micro_batches, false).total())
    }

    /// Whether the memory of a rank suffices.
    pub fn fits(&self, place: Place) -> bool {
        self.memory(place).total() <= self.available(&self.space.ways[place.way as usize])
    }

    /// Where the time of a step goes, with pipelines walked action by action.
    pub fn time(&self, place: Place) -> Breakdown {
        let (way, micro, micro_batches) = self.parts_of(place);
        self.breakdown(&way, micro, micro_batches, true)
    }

    /// Where the memory of the heaviest rank goes.
    pub fn memory(&self, place: Place) -> Memory {
        let (way, micro, micro_batches) = self.parts_of(place);
        memory::peak(&self.held(&way, micro, micro_batches))
    }

    /// Bytes one rank of `way` may use: nine tenths of its share of the host, or of its GPU.
    pub fn available(&self, way: &Way) -> Bytes {
        let pool = self.space.pools[way.pool as usize];
        let share = match pool.device {
            DeviceKind::Cpu => self.case.host.memory_bytes / u64::from(pool.ranks),
            DeviceKind::Cuda => self.case.host.gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0),
        };
        Bytes(share / 10 * 9)
    }

    /// Relative half-width of the 80 % interval, and the relative difference that cannot be told apart.
    pub fn doubt(&self, place: Place) -> (f64, f64) {
        let (way, micro, _) = self.parts_of(place);
        let speeds = &self.speeds[way.pool as usize];
        let beyond = self.micro_cost(&way, micro).beyond;
        let known = self.case.factors.doubt_factor();
        (speeds.doubt * known + 0.15 * beyond, speeds.resolution + 0.05 * beyond)
    }

    /// Where the constants come from.
    pub fn source(&self, place: Place) -> Source {
        self.speeds[self.space.ways[place.way as usize].pool as usize].source
    }

    /// The correction from earlier trials.
    pub fn factors(&self) -> Factors {
        self.case.factors
    }

    /// The place of a candidate, when it is in the space; the learning rate does not matter.
    pub fn place(&self, candidate: &Candidate) -> Option<Place> {
        let same = |way: &Way| {
            let pool = self.space.pools[way.pool as usize];
            way.arrangement == candidate.arrangement && pool.threads == candidate.threads
        };
        let way = self.space.ways.iter().position(same)?;
        let micros = self.space.micros(&self.space.ways[way]);
        let micro = micros.iter().position(|m| m.get() == candidate.split.micro())?;
        Some(Place { way: u32::try_from(way).ok()?, micro: u32::try_from(micro).ok()? })
    }

    /// The way, its micro-batch and its number of micro-batches.
    fn parts_of(&self, place: Place) -> (Way, u32, u32) {
        let way = self.space.ways[place.way as usize];
        let micro = self.space.micro(place).get();
        let share = self.space.batch.get() / u64::from(way.arrangement.layout.readers());
        let micro_batches = u32::try_from(share / u64::from(micro)).unwrap_or(u32::MAX);
        (way, micro, micro_batches)
    }

    fn held(&self, way: &Way, micro: u32, micro_batches: u32) -> Held<'a> {
        Held {
            model: self.case.model,
            optimizer: self.case.optimizer,
            arrangement: way.arrangement,
            micro,
            micro_batches,
            baseline: self.speeds[way.pool as usize].baseline,
        }
    }

    fn micro_cost(&self, way: &Way, micro: u32) -> MicroCost {
        let index =
            self.micros.binary_search(&micro).expect("every micro-batch of the space is in the table");
        self.speeds[way.pool as usize].micro[precision_index(way.arrangement.precision)][index]
    }

    fn breakdown(&self, way: &Way, micro: u32, micro_batches: u32, walked: bool) -> Breakdown {
        let cost = self.micro_cost(way, micro);
        let layout = &way.arrangement.layout;
        let (stages, n) = (layout.pipeline.get(), f64::from(micro_batches));
        let cut = f64::from(layout.tensor.get() * layout.context.get());
        let blocks = self.case.model.blocks();
        let deepest = f64::from(blocks.div_ceil(stages)) / cut;
        let again = match way.arrangement.recompute {
            Recompute::None => 0.0,
            Recompute::Selective => 0.15,
            Recompute::Full => 1.0,
        };
        let forward = deepest * cost.block_forward + cost.outer_forward / cut;
        let backward =
            deepest * (cost.block_backward + again * cost.block_forward) + cost.outer_backward / cut;
        let within = self.within_micro(way, micro, deepest * cut);
        let reduction = self.reduction(way);
        let buckets = (4 * self.rank_parameters(way)).div_ceil(BUCKET_BYTES);
        let device = self.space.pools[way.pool as usize].device;
        let exposed = exposed_reduction(reduction, buckets, backward, overlap(device));
        let chunks = f64::from(way.arrangement.chunks);
        let pass = PassCost {
            forward: (forward + within / 3.0) / chunks,
            // Gradients of weights are half of the products of a backward without what is computed again.
            input: (backward + within * 2.0 / 3.0 - 0.5 * deepest * cost.block_backward) / chunks,
            weights: 0.5 * deepest * cost.block_backward / chunks,
        };
        let waiting = self.waiting(way, n * (forward + backward), n);
        let parts = Breakdown {
            forward: n * forward,
            backward: n * backward,
            communication: exposed + n * within + waiting,
            bubble: self.bubble(way, micro, micro_batches, pass, walked),
            optimizer: self.optimizer(way),
            overhead: n * cost.overhead,
        };
        parts.scaled(self.speeds[way.pool as usize].whole)
    }

    /// Seconds the busiest stage stands still.
    fn bubble(&self, way: &Way, micro: u32, micro_batches: u32, pass: PassCost, walked: bool) -> f64 {
        let stages = way.arrangement.layout.pipeline;
        if stages.get() == 1 {
            return 0.0;
        }
        let width = match self.case.model {
            Model::Decoder(d) => f64::from(d.context) * f64::from(d.hidden),
            Model::Mlp(_) | Model::Cnn(_) | Model::Command(_) => 0.0,
        };
        let link = &self.speeds[way.pool as usize].link;
        let cut = f64::from(way.arrangement.layout.tensor.get() * way.arrangement.layout.context.get());
        let bytes = 4.0 * f64::from(micro) * width / cut;
        let transfer = self.case.factors.communication * (link.link_latency + bytes / link.link_bandwidth);
        let arrangement = &way.arrangement;
        let shape = Shape { stages: stages.get(), chunks: arrangement.chunks, micros: micro_batches };
        let (p, n) = (f64::from(stages.get()), f64::from(micro_batches * arrangement.chunks));
        let filling = match arrangement.schedule {
            PipelineSchedule::ZeroBubble => pass.forward + pass.input - pass.weights,
            PipelineSchedule::Gpipe
            | PipelineSchedule::OneForwardOneBackward
            | PipelineSchedule::Interleaved => pass.forward + pass.input + pass.weights,
        };
        let closed = (p - 1.0) * filling.max(0.0) + 2.0 * (n + p - 2.0) * transfer;
        let actions = || {
            let all = schedule::passes(arrangement.schedule, shape);
            walk(&all, shape, &vec![pass; all.len()], transfer).map(|walked| walked.bubble())
        };
        if walked { actions().unwrap_or(closed) } else { closed }
    }

    /// Seconds of communication inside one micro-batch: tensor and context parallelism, and gathering the
    /// weights of zero 3.
    fn within_micro(&self, way: &Way, micro: u32, blocks: f64) -> f64 {
        let link = &self.speeds[way.pool as usize].link;
        let level = |members| [Level { members, bandwidth: link.link_bandwidth, latency: link.link_latency }];
        let mut seconds = 0.0;
        if let Model::Decoder(d) = self.case.model {
            let width =
                f64::from(d.context) * f64::from(d.hidden) / f64::from(way.arrangement.layout.context.get());
            let bytes = 4.0 * f64::from(micro) * width;
            seconds += blocks * 4.0 * network::all_reduce(bytes, &level(way.arrangement.layout.tensor.get()));
            let keys = bytes * 2.0 * f64::from(d.kv_heads) / f64::from(d.heads);
            seconds +=
                blocks * 3.0 * network::reduce_scatter(keys, &level(way.arrangement.layout.context.get()));
        }
        if way.arrangement.zero == ZeroStage::Zero3 {
            #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
            let bytes = 4.0 * self.rank_parameters(way) as f64;
            seconds += 2.0 * network::reduce_scatter(bytes, &level(way.arrangement.layout.data.get()));
        }
        seconds * self.case.factors.communication
    }

    /// Seconds to sum the gradients of all replicas. Sharded stages scatter and gather: the same volume.
    fn reduction(&self, way: &Way) -> f64 {
        if way.arrangement.layout.data.get() == 1 {
            return 0.0;
        }
        let speeds = &self.speeds[way.pool as usize];
        let bytes = 4 * self.rank_parameters(way);
        let (buckets, rest) = (bytes / BUCKET_BYTES, bytes % BUCKET_BYTES);
        let curve = |bytes| network::measured(&speeds.all_reduce, bytes).map(|s| s * speeds.all_reduce_scale);
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        let formula = |bytes: u64| {
            let members = way.arrangement.layout.data.get();
            let (bandwidth, latency) = (speeds.link.link_bandwidth, speeds.link.link_latency);
            network::all_reduce(bytes as f64, &[Level { members, bandwidth, latency }])
        };
        let one = |bytes: u64| if bytes == 0 { 0.0 } else { curve(bytes).unwrap_or_else(|| formula(bytes)) };
        #[expect(clippy::cast_precision_loss, reason = "buckets are far below 2^52")]
        let all = buckets as f64 * one(BUCKET_BYTES) + one(rest);
        self.case.factors.communication * all
    }

    /// Seconds a replica waits for the slowest: the expected largest of as many normal deviates, for a step of
    /// `compute` seconds whose parts vary independently.
    fn waiting(&self, way: &Way, compute: f64, micro_batches: f64) -> f64 {
        let replicas = f64::from(way.arrangement.layout.data.get());
        let deviation = 1.48 * self.speeds[way.pool as usize].spread / micro_batches.sqrt();
        let doublings = (replicas / 2.0).ln();
        // Exact at 2, within a tenth up to a thousand.
        let largest = if replicas > 1.0 { 0.564 + 0.67 * doublings / (1.0 + 0.07 * doublings) } else { 0.0 };
        largest * deviation * compute
    }

    fn optimizer(&self, way: &Way) -> f64 {
        let shard =
            if way.arrangement.zero == ZeroStage::Zero0 { 1 } else { way.arrangement.layout.data.get() };
        #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
        let parameters = self.rank_parameters(way) as f64 / f64::from(shard);
        let kind = optimizer_factor(self.case.optimizer.kind);
        parameters * self.speeds[way.pool as usize].optimizer_per_parameter * kind * self.case.factors.compute
    }

    /// Parameters one rank computes with.
    fn rank_parameters(&self, way: &Way) -> u64 {
        let cut =
            u64::from(way.arrangement.layout.tensor.get()) * u64::from(way.arrangement.layout.pipeline.get());
        self.case.model.parameters() / cut
    }
}

/// How much longer the whole steps of a measurement took than the sum of their parts, which the same measurement
/// timed one by one. `None` when no whole step was measured.
fn whole(case: &Case<'_>, rates: &RankRates) -> Option<f64> {
    let measured = rates.whole_step?;
    let positive = NonZeroU32::new;
    let (micro, ranks) = (positive(measured.micro_batch)?, positive(rates.ranks)?);
    let global = u64::from(measured.micro_batch) * u64::from(measured.micro_batches) * u64::from(rates.ranks);
    let candidate = Candidate {
        arrangement: Arrangement {
            layout: Layout::replicas(ranks),
            device: rates.device,
            ..Arrangement::SINGLE
        },
        split: BatchSplit::of(NonZeroU64::new(global)?, micro, ranks).ok()?,
        threads: rates.threads.max(1),
        learning_rate: 0.0,
    };
    let space = Space::single(&candidate)?;
    let judge = Judge::by_parts(Case { factors: Factors::default(), ..*case }, &space);
    let parts = judge.time(Place { way: 0, micro: 0 }).total();
    let ratio = measured.seconds / parts;
    ratio.is_finite().then(|| ratio.clamp(0.5, 2.0))
}

fn precision_index(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 0,
        Precision::Bf16 => 1,
    }
}
