//! Prices a candidate: the one place where compute, communication, schedule and memory come together.

mod common;

use crate::choice::front::Cost;
use crate::engine::Engine;
use crate::layout::parameters::Parts;
use crate::layout::space::{Place, Space, Way};
use crate::price::estimate::{Breakdown, Causes};
use crate::price::memory::{Largest, Memory};
use crate::rates::calibrate::Factors;
use crate::rates::compute::MicroCost;
use crate::rates::speeds::{Source, Speeds, nearest, speeds};
use crate::step::picture::Picture;
use crate::step::traffic::Traffic;
use crate::{BatchSplit, Candidate};
use common::Common;
use dtrain_protocol::{Arrangement, Axis, DeviceKind, HostFacts, Layout, RankRates, Rates};
use dtrain_recipes::{Bytes, Model, Optimizer, Precision};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

/// What is asked about: everything but the layout.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The model.
    pub model: &'a Model,
    /// Optimizer.
    pub optimizer: &'a Optimizer,
    /// The host.
    pub host: &'a HostFacts,
    /// Another engine that the choice will be written for.
    pub engine: Option<&'static dyn Engine>,
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
    /// By degrees of the axes that cut weights: the model as the largest rank holds it.
    parts: BTreeMap<(u32, u32), Parts>,
}

/// The degrees that weights are cut by.
fn weight_cuts(layout: &Layout) -> (u32, u32) {
    (layout.degree(Axis::Tensor), layout.degree(Axis::Expert))
}

/// A price, or how far it is from fitting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It fits and a step takes this much.
    Fits(Cost),
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
        let mut parts = BTreeMap::new();
        for layout in space.ways.iter().map(|way| &way.arrangement.layout) {
            parts.entry(weight_cuts(layout)).or_insert_with(|| Parts::largest(case.model, layout));
        }
        Self { case, space, micros, speeds, parts }
    }

    /// The space that is judged.
    pub fn space(&self) -> &'a Space {
        self.space
    }

    /// What a step takes, with pipelines priced in closed form; or the bytes that are missing.
    pub fn verdict(&self, place: Place) -> Verdict {
        self.common(place.way).verdict(place.micro)
    }

    /// The verdicts of many places; what those of one way have in common is counted once where they follow each other.
    pub fn verdicts(&self, places: &[impl Borrow<Place>]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(places.len());
        for of_way in places.chunk_by(|a, b| a.borrow().way == b.borrow().way) {
            let common = self.common(of_way[0].borrow().way);
            verdicts.extend(of_way.iter().map(|place| common.verdict(place.borrow().micro)));
        }
        verdicts
    }

    /// Whether the memory of a rank suffices, and its device gives as much as is needed to one tensor.
    pub fn fits(&self, place: Place) -> bool {
        self.memory(place).total() <= self.available(&self.space.ways[place.way as usize])
            && self.too_large(place).is_none()
    }

    /// A tensor that is larger than the device gives to one, and that size.
    pub fn too_large(&self, place: Place) -> Option<(Largest, Bytes)> {
        self.common(place.way).too_large(place.micro)
    }

    /// Where the time of a step goes, with pipelines walked action by action.
    pub fn time(&self, place: Place) -> Breakdown {
        self.common(place.way).time(place.micro, true)
    }

    /// What a step takes, with pipelines walked action by action.
    pub fn cost(&self, place: Place) -> Cost {
        self.common(place.way).cost(place.micro)
    }

    /// As [`Judge::time`], with every communication by itself.
    pub fn causes(&self, place: Place) -> Causes {
        self.common(place.way).causes(place.micro)
    }

    /// The stages of a pipeline side by side in one step, and the bytes of a rank of each; `None` where their actions wait
    /// for each other forever.
    pub fn picture(&self, place: Place) -> Option<Picture> {
        self.common(place.way).picture(place.micro)
    }

    /// Where the memory of the heaviest rank goes.
    pub fn memory(&self, place: Place) -> Memory {
        self.common(place.way).memory(place.micro)
    }

    /// Bytes that the rank sends in a step that sends most.
    pub fn traffic(&self, place: Place) -> Traffic {
        let way = &self.space.ways[place.way as usize];
        let split = (self.space.micro(place).get(), self.space.micro_batches(place));
        Traffic::largest(self.case.model, &way.arrangement, split)
    }

    /// Bytes one rank of `way` may use: nine tenths of its share of the host, or of its GPU.
    pub fn available(&self, way: &Way) -> Bytes {
        let pool = self.space.pools[way.pool as usize];
        let share = match pool.device {
            DeviceKind::Cpu => {
                self.case.host.memory_bytes / u64::from((pool.ranks / self.case.host.hosts).max(1))
            }
            DeviceKind::Cuda | DeviceKind::Wgpu => self.gpu_memory(),
        };
        Bytes(share / 10 * 9)
    }

    /// Bytes of the smallest GPU.
    fn gpu_memory(&self) -> u64 {
        self.case.host.gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0)
    }

    /// Bytes that the device of a rank of `way` gives to one tensor at most; `None` where it is as much as there is. The runtime
    /// that the worker uses stops with CUDA at a quarter of the memory, and with wgpu at what a binding of Vulkan can hold.
    pub fn largest_tensor(&self, way: &Way) -> Option<Bytes> {
        if self.case.engine.is_some() {
            return None;
        }
        match self.space.pools[way.pool as usize].device {
            DeviceKind::Cpu => None,
            DeviceKind::Cuda => Some(Bytes(self.gpu_memory() / 4)),
            DeviceKind::Wgpu => Some(Bytes(i32::MAX.unsigned_abs().into())),
        }
    }

    /// Devices that `way` keeps busy: GPUs, or cores where CPUs train.
    pub fn devices(&self, way: &Way) -> u32 {
        let pool = self.space.pools[way.pool as usize];
        devices(pool.device, pool.ranks, pool.threads, self.case.host)
    }

    /// Relative half-width of the 80 % interval, and the relative difference that cannot be told apart.
    pub fn doubt(&self, place: Place) -> (f64, f64) {
        let way = &self.space.ways[place.way as usize];
        let speeds = &self.speeds[way.pool as usize];
        let beyond = self.micro_cost(way, self.space.micro(place).get()).beyond;
        let known = self.case.factors.doubt_factor();
        (speeds.doubt * known + 0.15 * beyond, speeds.resolution + 0.05 * beyond)
    }

    /// Where the constants come from.
    pub fn source(&self, place: Place) -> Source {
        self.speeds[self.space.ways[place.way as usize].pool as usize].source
    }

    /// Seconds that the first step takes beyond those after it: what a device compiles and tunes. `None` where nobody measured
    /// them, and on CPUs.
    pub fn first_step(&self, place: Place) -> Option<f64> {
        self.speeds[self.space.ways[place.way as usize].pool as usize].first_step
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

    fn common(&self, way: u32) -> Common<'_> {
        Common::of(self, &self.space.ways[way as usize])
    }

    fn micro_cost(&self, way: &Way, micro: u32) -> MicroCost {
        let index =
            self.micros.binary_search(&micro).expect("every micro-batch of the space is in the table");
        self.speeds[way.pool as usize].micro[precision_index(way.arrangement.precision)][index]
    }
}

/// Devices that `ranks` of so many threads keep busy: GPUs, or cores where CPUs train.
pub fn devices(device: DeviceKind, ranks: u32, threads: u32, host: &HostFacts) -> u32 {
    match device {
        DeviceKind::Cpu => ranks.saturating_mul(threads).min(host.all_cores()).max(1),
        DeviceKind::Cuda | DeviceKind::Wgpu => ranks,
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
            precision: rates.precision,
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
        Precision::Bf16 | Precision::F16 | Precision::Fp8 => 1,
    }
}
