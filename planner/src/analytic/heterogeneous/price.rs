//! Seconds of a step whose stages are on different groups, and bytes of every stage, from the formulas of equal devices.

use super::exhaustive;
use super::grouped_layout::{GroupStages, GroupedLayout};
use super::partition::{StageCapacity, even, partition};
use super::space::GroupedProblem;
use crate::analytic::memory::in_flight;
use crate::analytic::step::{
    LocalParameters, bubble, exposed_gradient_sync, fixed_overhead, optimizer_seconds, stage_message_seconds,
    steady_messages, straggler_seconds,
};
use crate::analytic::{MicroBatchTimes, PeakMemory, StageLoad, StagePartition, StepInputs, StepTimes};
use dtrain_recipes::Recompute;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Prices layouts of a mixture.
#[derive(Debug)]
pub struct Pricer<'a> {
    grouped: &'a GroupedProblem,
    /// A case of each group.
    cases: Vec<StepInputs<'a>>,
    /// Units of each group, by tensor, context and expert degrees, micro-batch, sequence and what is computed again.
    units: RefCell<BTreeMap<([u32; 4], bool, (Recompute, u32)), Vec<MicroBatchTimes>>>,
}

/// The stages of a layout with their price.
#[derive(Clone, Debug, PartialEq)]
pub struct PricedStages {
    /// The group of each stage, from the first to the last.
    pub groups: Vec<usize>,
    /// Layers of each stage.
    pub layers: Vec<u32>,
    /// Seconds of each stage for one micro-batch.
    pub seconds: Vec<f64>,
    /// Seconds of a step.
    pub step: StepTimes,
    /// Bytes of a rank of each stage at its peak.
    pub peaks: Vec<PeakMemory>,
}

/// What one layout asks of the formulas: a case and a unit of each group.
struct GroupCosts<'a> {
    cases: Vec<StepInputs<'a>>,
    units: Vec<MicroBatchTimes>,
    /// Seconds of a layer of each group.
    means: Vec<f64>,
}

impl<'a> Pricer<'a> {
    /// Prices layouts of `grouped`.
    pub fn new(grouped: &'a GroupedProblem) -> Self {
        let cases = {
            let one = GroupedLayout {
                runs: vec![GroupStages { group: 0, stages: 1 }],
                ..exhaustive::single_rank_layout()
            }
            .config(1);
            grouped.problems().iter().map(|problem| problem.at(&one)).collect()
        };
        Self { grouped, cases, units: RefCell::default() }
    }

    /// The case of a layout on one of its groups.
    pub fn case(&self, layout: &GroupedLayout, group: usize) -> StepInputs<'a> {
        StepInputs { config: layout.config(self.grouped.batch()), ..self.cases[group] }
    }

    fn terms(&self, layout: &GroupedLayout) -> GroupCosts<'a> {
        let config = layout.config(self.grouped.batch());
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

    /// Whether the engine can run a layout.
    pub(super) fn allows(&self, layout: &GroupedLayout) -> bool {
        self.grouped.first().allows(&layout.config(self.grouped.batch()))
    }

    /// Seconds of a step, and bytes of the heaviest rank over the memory of its device; above 1 it does not fit.
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

    /// Seconds that no order of passes and no sharding goes below: all micro-batches through equally slow stages.
    pub(super) fn lower_bound(&self, layout: &GroupedLayout) -> f64 {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        let rooms: Vec<StageCapacity> = (0..groups.len()).map(|stage| terms.room(&groups, stage)).collect();
        let config = &terms.cases[0].config;
        config.micro_batches() * even(terms.cases[0].model.layers, &rooms)
    }

    /// The stages of a layout, laid as fast as memory allows; where it allows no way, so that the least is missing.
    pub fn stages(&self, layout: &GroupedLayout) -> PricedStages {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        let (rooms, lines) = self.rooms(&terms, &groups);
        let layers = laid(layout, &rooms, &lines, self.grouped.layers());
        self.stages_of(layout, &layers)
    }

    /// The stages of a layout with so many layers each.
    ///
    /// # Panics
    /// Where there are not as many numbers as stages.
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

    /// What every stage has room for, and how its memory fills with its layers.
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

/// Layers of each stage, in whole runs of every chunk: as fast as memory allows, and where it allows no way so that the
/// fullest stage is as little full as can be.
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

/// A stage in memory.
fn place(case: &StepInputs<'_>, groups: &[usize], stage: usize, layers: f64) -> StageLoad {
    let alive = in_flight(&case.config, position(stage));
    StageLoad { layers, alive, is_first: stage == 0, is_last: stage + 1 == groups.len() }
}

/// How bytes of a stage grow: with its layers, and with the micro-batches that are alive in each.
#[derive(Clone, Copy, Debug)]
struct StageMemoryGrowth {
    fixed: f64,
    layer: f64,
    alive: f64,
}

/// How the memory of a stage fills with its layers, as shares of it.
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

    /// Layers that fit.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what is negative becomes 0")]
    fn most(&self) -> u32 {
        let about = ((1.0 - self.fixed) / self.layer).floor() as u32;
        if about > 0 && self.share(about) > 1.0 { about - 1 } else { about }
    }
}

impl GroupCosts<'_> {
    /// What a stage costs, whatever its memory.
    fn room(&self, groups: &[usize], stage: usize) -> StageCapacity {
        let (group, unit) = (groups[stage], &self.units[groups[stage]]);
        let before = if stage == 0 { unit.embedding } else { 0.0 };
        let behind = if stage + 1 == groups.len() { unit.head } else { 0.0 };
        StageCapacity { layer: self.means[group], extra: before + behind, most: u32::MAX }
    }

    /// The step of a pipeline of two stages or more.
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

    /// Messages between stages: between groups over the slower of both networks. In the steady phase the slowest are waited for.
    fn messages(&self, groups: &[usize]) -> f64 {
        let each: Vec<f64> = self.cases.iter().map(stage_message_seconds).collect();
        let hops = groups.windows(2).map(|pair| each[pair[0]].max(each[pair[1]]));
        let (slowest, sum) = hops.fold((0.0, 0.0), |(slowest, sum), one| (one.max(slowest), sum + one));
        2.0 * (slowest * (steady_messages(&self.cases[0]) + 1.0) + sum)
    }

    /// Exchange among replicas and the optimizer, of the stage that ends both last.
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
