//! Collects the best layouts of a search, and the best for each value on each axis.

use super::space::{SearchProblem, to_count};
use crate::analytic::StepConfig;
use crate::choice::pareto_front::{ParetoFront, ParetoPoint};
use crate::price::candidate_cost::CandidateCost;
#[cfg(doc)]
use dtrain_protocol::{ContextExchange, RankOrder};
use dtrain_recipes::{PipelineSchedule, Recompute, ZeroStage};
use serde::Serialize;

/// A layout of equal devices, with its time and memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PricedLayout {
    /// Seconds per step of the layout.
    pub seconds: f64,
    /// Peak bytes of the heaviest rank of the layout.
    pub bytes: f64,
    /// The layout that was priced.
    pub config: StepConfig,
}

/// Result of a search over the layouts of equal devices.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutSearchResult {
    /// The best layouts that fit into memory, fastest first; ties in the order of the search space.
    pub best: Vec<PricedLayout>,
    /// For each value on each axis, the best layout that fits into memory.
    pub best_per_axis: Vec<(SearchAxis, u32, PricedLayout)>,
    /// Number of layouts in the search space.
    pub layouts: u64,
    /// Number of layouts that the lower bound excluded.
    pub bounded: u64,
    /// Number of layouts that the engine cannot run.
    pub refused: u64,
    /// The layout closest to fitting into memory; `None` if every layout that was fast enough to be kept
    /// fits.
    pub nearest: Option<PricedLayout>,
    /// Pareto front of time, memory and cost, fastest first; empty unless requested.
    pub front: Vec<ParetoPoint<StepConfig>>,
}

/// An axis along which layouts differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchAxis {
    /// Tensor-parallel degree.
    Tensor,
    /// Context-parallel degree.
    Context,
    /// Expert-parallel degree.
    Expert,
    /// Pipeline stages.
    Pipeline,
    /// Data-parallel degree.
    Data,
    /// Samples per micro-batch.
    MicroBatch,
    /// Sequence parallelism: 0 is off, 1 is on.
    Sequence,
    /// Recompute mode: 0 is none, 1 selective, `n + 1` full at every `n`-th layer.
    Recompute,
    /// Exchange of keys and values in context parallelism, as in [`ContextExchange`].
    Exchange,
    /// Order of the ranks, as in [`RankOrder`].
    Order,
    /// ZeRO stage of the replicas.
    Zero,
    /// Number of replicas among which state is sharded.
    Shard,
    /// Chunks per stage of the pipeline schedule; 0 for zero bubble, [`GPIPE`] for GPipe.
    Schedule,
}

/// Axes whose values follow from shape and micro-batch mode, before schedule and sharding, in the order of
/// [`SearchAxis`].
const OUTER: [SearchAxis; 10] = [
    SearchAxis::Tensor,
    SearchAxis::Context,
    SearchAxis::Expert,
    SearchAxis::Pipeline,
    SearchAxis::Data,
    SearchAxis::MicroBatch,
    SearchAxis::Sequence,
    SearchAxis::Recompute,
    SearchAxis::Exchange,
    SearchAxis::Order,
];

/// Value on the schedule axis that stands for GPipe.
pub const GPIPE: u32 = u32::MAX;

const INNER: [SearchAxis; 3] = [SearchAxis::Zero, SearchAxis::Shard, SearchAxis::Schedule];

/// The best layout for each value on one axis.
#[derive(Clone, Debug, Default)]
struct BestByValue {
    values: Vec<(u32, PricedLayout)>,
}

impl BestByValue {
    /// Returns the seconds of the best layout with the given value on the axis; infinity if there is none.
    fn seconds(&self, value: u32) -> f64 {
        let champion = self.values.iter().find(|(known, _)| *known == value);
        champion.map_or(f64::INFINITY, |(_, choice)| choice.seconds)
    }

    fn place(&mut self, value: u32, choice: PricedLayout) {
        match self.values.iter_mut().find(|(known, _)| *known == value) {
            Some((_, champion)) => *champion = choice,
            None => self.values.push((value, choice)),
        }
    }
}

/// The best layouts of a search so far, and the best for each value on each axis.
#[derive(Clone, Debug)]
pub(super) struct BestLayouts {
    keep: usize,
    /// Seconds per step from which on a layout is not kept.
    limit: f64,
    /// True if the best layout for each value on each axis is kept.
    has_axes: bool,
    /// Number of changes to the kept layouts so far.
    changes: u64,
    memory: f64,
    best: Vec<PricedLayout>,
    outer: [BestByValue; OUTER.len()],
    inner: [BestByValue; INNER.len()],
    layouts: u64,
    bounded: u64,
    refused: u64,
    nearest: Option<PricedLayout>,
    front: Option<ParetoFront<StepConfig>>,
}

impl SearchAxis {
    /// Returns the name of the axis in messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Pipeline => "pipeline",
            Self::Data => "data",
            Self::MicroBatch => "micro-batch",
            Self::Sequence => "sequence",
            Self::Recompute => "recompute",
            Self::Exchange => "context exchange",
            Self::Order => "order of ranks",
            Self::Zero => "zero",
            Self::Shard => "shard",
            Self::Schedule => "schedule",
        }
    }

    /// Returns the value of a layout on this axis.
    pub fn value(self, config: &StepConfig) -> u32 {
        let (arrangement, degrees) = (&config.arrangement, config.degrees());
        match self {
            Self::Tensor => degrees.tensor,
            Self::Context => degrees.context,
            Self::Expert => degrees.expert,
            Self::Pipeline => degrees.pipeline,
            Self::Data => degrees.data,
            Self::MicroBatch => config.micro_batch,
            Self::Sequence => arrangement.sequence.into(),
            Self::Recompute => match arrangement.recompute {
                Recompute::None => 0,
                Recompute::Selective => 1,
                Recompute::Full => 1 + arrangement.recompute_every,
            },
            Self::Exchange => arrangement.context_exchange as u32,
            Self::Order => arrangement.order as u32,
            Self::Zero => arrangement.zero as u32,
            Self::Shard => arrangement.shard,
            Self::Schedule => order(arrangement.schedule, arrangement.chunks),
        }
    }
}

fn outer(config: &StepConfig) -> [u32; OUTER.len()] {
    OUTER.map(|axis| axis.value(config))
}

fn inner(config: &StepConfig) -> [u32; INNER.len()] {
    INNER.map(|axis| axis.value(config))
}

fn order(schedule: PipelineSchedule, chunks: u32) -> u32 {
    match schedule {
        PipelineSchedule::ZeroBubble => 0,
        PipelineSchedule::Gpipe => GPIPE,
        PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved => chunks,
    }
}

impl BestLayouts {
    pub(super) fn new(problem: &SearchProblem, keep: usize) -> Self {
        Self {
            keep,
            limit: f64::INFINITY,
            has_axes: true,
            changes: 0,
            memory: problem.cluster.memory,
            best: Vec::with_capacity(keep + 1),
            outer: Default::default(),
            inner: Default::default(),
            layouts: 0,
            bounded: 0,
            refused: 0,
            nearest: None,
            front: None,
        }
    }

    /// Creates a table that keeps only the fastest layout below `limit` seconds.
    pub(super) fn fastest(problem: &SearchProblem, limit: f64) -> Self {
        Self { limit, has_axes: false, ..Self::new(problem, 1) }
    }

    /// Creates a table of the best `keep` layouts that also keeps the Pareto front of all layouts.
    pub(super) fn with_front(problem: &SearchProblem, keep: usize) -> Self {
        Self { front: Some(ParetoFront::default()), ..Self::new(problem, keep) }
    }

    /// Returns the seconds of the fastest layout so far; infinity if there is none.
    pub(super) fn best(&self) -> f64 {
        self.best.first().map_or(f64::INFINITY, |choice| choice.seconds)
    }

    /// Returns the seconds below which a layout is among the best: those of the slowest kept layout, the
    /// limit while fewer than `keep` are kept, 0 if `keep` is 0.
    fn last(&self) -> f64 {
        if self.best.len() < self.keep {
            self.limit
        } else {
            self.best.last().map_or(0.0, |last| last.seconds)
        }
    }

    /// Returns `true` if the best layout for each value on each axis is kept.
    pub(super) fn has_axes(&self) -> bool {
        self.has_axes
    }

    /// Returns `true` if the Pareto front is kept.
    pub(super) fn has_front(&self) -> bool {
        self.front.is_some()
    }

    /// Returns the number of changes to the kept layouts so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns `true` if a layout that takes `seconds` per step may be kept.
    pub(super) fn may_keep(&self, seconds: f64) -> bool {
        self.has_axes || seconds < self.last()
    }

    /// Returns `true` if the layout closest to fitting is wanted, as none has fit so far.
    pub(super) fn wants_nearest(&self) -> bool {
        self.has_axes && self.best.is_empty() && self.front.as_ref().is_none_or(ParetoFront::is_empty)
    }

    /// Returns the seconds from which on no layout with the given axis values is kept.
    pub(super) fn slowest(&self, values: impl IntoIterator<Item = (SearchAxis, u32)>) -> f64 {
        if self.keep == 0 || !self.has_axes {
            return self.last();
        }
        let champion = |(axis, value): (SearchAxis, u32)| match axis as usize {
            outer if outer < OUTER.len() => self.outer[outer].seconds(value),
            inner => self.inner[inner - OUTER.len()].seconds(value),
        };
        values.into_iter().map(champion).fold(self.last(), f64::max)
    }

    /// Returns `true` if layouts with the shape, mode and schedule of `config` that take at least `bound`
    /// seconds may change the kept layouts (without the front).
    pub(super) fn may_gain(&self, config: &StepConfig, shards: &[(ZeroStage, u32)], bound: f64) -> bool {
        if self.keep == 0 {
            return false;
        }
        if bound < self.last() || !self.has_axes {
            return bound < self.last();
        }
        let [zero, shard, orders] = &self.inner;
        self.outer.iter().zip(outer(config)).any(|(column, value)| bound < column.seconds(value))
            || shards.iter().any(|(stage, _)| bound < zero.seconds(*stage as u32))
            || shards.iter().any(|(_, size)| bound < shard.seconds(*size))
            || bound < orders.seconds(SearchAxis::Schedule.value(config))
    }

    /// Returns `true` if layouts that take at least `bound` seconds and `bytes` of memory may be on the
    /// Pareto front. All layouts of a search use the same devices, so a faster one is also cheaper.
    pub(super) fn may_better(&self, bound: f64, bytes: impl FnOnce() -> f64) -> bool {
        let Some(front) = &self.front else { return false };
        front.may_gain(bound, bytes() / self.memory)
    }

    /// Counts layouts that the bound excluded.
    pub(super) fn skip(&mut self, layouts: usize) {
        self.layouts += layouts as u64;
        self.bounded += layouts as u64;
    }

    /// Counts a layout that the engine cannot run.
    pub(super) fn refuse(&mut self) {
        self.layouts += 1;
        self.refused += 1;
    }

    /// Records a layout that takes `seconds` per step; computes its memory only if it is fast enough to be
    /// kept.
    pub(super) fn record(&mut self, config: &StepConfig, seconds: f64, bytes: impl FnOnce() -> f64) {
        self.layouts += 1;
        if !self.has_axes {
            if seconds < self.last() {
                self.keep_fitting(PricedLayout { seconds, bytes: bytes(), config: *config });
            }
            return;
        }
        let (outer, inner) = (outer(config), inner(config));
        let gains = |columns: &[BestByValue], values: &[u32]| {
            columns.iter().zip(values).any(|(column, value)| seconds < column.seconds(*value))
        };
        let is_wanted = seconds < self.last() || gains(&self.outer, &outer) || gains(&self.inner, &inner);
        if !is_wanted && self.front.is_none() {
            return;
        }
        let choice = PricedLayout { seconds, bytes: bytes(), config: *config };
        if choice.bytes > self.memory {
            if self.nearest.is_none_or(|nearest| choice.bytes < nearest.bytes) {
                self.nearest = Some(choice);
            }
            return;
        }
        if let Some(front) = &mut self.front {
            front.insert(
                CandidateCost::of(seconds, choice.bytes / self.memory, to_count(config.ranks())),
                *config,
            );
        }
        if self.keep == 0 {
            return;
        }
        self.insert(choice);
        let columns = self.outer.iter_mut().chain(&mut self.inner);
        for (column, value) in columns.zip(outer.into_iter().chain(inner)) {
            if seconds < column.seconds(value) {
                self.changes += 1;
                column.place(value, choice);
            }
        }
    }

    /// Keeps a layout if it fits into memory, or if it is the closest to fitting.
    fn keep_fitting(&mut self, choice: PricedLayout) {
        if choice.bytes <= self.memory {
            self.insert(choice);
        } else if self.nearest.is_none_or(|nearest| choice.bytes < nearest.bytes) {
            self.nearest = Some(choice);
        }
    }

    fn insert(&mut self, choice: PricedLayout) {
        if choice.seconds >= self.last() {
            return;
        }
        self.changes += 1;
        let at = self.best.partition_point(|other| other.seconds <= choice.seconds);
        self.best.insert(at, choice);
        self.best.truncate(self.keep);
    }

    pub(super) fn into_result(self) -> LayoutSearchResult {
        let axes = OUTER.into_iter().chain(INNER);
        let columns = self.outer.into_iter().chain(self.inner);
        let best_per_axis = axes.zip(columns).flat_map(|(axis, column)| {
            let mut values = column.values;
            values.sort_by_key(|(value, _)| *value);
            values.into_iter().map(move |(value, choice)| (axis, value, choice))
        });
        LayoutSearchResult {
            best: self.best,
            best_per_axis: best_per_axis.collect(),
            layouts: self.layouts,
            bounded: self.bounded,
            refused: self.refused,
            nearest: self.nearest,
            front: self.front.map_or_else(Vec::new, ParetoFront::into_points),
        }
    }
}
