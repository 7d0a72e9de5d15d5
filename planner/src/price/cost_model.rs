//! The cost model of dtrain's own worker: prices a candidate from its compute, communication, schedule and
//! memory.

mod fits_in_memory;
mod layout_costs;

use crate::layout::batch_split::BatchSplit;
use crate::layout::candidate::Candidate;
use crate::layout::parameters::ModelParameters;
use crate::layout::space::{CandidateId, CandidateSpace, LayoutOption};
use crate::price::candidate_cost::CandidateCost;
use crate::price::estimate::{Causes, TimeBreakdown};
use crate::price::memory::MemoryBreakdown;
use crate::price::step_profile::StepProfile;
use crate::rates::calibrate::Factors;
use crate::rates::compute::MicroBatchCost;
use crate::rates::cost_inputs::CostInputs;
use crate::rates::speeds::{RankSpeeds, SpeedSource, nearest_measurement, rank_speeds};
use crate::step::traffic::Traffic;
use dtrain_protocol::{Arrangement, Axis, DeviceKind, HostFacts, Layout, RankRates};
use dtrain_recipes::Precision;
pub use fits_in_memory::Feasibility;
use layout_costs::LayoutCosts;
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

/// Prices every candidate of a space, from tables that they share.
#[derive(Clone, Debug)]
pub struct CostModel<'a> {
    case: CostInputs<'a>,
    space: &'a CandidateSpace,
    micros: Vec<u32>,
    speeds: Vec<RankSpeeds>,
    /// Parameters of the largest rank, by the degrees of the tensor and expert axes, which shard weights.
    parts: BTreeMap<(u32, u32), ModelParameters>,
}

/// Returns the degrees of the axes that shard weights: tensor and expert.
fn weight_cuts(layout: &Layout) -> (u32, u32) {
    (layout.degree(Axis::Tensor), layout.degree(Axis::Expert))
}

impl<'a> CostModel<'a> {
    /// Builds the tables: the cost of every micro-batch size on every pool of ranks.
    pub fn new(case: CostInputs<'a>, space: &'a CandidateSpace) -> Self {
        let mut cost_model = Self::sum_of_parts(case, space);
        for (pool, speeds) in space.pools.iter().zip(&mut cost_model.speeds) {
            speeds.whole = nearest_measurement(&case, *pool)
                .and_then(|rates| whole_step_ratio(&case, rates))
                .unwrap_or(1.0);
        }
        cost_model
    }

    /// Builds the tables like [`CostModel::new`], but without the measured ratio of whole steps to the sum of
    /// their parts.
    fn sum_of_parts(case: CostInputs<'a>, space: &'a CandidateSpace) -> Self {
        let micros = space.all_micro_batch_sizes();
        let speeds = space.pools.iter().map(|pool| rank_speeds(&case, *pool, &micros)).collect();
        let mut parts = BTreeMap::new();
        for layout in space.options.iter().map(|option| &option.arrangement.layout) {
            parts.entry(weight_cuts(layout)).or_insert_with(|| ModelParameters::largest(case.model, layout));
        }
        Self { case, space, micros, speeds, parts }
    }

    /// Returns the space of the candidates that the model prices.
    pub fn space(&self) -> &'a CandidateSpace {
        self.space
    }

    /// Returns the time of a step of candidate `id` by part, with pipelines simulated action by action.
    pub fn time(&self, id: CandidateId) -> TimeBreakdown {
        self.layout_costs(id.option).time(id.micro, true)
    }

    /// Returns the cost of candidate `id`, with pipelines simulated action by action.
    pub fn cost(&self, id: CandidateId) -> CandidateCost {
        self.layout_costs(id.option).cost(id.micro)
    }

    /// Returns the time of a step of candidate `id` by cause: like [`CostModel::time`], with each kind of
    /// communication apart.
    pub fn causes(&self, id: CandidateId) -> Causes {
        self.layout_costs(id.option).causes(id.micro)
    }

    /// Returns the profile of a step of candidate `id`: the timeline of all stages, and the memory of a rank
    /// of each; `None` when the schedule deadlocks.
    pub fn step_profile(&self, id: CandidateId) -> Option<StepProfile> {
        self.layout_costs(id.option).step_profile(id.micro)
    }

    /// Returns the peak memory of the heaviest rank of candidate `id`, by category.
    pub fn memory(&self, id: CandidateId) -> MemoryBreakdown {
        self.layout_costs(id.option).memory(id.micro)
    }

    /// Returns the bytes sent in a step of candidate `id` by the rank that sends most.
    pub fn traffic(&self, id: CandidateId) -> Traffic {
        let option = &self.space.options[id.option as usize];
        let split = (self.space.micro(id).get(), self.space.micro_batches(id));
        Traffic::largest(self.case.model, &option.arrangement, split)
    }

    /// Returns the number of devices that `option` keeps busy: GPUs, or cores where CPUs train.
    pub fn devices(&self, option: &LayoutOption) -> u32 {
        let pool = self.space.pools[option.pool as usize];
        devices(pool.device, pool.ranks, pool.threads, self.case.host)
    }

    /// Returns the uncertainty of the step time of candidate `id`: the relative half-width of its 80 %
    /// interval, and the relative difference below which candidates tie.
    pub fn uncertainty(&self, id: CandidateId) -> (f64, f64) {
        let option = &self.space.options[id.option as usize];
        let speeds = &self.speeds[option.pool as usize];
        let beyond = self.micro_cost(option, self.space.micro(id).get()).beyond;
        let known = self.case.factors.doubt_factor();
        (speeds.doubt * known + 0.15 * beyond, speeds.resolution + 0.05 * beyond)
    }

    /// Returns the source of the speeds from which candidate `id` is priced.
    pub fn source(&self, id: CandidateId) -> SpeedSource {
        self.speeds[self.space.options[id.option as usize].pool as usize].source
    }

    /// Returns the extra seconds of the first step of candidate `id`, in which the device compiles and tunes
    /// kernels; `None` where they were not measured, and on CPUs.
    pub fn first_step(&self, id: CandidateId) -> Option<f64> {
        self.speeds[self.space.options[id.option as usize].pool as usize].first_step
    }

    /// Returns the correction factors of the predicted times, from earlier trials.
    pub fn factors(&self) -> Factors {
        self.case.factors
    }

    /// Returns the id of a candidate, whatever its learning rate; `None` if the space does not have it.
    pub fn candidate_id(&self, candidate: &Candidate) -> Option<CandidateId> {
        let same = |option: &LayoutOption| {
            let pool = self.space.pools[option.pool as usize];
            option.arrangement == candidate.arrangement && pool.threads == candidate.threads
        };
        let option = self.space.options.iter().position(same)?;
        let micros = self.space.micros(&self.space.options[option]);
        let micro = micros.iter().position(|m| m.get() == candidate.split.micro())?;
        Some(CandidateId { option: u32::try_from(option).ok()?, micro: u32::try_from(micro).ok()? })
    }

    fn layout_costs(&self, option: u32) -> LayoutCosts<'_> {
        LayoutCosts::of(self, &self.space.options[option as usize])
    }

    fn micro_cost(&self, option: &LayoutOption, micro: u32) -> MicroBatchCost {
        let index =
            self.micros.binary_search(&micro).expect("every micro-batch of the space is in the table");
        self.speeds[option.pool as usize].micro[precision_index(option.arrangement.precision)][index]
    }
}

/// Returns the number of devices that `ranks` ranks with `threads` threads each keep busy: GPUs, or cores
/// where CPUs train.
pub fn devices(device: DeviceKind, ranks: u32, threads: u32, host: &HostFacts) -> u32 {
    match device {
        DeviceKind::Cpu => ranks.saturating_mul(threads).min(host.all_cores()).max(1),
        DeviceKind::Cuda | DeviceKind::Wgpu => ranks,
    }
}

/// Returns the ratio of the measured time of whole steps to the sum of their parts, which the same probe
/// timed one by one; `None` when no whole step was measured.
fn whole_step_ratio(case: &CostInputs<'_>, rates: &RankRates) -> Option<f64> {
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
    let space = CandidateSpace::single(&candidate)?;
    let cost_model = CostModel::sum_of_parts(CostInputs { factors: Factors::default(), ..*case }, &space);
    let parts = cost_model.time(CandidateId { option: 0, micro: 0 }).total();
    let ratio = measured.seconds / parts;
    ratio.is_finite().then(|| ratio.clamp(0.5, 2.0))
}

fn precision_index(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 0,
        Precision::Bf16 | Precision::F16 | Precision::Fp8 => 1,
    }
}
