//! The best layouts so far, and the best of every value along every axis.

use super::space::{SearchProblem, to_count};
use crate::analytic::StepConfig;
use crate::choice::pareto_front::{CandidateCost, ParetoFront, ParetoPoint};
#[cfg(doc)]
use dtrain_protocol::{ContextExchange, RankOrder};
use dtrain_recipes::{PipelineSchedule, Recompute, ZeroStage};
use serde::Serialize;

/// A layout with its price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PricedLayout {
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes of the heaviest rank at its peak.
    pub bytes: f64,
    /// The layout.
    pub config: StepConfig,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutSearchResult {
    /// Fastest first, equal ones in the order of the space; all of them fit.
    pub best: Vec<PricedLayout>,
    /// The best of every value along every axis that has one that fits.
    pub best_per_axis: Vec<(SearchAxis, u32, PricedLayout)>,
    /// Layouts in all.
    pub layouts: u64,
    /// Of them, those that a bound showed to gain nothing.
    pub bounded: u64,
    /// Of the others, those that the engine cannot run.
    pub refused: u64,
    /// The layout that came nearest to fitting, where one that would have gained did not.
    pub nearest: Option<PricedLayout>,
    /// What nothing betters in time, memory and money at once, fastest first, where it was asked for.
    pub front: Vec<ParetoPoint<StepConfig>>,
}

/// An axis along which layouts differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchAxis {
    /// Ranks that share matrices.
    Tensor,
    /// Ranks that share a sequence.
    Context,
    /// Ranks that share experts.
    Expert,
    /// Stages.
    Pipeline,
    /// Replicas.
    Data,
    /// Samples of a micro-batch.
    MicroBatch,
    /// Whether the sequence is held in parts.
    Sequence,
    /// What is computed again: 0 nothing, 1 what is selected, and above that all of every so many layers, less one.
    Recompute,
    /// How keys and values are exchanged, as in [`ContextExchange`].
    Exchange,
    /// Which ranks are neighbours, as in [`RankOrder`].
    Order,
    /// What replicas shard.
    Zero,
    /// Among how many of them.
    Shard,
    /// Runs of layers of a stage; 0 for the zero-bubble schedule, [`GPIPE`] for GPipe.
    Schedule,
}

/// Axes whose values a shape and a unit decide, before schedule and sharding; as in [`SearchAxis`], the others follow.
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

/// The value of GPipe along the axis of schedules.
pub const GPIPE: u32 = u32::MAX;

const INNER: [SearchAxis; 3] = [SearchAxis::Zero, SearchAxis::Shard, SearchAxis::Schedule];

/// Champions along one axis, by value.
#[derive(Clone, Debug, Default)]
struct BestByValue {
    values: Vec<(u32, PricedLayout)>,
}

impl BestByValue {
    /// Seconds of the champion of a value; infinite where it has none.
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

/// The best so far.
#[derive(Clone, Debug)]
pub(super) struct BestLayouts {
    keep: usize,
    /// What takes as long is not kept.
    limit: f64,
    /// Whether the best of every value of every axis is kept.
    has_axes: bool,
    /// How often what is kept changed.
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
    /// In words.
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

    /// The value of a layout along the axis.
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

    /// One that keeps nothing but the fastest, where it takes less than `limit` seconds.
    pub(super) fn fastest(problem: &SearchProblem, limit: f64) -> Self {
        Self { limit, has_axes: false, ..Self::new(problem, 1) }
    }

    /// The same, which also keeps the front of all layouts.
    pub(super) fn with_front(problem: &SearchProblem, keep: usize) -> Self {
        Self { front: Some(ParetoFront::default()), ..Self::new(problem, keep) }
    }

    /// Seconds of the best so far.
    pub(super) fn best(&self) -> f64 {
        self.best.first().map_or(f64::INFINITY, |choice| choice.seconds)
    }

    /// The slowest that is kept; the limit while there is room, and 0 where none is kept.
    fn last(&self) -> f64 {
        if self.best.len() < self.keep {
            self.limit
        } else {
            self.best.last().map_or(0.0, |last| last.seconds)
        }
    }

    /// Whether layouts are counted, and the best of every value of every axis is kept.
    pub(super) fn has_axes(&self) -> bool {
        self.has_axes
    }

    /// Whether the front of all layouts is kept.
    pub(super) fn has_front(&self) -> bool {
        self.front.is_some()
    }

    /// How often what is kept changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether one that takes so long may be kept, whatever it is.
    pub(super) fn may_keep(&self, seconds: f64) -> bool {
        self.has_axes || seconds < self.last()
    }

    /// Whether one that does not fit is of interest: nothing else was found.
    pub(super) fn wants_nearest(&self) -> bool {
        self.has_axes && self.best.is_empty() && self.front.as_ref().is_none_or(ParetoFront::is_empty)
    }

    /// Seconds from which on no layout is kept whose values along some axes are among these.
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

    /// Whether layouts of a shape, unit and order of passes that take at least `bound` seconds may change
    /// anything but the front.
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

    /// Whether layouts that take at least `bound` seconds, and of memory at least what `bytes` says, may be of the front. All
    /// layouts of a search have the same devices, so that a faster one costs less too.
    pub(super) fn may_better(&self, bound: f64, bytes: impl FnOnce() -> f64) -> bool {
        let Some(front) = &self.front else { return false };
        front.may_gain(bound, bytes() / self.memory)
    }

    /// Takes note of layouts that need not be priced.
    pub(super) fn skip(&mut self, layouts: usize) {
        self.layouts += layouts as u64;
        self.bounded += layouts as u64;
    }

    /// Takes note of a layout that the engine cannot run.
    pub(super) fn refuse(&mut self) {
        self.layouts += 1;
        self.refused += 1;
    }

    /// Takes note of a layout; its memory is asked for only where its time would gain.
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

    /// Keeps a choice if it fits, or if it comes nearest to it.
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
