//! Prices steps whose stages are on different groups of hosts, with the cost formulas of equal devices.

use super::grouped_layout::{GroupStages, GroupedLayout, single_rank_layout};
use super::partition::{StageCapacity, even, partition};
use super::space::GroupedProblem;
use crate::analytic::local_parameters::LocalParameters;
use crate::analytic::memory::in_flight;
use crate::analytic::overlap::{exposed_gradient_sync, steady_messages};
use crate::analytic::step::{
    bubble, fixed_overhead, optimizer_seconds, stage_message_seconds, straggler_seconds,
};
use crate::analytic::{MicroBatchTimes, PeakMemory, StageLoad, StagePartition, StepInputs, StepTimes};
use dtrain_recipes::Recompute;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Computes step times and memory of layouts on a heterogeneous cluster.
#[derive(Debug)]
pub struct Pricer<'a> {
    grouped: &'a GroupedProblem,
    /// Cost inputs of the model on each group of hosts.
    cases: Vec<StepInputs<'a>>,
    /// Cached micro-batch times on each group, by tensor, context and expert degrees, micro-batch size,
    /// sequence parallelism and recompute mode.
    units: RefCell<BTreeMap<([u32; 4], bool, (Recompute, u32)), Vec<MicroBatchTimes>>>,
}

/// The pipeline stages of one layout, with their time and memory.
#[derive(Clone, Debug, PartialEq)]
pub struct PricedStages {
    /// Index of the group of hosts that each stage is on, in pipeline order.
    pub groups: Vec<usize>,
    /// Number of layers of each stage.
    pub layers: Vec<u32>,
    /// Seconds of one micro-batch on each stage.
    pub seconds: Vec<f64>,
    /// Seconds of the whole step, by cause.
    pub step: StepTimes,
    /// Peak bytes of one rank of each stage.
    pub peaks: Vec<PeakMemory>,
}

/// Cost inputs and micro-batch times of one layout on each group of hosts.
struct GroupCosts<'a> {
    cases: Vec<StepInputs<'a>>,
    units: Vec<MicroBatchTimes>,
    /// Mean seconds of a layer on each group of hosts.
    means: Vec<f64>,
}

impl<'a> Pricer<'a> {
    /// Creates a pricer for the layouts of `grouped`.
    pub fn new(grouped: &'a GroupedProblem) -> Self {
        let cases = {
            let one =
                GroupedLayout { runs: vec![GroupStages { group: 0, stages: 1 }], ..single_rank_layout() }
                    .config(1);
            grouped.problems().iter().map(|problem| problem.at(&one)).collect()
        };
        Self { grouped, cases, units: RefCell::default() }
    }

    /// Returns the cost inputs of `layout` on one of its groups of hosts.
    pub fn case(&self, layout: &GroupedLayout, group: usize) -> StepInputs<'a> {
        StepInputs { config: self.grouped.config(layout), ..self.cases[group] }
    }

    fn terms(&self, layout: &GroupedLayout) -> GroupCosts<'a> {
        let config = self.grouped.config(layout);
        let cases: Vec<StepInputs<'a>> =
            self.cases.iter().map(|case| StepInputs { config, ..*case }).collect();
        let key = [layout.tensor, layout.context, layout.expert, layout.micro];
        let key = (key, layout.is_sequence_parallel, layout.recompute);
        let mut known = self.units.borrow_mut();
        let units =
            known.entry(key).or_insert_with(|| cases.iter().map(MicroBatchTimes::of).collect()).clone();
        let model = cases[0].model;
        let means = units.iter().map(|unit| unit.layers(model, 0.0) / (model.layers + model.further()));
        GroupCosts { means: means.collect(), units, cases }
    }

    /// Returns `true` if the engine can run `layout`.
    pub(super) fn allows(&self, layout: &GroupedLayout) -> bool {
        self.grouped.first().allows(&self.grouped.config(layout))
    }

    /// Returns the seconds of a step in `layout`, and the highest share of a device's memory that a stage
    /// takes (above 1 if it does not fit).
    pub fn price(&self, layout: &GroupedLayout) -> (f64, f64) {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        if let [group] = groups[..] {
            let case = &terms.cases[group];
            let memory = self.grouped.problems()[group].cluster.memory;
            return (
                StepTimes::with(case, &terms.units[group], StagePartition::of(case.model, &case.config))
                    .total(),
                PeakMemory::of(case).total() / memory,
            );
        }
        let (rooms, lines) = self.rooms(&terms, &groups);
        let layers = laid(layout, &rooms, &lines, self.grouped.layers());
        let full = lines.iter().zip(&layers).map(|(line, layers)| line.share(*layers));
        (terms.step(&groups, &layers).total(), full.fold(0.0, f64::max))
    }

    /// Returns a lower bound on the step time of `layout` under any schedule and sharding: equally slow
    /// stages and no bubble.
    pub(super) fn lower_bound(&self, layout: &GroupedLayout) -> f64 {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        let rooms: Vec<StageCapacity> = (0..groups.len()).map(|stage| terms.room(&groups, stage)).collect();
        let config = &terms.cases[0].config;
        config.micro_batches() * even(terms.cases[0].model.layers, &rooms)
    }

    /// Prices `layout` with the partition of its layers that is fastest; if none fits, with the one that
    /// exceeds memory least.
    pub fn stages(&self, layout: &GroupedLayout) -> PricedStages {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        let (rooms, lines) = self.rooms(&terms, &groups);
        let layers = laid(layout, &rooms, &lines, self.grouped.layers());
        self.stages_of(layout, &layers)
    }

    /// Prices `layout` with the given number of layers on each stage.
    ///
    /// # Panics
    /// If `layers` has not one entry per stage.
    pub fn stages_of(&self, layout: &GroupedLayout, layers: &[u32]) -> PricedStages {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        assert_eq!(groups.len(), layers.len(), "every stage has a number of layers");
        if let [group] = groups[..] {
            let case = &terms.cases[group];
            let step =
                StepTimes::with(case, &terms.units[group], StagePartition::of(case.model, &case.config));
            let (seconds, peaks) = (vec![step.slowest], vec![PeakMemory::of(case)]);
            return PricedStages { groups, layers: layers.to_vec(), seconds, step, peaks };
        }
        let peak = |stage: usize| {
            let case = &terms.cases[groups[stage]];
            PeakMemory::stage(case, place(case, &groups, stage, layers[stage].into()))
        };
        let seconds = |stage: usize| terms.room(&groups, stage).seconds(layers[stage]);
        PricedStages {
            layers: layers.to_vec(),
            seconds: (0..groups.len()).map(seconds).collect(),
            step: terms.step(&groups, layers),
            peaks: (0..groups.len()).map(peak).collect(),
            groups,
        }
    }

    /// Returns the capacity of every stage, and its memory use as a function of its layers.
    fn rooms(&self, terms: &GroupCosts<'_>, groups: &[usize]) -> (Vec<StageCapacity>, Vec<LinearMemory>) {
        let mut inner: Vec<Option<StageMemoryGrowth>> = vec![None; terms.cases.len()];
        let end = groups.len() - 1;
        let stages = groups.iter().enumerate().map(|(stage, group)| {
            let case = &terms.cases[*group];
            let slopes = if stage == 0 || stage == end {
                StageMemoryGrowth::of(case, groups, stage)
            } else {
                *inner[*group].get_or_insert_with(|| StageMemoryGrowth::of(case, groups, stage))
            };
            let memory = self.grouped.problems()[*group].cluster.memory;
            let line = slopes.line(in_flight(&case.config, position(stage)), memory);
            (StageCapacity { most: line.most(), ..terms.room(groups, stage) }, line)
        });
        stages.unzip()
    }
}

/// Partitions the layers among stages in whole chunks: the fastest partition that fits, or, if none fits, the
/// one with the lowest highest memory use.
fn laid(layout: &GroupedLayout, rooms: &[StageCapacity], lines: &[LinearMemory], layers: u32) -> Vec<u32> {
    let chunks = layout.chunks;
    let by =
        |layer: f64, extra: f64, most: u32| StageCapacity { layer: layer * f64::from(chunks), extra, most };
    let fast: Vec<StageCapacity> =
        rooms.iter().map(|room| by(room.layer, room.extra, room.most / chunks)).collect();
    let least = || {
        let small: Vec<StageCapacity> = lines.iter().map(|line| by(line.layer, line.fixed, layers)).collect();
        partition(layers / chunks, &small).expect("there are at least as many layers as stages")
    };
    let runs = partition(layers / chunks, &fast).unwrap_or_else(least);
    runs.into_iter().map(|runs| runs * chunks).collect()
}

fn position(stage: usize) -> f64 {
    u32::try_from(stage).expect("stages are few").into()
}

/// Returns the load of one stage, which determines its memory.
fn place(case: &StepInputs<'_>, groups: &[usize], stage: usize, layers: f64) -> StageLoad {
    let alive = in_flight(&case.config, position(stage));
    StageLoad { layers, alive, is_first: stage == 0, is_last: stage + 1 == groups.len() }
}

/// Memory of a stage as fixed bytes, bytes per layer, and bytes per layer and live micro-batch.
#[derive(Clone, Copy, Debug)]
struct StageMemoryGrowth {
    fixed: f64,
    layer: f64,
    alive: f64,
}

/// Share of a device's memory that a stage takes, as a fixed part and a part per layer.
#[derive(Clone, Copy, Debug)]
struct LinearMemory {
    fixed: f64,
    layer: f64,
}

impl StageMemoryGrowth {
    fn of(case: &StepInputs<'_>, groups: &[usize], stage: usize) -> Self {
        let bytes = |layers: f64, alive: f64| {
            PeakMemory::stage(case, StageLoad { alive, ..place(case, groups, stage, layers) }).total()
        };
        let (fixed, layer) = (bytes(0.0, 0.0), bytes(1.0, 0.0));
        Self { fixed, layer: layer - fixed, alive: bytes(1.0, 1.0) - layer }
    }

    fn line(&self, alive: f64, memory: f64) -> LinearMemory {
        LinearMemory { fixed: self.fixed / memory, layer: (self.layer + alive * self.alive) / memory }
    }
}

impl LinearMemory {
    fn share(&self, layers: u32) -> f64 {
        self.fixed + f64::from(layers) * self.layer
    }

    /// Returns the highest number of layers that fits into the device's memory.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what is negative becomes 0")]
    fn most(&self) -> u32 {
        let about = ((1.0 - self.fixed) / self.layer).floor() as u32;
        if about > 0 && self.share(about) > 1.0 { about - 1 } else { about }
    }
}

impl GroupCosts<'_> {
    /// Returns the seconds per layer of a stage and those of its embedding or head, without a memory limit.
    fn room(&self, groups: &[usize], stage: usize) -> StageCapacity {
        let (group, unit) = (groups[stage], &self.units[groups[stage]]);
        let before = if stage == 0 { unit.embedding } else { 0.0 };
        let behind = if stage + 1 == groups.len() { unit.head } else { 0.0 };
        StageCapacity { layer: self.means[group], extra: before + behind, most: u32::MAX }
    }

    /// Returns the seconds of a step, by cause, for a pipeline of at least two stages.
    fn step(&self, groups: &[usize], layers: &[u32]) -> StepTimes {
        let end = groups.len() - 1;
        let model = self.cases[0].model;
        let (mut slowest, mut sum, mut at) = (0.0, model.further() * self.means[groups[end]], 0);
        for (stage, layers) in layers.iter().enumerate() {
            let seconds = self.room(groups, stage).seconds(*layers);
            sum += seconds;
            if seconds > slowest {
                (slowest, at) = (seconds, groups[stage]);
            }
        }
        let case = &self.cases[at];
        let (replicas, optimizer) = self.after(groups, layers, slowest);
        let filling = bubble(&case.config, sum - slowest);
        StepTimes {
            layer: self.units[at].layer,
            head: self.units[groups[end]].head,
            embedding: self.units[groups[0]].embedding,
            gathering: 0.0,
            micro_batches: case.config.micro_batches(),
            slowest,
            bubble: filling,
            messages: self.messages(groups),
            replicas,
            optimizer,
            stragglers: straggler_seconds(case, case.config.micro_batches() * slowest + filling),
            fixed: fixed_overhead(case),
        }
    }

    /// Returns the seconds of messages between stages in a step. Between groups the slower network counts; in
    /// the steady phase, the slowest hop.
    fn messages(&self, groups: &[usize]) -> f64 {
        let each: Vec<f64> = self.cases.iter().map(stage_message_seconds).collect();
        let hops = groups.windows(2).map(|pair| each[pair[0]].max(each[pair[1]]));
        let (slowest, sum) = hops.fold((0.0, 0.0), |(slowest, sum), one| (one.max(slowest), sum + one));
        2.0 * (slowest * (steady_messages(&self.cases[0]) + 1.0) + sum)
    }

    /// Returns the seconds of gradient sync and of the optimizer, on the stage where their sum is largest.
    fn after(&self, groups: &[usize], layers: &[u32], slowest: f64) -> (f64, f64) {
        let end = groups.len() - 1;
        let mut fullest: Vec<Option<LocalParameters>> = vec![None; self.cases.len()];
        for (stage, (group, layers)) in groups.iter().zip(layers).enumerate() {
            let is_end = stage == 0 || stage == end;
            let here = LocalParameters::of(&self.cases[*group], f64::from(*layers), is_end);
            if fullest[*group].is_none_or(|most| here.all() > most.all()) {
                fullest[*group] = Some(here);
            }
        }
        let of = |(case, held): (&StepInputs<'_>, LocalParameters)| {
            (exposed_gradient_sync(case, held, slowest), optimizer_seconds(case, held))
        };
        let used = self.cases.iter().zip(fullest).filter_map(|(case, held)| Some((case, held?)));
        used.map(of).max_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1))).expect("a layout uses a group")
    }
}
