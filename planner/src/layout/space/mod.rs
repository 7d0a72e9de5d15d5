//! The space of candidates: layouts with all degrees that divide the ranks, and a reason for each rejected
//! one.

mod enumerate;
mod part_precision;
mod rank_pools;
mod reader_shares;
mod recompute_options;
mod rejections;

#[cfg(test)]
mod tests;

use crate::engine::{Engine, EngineSupport, TrainingSpec, UnsupportedLayout, unsupported_in_run};
use crate::hardware::GpuSpec;
use crate::layout::batch_split::{BatchSplit, divisors};
use crate::layout::candidate::{Candidate, layout_with_devices};
use crate::layout::rejection::Rejection;
use dtrain_protocol::supported::cannot_run;
use dtrain_protocol::{Arrangement, DeviceKind, HostFacts, Layout, Rates};
use dtrain_recipes::{Decoder, Devices, Model, Recipe, ZeroStage};
use enumerate::{enumerate_arrangements, enumerate_layouts, indivisible, round};
pub(crate) use part_precision::known_part;
use part_precision::lacking_precision;
use rank_pools::pools;
use reader_shares::{largest_share, reader_shares};
pub use rejections::RejectionTally;
use std::num::{NonZeroU32, NonZeroU64};

/// Largest number of micro-batches per step on one rank, which is sent every one of them as actions.
pub const MICRO_BATCHES: u64 = 16_384;

/// A number of ranks to train with, their threads and their device; all ranks are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPool {
    /// Number of ranks over all hosts.
    pub ranks: u32,
    /// Compute threads of each rank.
    pub threads: u32,
    /// Device of each rank.
    pub device: DeviceKind,
}

/// A candidate whose micro-batch is still open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayoutOption {
    /// Index in [`CandidateSpace::pools`] of the ranks that train.
    pub pool: u32,
    /// Index in `CandidateSpace::micros` of the list of possible micro-batches.
    micros: u32,
    /// Layout, schedule, sharding, recompute and precision of the option.
    pub arrangement: Arrangement,
}

/// Id of a candidate: the index of its layout option, and the index of its micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CandidateId {
    /// Index in [`CandidateSpace::options`].
    pub option: u32,
    /// Index of the micro-batch in the list of possible ones of the option.
    pub micro: u32,
}

/// All candidates that the planner considers for a recipe on given hosts.
#[derive(Clone, Debug)]
pub struct CandidateSpace {
    /// Samples of one optimizer step, over all ranks.
    pub batch: NonZeroU64,
    /// Numbers of ranks to try, each with threads and device.
    pub pools: Vec<RankPool>,
    /// Layout options, in a fixed order that does not depend on the order of any input.
    pub options: Vec<LayoutOption>,
    /// Relative work of each data replica in a step; empty when all are equal.
    shares: Vec<u32>,
    /// Lists of possible micro-batch sizes, each in ascending order; options share equal lists.
    micros: Vec<Vec<NonZeroU32>>,
    /// Tally of the candidates rejected before pricing, by reason.
    pub left_out: RejectionTally,
}

/// Reason why replicas with unequal shares cannot shard gradients, which would be reduced after every
/// micro-batch.
const ONCE_A_STEP: &str = "replicas with unequal shares reduce gradients only once per step (layout.zero = \
                          0 or 1)";

/// A check whether the worker can run an arrangement of a model: `None` if it can, otherwise the reason why
/// not.
pub type CapabilityCheck = fn(&Arrangement, &Model) -> Option<String>;

/// Checks that a candidate must pass: the worker, and the engine if any, must be able to run it.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Check of the worker, from whose rates candidates are priced.
    pub worker: CapabilityCheck,
    /// Another engine for which the plan is emitted; `None` for dtrain's own worker.
    pub engine: Option<EngineSupport>,
    /// True if `dtrain run` starts the engine.
    pub is_run: bool,
}

impl Capabilities {
    /// Returns the checks of the worker, and of `engine` where the plan is emitted for it. Engines train
    /// decoders; any other model is refused when the plan is emitted.
    pub fn of(recipe: &Recipe, engine: Option<&'static dyn Engine>) -> Self {
        let training = match &recipe.model {
            Model::Decoder(model) => Some(TrainingSpec::of(model, &recipe.train)),
            Model::Mlp(_) | Model::Cnn(_) | Model::Custom(_) | Model::Command(_) => None,
        };
        let is_run =
            recipe.engine.is_foreign() && engine.is_some_and(|engine| engine.name() == recipe.engine.name());
        let engine = engine.zip(training).map(|(engine, training)| EngineSupport { engine, training });
        Self { worker: cannot_run, engine, is_run }
    }

    /// Returns an arrangement with the engine's exchange of keys and values, where the engine does not have
    /// that of the worker.
    fn with_exchange_of_engine(&self, arrangement: Arrangement) -> Arrangement {
        let known = self.engine.as_ref().map_or(&[][..], |support| support.engine.context_exchanges());
        match known.first() {
            Some(first)
                if arrangement.layout.context.get() > 1 && !known.contains(&arrangement.context_exchange) =>
            {
                Arrangement { context_exchange: *first, ..arrangement }
            }
            _ => arrangement,
        }
    }

    /// Returns the reason why the engine cannot run an arrangement with `passes` passes per rank; `None` if
    /// it can, or if there is no engine.
    fn engine_rejection(&self, arrangement: &Arrangement, passes: u64) -> Option<String> {
        let EngineSupport { engine, training } = self.engine.as_ref()?;
        let passes = u32::try_from(passes).unwrap_or(u32::MAX);
        let UnsupportedLayout { what, instead } = engine
            .unsupported_layout(training, arrangement, passes)
            .or_else(|| self.is_run.then(|| unsupported_in_run(*engine, &training.model, arrangement))?)?;
        Some(format!("{} does not support {what} ({instead})", engine.title()))
    }
}

impl CandidateSpace {
    /// Enumerates the candidates that `recipe` leaves open on `host` for a batch of `batch` samples.
    pub fn of(
        recipe: &Recipe,
        host: &HostFacts,
        rates: Option<&Rates>,
        batch: NonZeroU64,
        abilities: &Capabilities,
    ) -> Self {
        let device = device(recipe, host);
        let part = known_part(host, device);
        let mut space = Self {
            batch,
            pools: pools(recipe, host, rates, device),
            options: Vec::new(),
            shares: recipe.layout.shares.clone().unwrap_or_default(),
            micros: Vec::new(),
            left_out: RejectionTally::default(),
        };
        let mut pins = recipe.layout.clone();
        if let Model::Decoder(Decoder { experts: None, .. })
        | Model::Mlp(_)
        | Model::Cnn(_)
        | Model::Custom(_) = recipe.model
        {
            // Without experts, rejections along the expert axis would be noise.
            pins.expert = pins.expert.or(Some(1));
        }
        for pool in 0..u32::try_from(space.pools.len()).expect("pools are few") {
            for layout in enumerate_layouts(space.pools[pool as usize].ranks, &pins) {
                space.add_layout((recipe, part), pool, layout, abilities);
            }
        }
        space
    }

    /// Adds the options of one layout to the space, or tallies the reason why it has none.
    fn add_layout(
        &mut self,
        (recipe, part): (&Recipe, Option<&GpuSpec>),
        pool: u32,
        layout: Layout,
        abilities: &Capabilities,
    ) {
        let RankPool { threads, device, .. } = self.pools[pool as usize];
        if let Some(rejection) = indivisible(recipe, &layout) {
            self.left_out.add(1, &rejection, || layout_with_devices(&layout, device, threads), 0);
            return;
        }
        let shares = reader_shares(self.batch, &layout, &self.shares);
        let mut micros = micros(&shares, recipe.layout.micro_batch);
        let is_none = micros.is_empty();
        let most = shares.iter().copied().max().unwrap_or(0);
        micros.retain(|micro| most / u64::from(micro.get()) <= MICRO_BATCHES);
        if micros.is_empty() && !is_none {
            let rejection = Rejection::CannotRun(format!(
                "{most} samples of a step on one rank are more than {MICRO_BATCHES} micro-batches"
            ));
            self.left_out.add(1, &rejection, || layout_with_devices(&layout, device, threads), 0);
            return;
        }
        if micros.is_empty() {
            let rejection = Rejection::BatchDoesNotDivide {
                batch: self.batch.get(),
                micro: recipe.layout.micro_batch.unwrap_or(1),
                replicas: layout.readers(),
            };
            self.left_out.add(1, &rejection, || layout_with_devices(&layout, device, threads), 0);
            return;
        }
        let count = micros.len() as u64;
        let is_uneven = shares.windows(2).any(|pair| pair[0] != pair[1]);
        for arrangement in enumerate_arrangements(recipe, layout, device, part) {
            let round = round(&arrangement);
            let is_whole = |micro: &&NonZeroU32| {
                let passes = |share: &u64| share / u64::from(micro.get());
                shares.iter().all(|share| passes(share).is_multiple_of(round.into()))
            };
            let mut fitting: Vec<_> = micros.iter().filter(is_whole).copied().collect();
            let uneven = || {
                format!("the interleaved schedule needs micro-batches in multiples of its stages: {round}")
            };
            let reason = (abilities.worker)(&arrangement, &recipe.model)
                .or_else(|| (is_uneven && arrangement.zero >= ZeroStage::Zero2).then(|| ONCE_A_STEP.into()))
                .or_else(|| fitting.is_empty().then(uneven));
            let arrangement = abilities.with_exchange_of_engine(arrangement);
            let mut refused = None;
            if reason.is_none() && abilities.engine.is_some() {
                fitting.retain(|micro| {
                    let reason = abilities.engine_rejection(&arrangement, most / u64::from(micro.get()));
                    let is_able = reason.is_none();
                    refused = refused.take().or(reason);
                    is_able
                });
            }
            let refused = refused.filter(|_| fitting.is_empty()).map(Rejection::EngineCannot);
            let lacking = lacking_precision(part, arrangement.precision);
            match reason.map(Rejection::CannotRun).or(lacking).or(refused) {
                Some(rejection) => {
                    self.left_out.add(count, &rejection, || layout_with_devices(&layout, device, threads), 0);
                }
                None => {
                    let micros = self.list(fitting);
                    self.options.push(LayoutOption { pool, micros, arrangement });
                }
            }
        }
    }

    /// Returns the index of a list of micro-batches, adding the list if it is new.
    fn list(&mut self, micros: Vec<NonZeroU32>) -> u32 {
        let place = self.micros.iter().rposition(|known| *known == micros).unwrap_or_else(|| {
            self.micros.push(micros);
            self.micros.len() - 1
        });
        u32::try_from(place).expect("lists are few")
    }

    /// Returns a space that holds only `candidate`; `None` if its batch is zero.
    pub fn single(candidate: &Candidate) -> Option<Self> {
        let Candidate { arrangement, ref split, threads, .. } = *candidate;
        let (layout, device) = (arrangement.layout, arrangement.device);
        let micro = NonZeroU32::new(split.micro())?;
        Some(Self {
            batch: NonZeroU64::new(split.global())?,
            pools: vec![RankPool { ranks: layout.world(), threads, device }],
            options: vec![LayoutOption { pool: 0, micros: 0, arrangement }],
            shares: split.shares(layout.expert),
            micros: vec![vec![micro]],
            left_out: RejectionTally::default(),
        })
    }

    /// Returns the possible micro-batch sizes of a layout option, in ascending order.
    pub fn micros(&self, option: &LayoutOption) -> &[NonZeroU32] {
        &self.micros[option.micros as usize]
    }

    /// Returns the micro-batch size of candidate `id`.
    pub fn micro(&self, id: CandidateId) -> NonZeroU32 {
        self.micros(&self.options[id.option as usize])[id.micro as usize]
    }

    /// Returns the samples per step of the reader with the largest share, in a layout option.
    pub fn samples(&self, option: &LayoutOption) -> u64 {
        largest_share(self.batch, &option.arrangement.layout, &self.shares)
    }

    /// Returns the forward passes per step of the reader with the largest share, for candidate `id`.
    pub fn micro_batches(&self, id: CandidateId) -> u32 {
        let samples = self.samples(&self.options[id.option as usize]);
        u32::try_from(samples / u64::from(self.micro(id).get())).unwrap_or(u32::MAX)
    }

    /// Returns the ids of all candidates in the space, in order.
    pub fn candidate_ids(&self) -> impl Iterator<Item = CandidateId> {
        (0u32..).zip(&self.options).flat_map(|(option, of)| {
            let count = u32::try_from(self.micros(of).len()).expect("divisors are few");
            (0..count).map(move |micro| CandidateId { option, micro })
        })
    }

    /// Returns the micro-batch sizes of all options together, in ascending order.
    pub fn all_micro_batch_sizes(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.micros.iter().flatten().map(|m| m.get()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the number of candidates in the space.
    pub fn len(&self) -> u64 {
        self.options.iter().map(|option| self.micros(option).len() as u64).sum()
    }

    /// Returns `true` if the space has no candidates.
    pub fn is_empty(&self) -> bool {
        self.options.is_empty()
    }

    /// Returns candidate `id` with the given learning rate.
    pub fn candidate(&self, id: CandidateId, learning_rate: f64) -> Candidate {
        let option = self.options[id.option as usize];
        let pool = self.pools[option.pool as usize];
        let micro = self.micro(id);
        let shares = reader_shares(self.batch, &option.arrangement.layout, &self.shares);
        Candidate {
            arrangement: option.arrangement,
            split: BatchSplit::of_shares(&shares, micro).expect("micro-batches divide the shares"),
            threads: pool.threads,
            learning_rate,
        }
    }
}

/// Returns the kind of device that trains `recipe` on `host`.
pub fn device(recipe: &Recipe, host: &HostFacts) -> DeviceKind {
    match recipe.cluster.devices {
        Devices::Cpu => DeviceKind::Cpu,
        Devices::Cuda => DeviceKind::Cuda,
        Devices::Gpu => host.gpu_device().unwrap_or(DeviceKind::Cuda),
        Devices::Auto => host.gpu_device().unwrap_or(DeviceKind::Cpu),
    }
}

/// Returns the most ranks that the planner would choose: one for each core or GPU of all hosts.
pub fn max_ranks(host: &HostFacts, device: DeviceKind) -> u32 {
    match device {
        DeviceKind::Cpu => host.all_cores().max(1),
        DeviceKind::Cuda | DeviceKind::Wgpu => {
            u32::try_from(host.gpus.len()).unwrap_or(u32::MAX).saturating_mul(host.hosts.get())
        }
    }
}

/// Returns the micro-batch sizes that divide the shares of all readers, in ascending order; empty when there
/// are no shares.
fn micros(shares: &[u64], pinned: Option<u32>) -> Vec<NonZeroU32> {
    let Some(common) = shares.iter().copied().reduce(greatest_divisor) else { return Vec::new() };
    let sizes = divisors(common).into_iter().filter_map(|d| u32::try_from(d).ok());
    let wanted = sizes.filter(|d| pinned.is_none_or(|p| p == *d));
    wanted.filter_map(NonZeroU32::new).collect()
}

/// Returns the greatest common divisor of `a` and `b`, by Euclid's algorithm.
fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}
