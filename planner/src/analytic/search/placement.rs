//! Bounds and options that all layouts of one rank placement share.

use super::best_layouts::{BestLayouts, SearchAxis};
use super::micro_batch_modes::MicroBatchMode;
use super::pipeline_options::{PLAIN_ENDS, PipelineOption};
use super::space::{SearchProblem, to_count};
use crate::analytic::memory::{LayerMemory, MemoryLowerBound};
use crate::analytic::{StagePartition, StepConfig, StepInputs, StepTimes};
use dtrain_protocol::{Arrangement, EmbeddingHeadCost};
use dtrain_recipes::{PipelineSchedule, ZeroStage};
use std::cell::{Cell, OnceCell};

/// A pipeline schedule, with the shardings (ZeRO stage, replicas) that the engine supports with it.
type SupportedPasses = (PipelineOption, Vec<(ZeroStage, u32)>);

/// A rank placement, with fixed degrees and rank order; a search fills in the rest.
pub(super) struct RankPlacement<'a> {
    problem: &'a SearchProblem,
    pub(super) config: StepConfig,
    /// ZeRO stages to try, each with the number of replicas among which state is sharded.
    pub(super) shards: Vec<(ZeroStage, u32)>,
    /// Schedules to try for micro-batches of one sample; interleaved ones come last.
    schedules: Vec<PipelineOption>,
    able: OnceCell<Vec<SupportedPasses>>,
    least: OnceCell<MemoryLowerBound>,
    least_of_ends: OnceCell<MemoryLowerBound>,
    /// Seconds from which on no layout is kept, with the change count of the table from which they were
    /// computed.
    slowest: Cell<Option<(u64, f64)>>,
}

impl<'a> RankPlacement<'a> {
    pub(super) fn of(problem: &'a SearchProblem, config: StepConfig) -> Self {
        Self {
            problem,
            config,
            shards: problem.shards(&config),
            schedules: problem.schedules(&config),
            able: OnceCell::new(),
            least: OnceCell::new(),
            least_of_ends: OnceCell::new(),
            slowest: Cell::new(None),
        }
    }

    /// Returns the schedules that the number of micro-batches of `open` allows.
    pub(super) fn schedules(&self, open: &StepConfig) -> &[PipelineOption] {
        let is_even = to_count(open.micro_batches()).is_multiple_of(open.arrangement.layout.pipeline.get());
        let plain = |passes: &&PipelineOption| is_even || passes.schedule != PipelineSchedule::Interleaved;
        &self.schedules[..self.schedules.iter().take_while(plain).count()]
    }

    /// Returns the schedules, each with the shardings that the engine supports for some layout. The engine is
    /// asked about the smallest micro-batch only, as it supports that wherever it supports larger ones.
    pub(super) fn able(&self) -> &[SupportedPasses] {
        let of = |passes: &PipelineOption| {
            let can = |shard: &&(ZeroStage, u32)| self.problem.may_run(&passes.of(&self.config), **shard);
            (*passes, self.shards.iter().filter(can).copied().collect())
        };
        self.able.get_or_init(|| self.schedules.iter().map(of).collect())
    }

    /// Returns `true` if the engine can run some layout of this placement.
    pub(super) fn may_run(&self) -> bool {
        self.able().iter().any(|(_, shards)| !shards.is_empty())
    }

    /// Returns the shardings that the engine supports with some schedule.
    fn able_shards(&self) -> Vec<(ZeroStage, u32)> {
        let able = self.able();
        let can = |shard: &&(ZeroStage, u32)| able.iter().any(|(_, shards)| shards.contains(shard));
        self.shards.iter().filter(can).copied().collect()
    }

    /// Returns `true` if the micro-batch of `case` may fit into memory in the layout that saves the fewest
    /// activations.
    pub(super) fn may_fit(&self, case: &StepInputs<'_>, (config, kept): (StepConfig, LayerMemory)) -> bool {
        // No first or last stage has fewer layers.
        let fewest = to_count((case.model.layers / case.config.pipeline()).floor() - 2.0);
        let ends = StagePartition { first: fewest, last: fewest, second: 0, most: 0, most_at: 0 };
        let case = StepInputs { config, ..*case };
        let least = self.least_of_ends.get_or_init(|| MemoryLowerBound::of(&case, &self.shards, ends));
        least.bytes(&case, &kept) <= self.problem.cluster.memory
    }

    /// Returns a lower bound on the bytes of the heaviest rank in the micro-batch mode `way`.
    fn bytes(&self, case: &StepInputs<'_>, way: &MicroBatchMode) -> f64 {
        let of = || {
            let stages = case.config.arrangement.layout.pipeline.get();
            let layers = case.model.layers / case.config.pipeline();
            let (ends, others) = (to_count(layers.floor() - 2.0), to_count(layers.floor()));
            let division = match stages {
                1 => StagePartition { first: others, last: others, second: 0, most: 0, most_at: 0 },
                2 => StagePartition { first: ends, last: ends, second: 0, most: 0, most_at: 0 },
                _ => StagePartition { first: ends, last: ends, second: others, most: 0, most_at: 0 },
            };
            MemoryLowerBound::of(case, &self.able_shards(), division)
        };
        // Tolerance for rounding errors of sums.
        self.least.get_or_init(of).bytes(case, &way.kept) * (1.0 - 1e-12)
    }

    /// Returns `true` if layouts in the mode `way` with one of `schedules` may change the result of the
    /// search.
    pub(super) fn may_change(
        &self,
        case: &StepInputs<'_>,
        way: &MicroBatchMode,
        schedules: &[PipelineOption],
        table: &BestLayouts,
    ) -> bool {
        let chunks = schedules.iter().map(|passes| passes.chunks).max().unwrap_or(1);
        let seconds = StepTimes::lower_bound(case, way.seconds, chunks);
        if !table.may_keep(seconds) || !self.may_run() {
            return false;
        }
        let of_way =
            [SearchAxis::MicroBatch, SearchAxis::Sequence, SearchAxis::Recompute, SearchAxis::Exchange];
        let is_faster = seconds < self.slowest(table)
            || seconds < table.slowest(of_way.map(|axis| (axis, axis.value(&case.config))));
        if !is_faster && !table.has_front() {
            return false;
        }
        let bytes = self.bytes(case, way);
        if bytes > self.problem.cluster.memory {
            return table.wants_nearest();
        }
        is_faster || table.may_better(seconds, || bytes)
    }

    /// Returns the seconds from which on no layout of this placement is kept, whatever its micro-batch and
    /// mode.
    fn slowest(&self, table: &BestLayouts) -> f64 {
        if let Some((changes, seconds)) = self.slowest.get()
            && changes == table.changes()
        {
            return seconds;
        }
        let of_shape = [
            SearchAxis::Tensor,
            SearchAxis::Context,
            SearchAxis::Expert,
            SearchAxis::Pipeline,
            SearchAxis::Data,
            SearchAxis::Order,
        ];
        let of_shape = of_shape.into_iter().map(|axis| (axis, axis.value(&self.config)));
        let shards = self.able_shards();
        let of_shards = shards
            .iter()
            .flat_map(|(zero, shard)| [(SearchAxis::Zero, *zero as u32), (SearchAxis::Shard, *shard)]);
        let passes = self.able().iter().filter(|(_, shards)| !shards.is_empty());
        let of_passes = passes
            .map(|(passes, _)| (SearchAxis::Schedule, SearchAxis::Schedule.value(&passes.of(&self.config))));
        let seconds = table.slowest(of_shape.chain(of_shards).chain(of_passes));
        self.slowest.set(Some((table.changes(), seconds)));
        seconds
    }
}

impl SearchProblem {
    /// Returns `true` if the engine can run some layout of the placement `placed` with the given schedule and
    /// sharding.
    fn may_run(&self, placed: &StepConfig, (zero, shard): (ZeroStage, u32)) -> bool {
        if self.runs_on.is_none() {
            return true;
        }
        let sequences = if placed.degrees().tensor > 1 { &[true, false][..] } else { &[false][..] };
        let (exchanges, modes) = (self.exchanges(placed), self.modes());
        let may_run = |ends: EmbeddingHeadCost| {
            modes.iter().any(|(recompute, recompute_every)| {
                sequences.iter().any(|sequence| {
                    exchanges.iter().any(|exchange| {
                        let arrangement = Arrangement {
                            zero,
                            shard,
                            ends,
                            sequence: *sequence,
                            recompute: *recompute,
                            recompute_every: *recompute_every,
                            context_exchange: *exchange,
                            ..placed.arrangement
                        };
                        self.allows(&StepConfig { arrangement, ..*placed })
                    })
                })
            })
        };
        // A pinned recompute interval may need another stage partition.
        let is_open = self.pins.recompute_every.is_some() && placed.arrangement.chunks == 1;
        may_run(placed.arrangement.ends) || (is_open && PLAIN_ENDS.into_iter().any(may_run))
    }
}
