//! Seconds of a step whose stages are on different groups, and bytes of every stage, from the formulas of equal devices.

use super::every;
use super::layout::{Layout, Run};
use super::partition::{Room, even, partition};
use super::space::Mixture;
use crate::analytic::memory::in_flight;
use crate::analytic::step::{
    Held, bubble, fixed, one_message, optimizer, replicas, steady_messages, stragglers,
};
use crate::analytic::{Case, Division, Peak, Stage, Step, Unit};
use dtrain_recipes::Recompute;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Prices layouts of a mixture.
#[derive(Debug)]
pub struct Pricer<'a> {
    mixture: &'a Mixture,
    /// A case of each group.
    cases: Vec<Case<'a>>,
    /// Units of each group, by tensor, context and expert degrees, micro-batch, sequence and what is computed again.
    units: RefCell<BTreeMap<([u32; 4], bool, (Recompute, u32)), Vec<Unit>>>,
}

/// The stages of a layout with their price.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// The group of each stage, from the first to the last.
    pub groups: Vec<usize>,
    /// Layers of each stage.
    pub layers: Vec<u32>,
    /// Seconds of each stage for one micro-batch.
    pub seconds: Vec<f64>,
    /// Seconds of a step.
    pub step: Step,
    /// Bytes of a rank of each stage at its peak.
    pub peaks: Vec<Peak>,
}

/// What one layout asks of the formulas: a case and a unit of each group.
struct Terms<'a> {
    cases: Vec<Case<'a>>,
    units: Vec<Unit>,
    /// Seconds of a layer of each group.
    means: Vec<f64>,
}

impl<'a> Pricer<'a> {
    /// Prices layouts of `mixture`.
    pub fn new(mixture: &'a Mixture) -> Self {
        let cases = {
            let one = Layout { runs: vec![Run { group: 0, stages: 1 }], ..every::any() }.config(1);
            mixture.questions().iter().map(|question| question.at(&one)).collect()
        };
        Self { mixture, cases, units: RefCell::default() }
    }

    /// The case of a layout on one of its groups.
    pub fn case(&self, layout: &Layout, group: usize) -> Case<'a> {
        Case { config: layout.config(self.mixture.batch()), ..self.cases[group] }
    }

    fn terms(&self, layout: &Layout) -> Terms<'a> {
        let config = layout.config(self.mixture.batch());
        let cases: Vec<Case<'a>> = self.cases.iter().map(|case| Case { config, ..*case }).collect();
        let key = [layout.tensor, layout.context, layout.expert, layout.micro];
        let key = (key, layout.is_sequence_parallel, layout.recompute);
        let mut known = self.units.borrow_mut();
        let units = known.entry(key).or_insert_with(|| cases.iter().map(Unit::of).collect()).clone();
        let model = cases[0].model;
        let means = units.iter().map(|unit| unit.layers(model, 0.0) / (model.layers + model.further()));
        Terms { means: means.collect(), units, cases }
    }

    /// Whether the engine can run a layout.
    pub(super) fn allows(&self, layout: &Layout) -> bool {
        self.mixture.first().allows(&layout.config(self.mixture.batch()))
    }

    /// Seconds of a step, and bytes of the heaviest rank over the memory of its device; above 1 it does not fit.
    pub fn price(&self, layout: &Layout) -> (f64, f64) {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        if let [group] = groups[..] {
            let case = &terms.cases[group];
            let memory = self.mixture.questions()[group].cluster.memory;
            return (
                Step::with(case, &terms.units[group], Division::of(case.model, &case.config)).total(),
                Peak::of(case).total() / memory,
            );
        }
        let (rooms, lines) = self.rooms(&terms, &groups);
        let layers = laid(layout, &rooms, &lines, self.mixture.layers());
        let full = lines.iter().zip(&layers).map(|(line, layers)| line.share(*layers));
        (terms.step(&groups, &layers).total(), full.fold(0.0, f64::max))
    }

    /// Seconds that no order of passes and no sharding goes below: all micro-batches through equally slow stages.
    pub(super) fn least(&self, layout: &Layout) -> f64 {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        let rooms: Vec<Room> = (0..groups.len()).map(|stage| terms.room(&groups, stage)).collect();
        let config = &terms.cases[0].config;
        config.micro_batches() * even(terms.cases[0].model.layers, &rooms)
    }

    /// The stages of a layout, laid as fast as memory allows; where it allows no way, so that the least is missing.
    pub fn stages(&self, layout: &Layout) -> Stages {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        let (rooms, lines) = self.rooms(&terms, &groups);
        let layers = laid(layout, &rooms, &lines, self.mixture.layers());
        self.stages_of(layout, &layers)
    }

    /// The stages of a layout with so many layers each.
    ///
    /// # Panics
    /// Where there are not as many numbers as stages.
    pub fn stages_of(&self, layout: &Layout, layers: &[u32]) -> Stages {
        let terms = self.terms(layout);
        let groups: Vec<usize> = layout.groups().collect();
        assert_eq!(groups.len(), layers.len(), "every stage has a number of layers");
        if let [group] = groups[..] {
            let case = &terms.cases[group];
            let step = Step::with(case, &terms.units[group], Division::of(case.model, &case.config));
            let (seconds, peaks) = (vec![step.slowest], vec![Peak::of(case)]);
            return Stages { groups, layers: layers.to_vec(), seconds, step, peaks };
        }
        let peak = |stage: usize| {
            let case = &terms.cases[groups[stage]];
            Peak::stage(case, place(case, &groups, stage, layers[stage].into()))
        };
        let seconds = |stage: usize| terms.room(&groups, stage).seconds(layers[stage]);
        Stages {
            layers: layers.to_vec(),
            seconds: (0..groups.len()).map(seconds).collect(),
            step: terms.step(&groups, layers),
            peaks: (0..groups.len()).map(peak).collect(),
            groups,
        }
    }

    /// What every stage has room for, and how its memory fills with its layers.
    fn rooms(&self, terms: &Terms<'_>, groups: &[usize]) -> (Vec<Room>, Vec<Line>) {
        let mut inner: Vec<Option<Slopes>> = vec![None; terms.cases.len()];
        let end = groups.len() - 1;
        let stages = groups.iter().enumerate().map(|(stage, group)| {
            let case = &terms.cases[*group];
            let slopes = if stage == 0 || stage == end {
                Slopes::of(case, groups, stage)
            } else {
                *inner[*group].get_or_insert_with(|| Slopes::of(case, groups, stage))
            };
            let memory = self.mixture.questions()[*group].cluster.memory;
            let line = slopes.line(in_flight(&case.config, position(stage)), memory);
            (Room { most: line.most(), ..terms.room(groups, stage) }, line)
        });
        stages.unzip()
    }
}

/// Layers of each stage, in whole runs of every chunk: as fast as memory allows, and where it allows no way so that the
/// fullest stage is as little full as can be.
fn laid(layout: &Layout, rooms: &[Room], lines: &[Line], layers: u32) -> Vec<u32> {
    let chunks = layout.chunks;
    let by = |layer: f64, extra: f64, most: u32| Room { layer: layer * f64::from(chunks), extra, most };
    let fast: Vec<Room> = rooms.iter().map(|room| by(room.layer, room.extra, room.most / chunks)).collect();
    let least = || {
        let small: Vec<Room> = lines.iter().map(|line| by(line.layer, line.fixed, layers)).collect();
        partition(layers / chunks, &small).expect("there are at least as many layers as stages")
    };
    let runs = partition(layers / chunks, &fast).unwrap_or_else(least);
    runs.into_iter().map(|runs| runs * chunks).collect()
}

fn position(stage: usize) -> f64 {
    u32::try_from(stage).expect("stages are few").into()
}

/// A stage in memory.
fn place(case: &Case<'_>, groups: &[usize], stage: usize, layers: f64) -> Stage {
    let alive = in_flight(&case.config, position(stage));
    Stage { layers, alive, is_first: stage == 0, is_last: stage + 1 == groups.len() }
}

/// How bytes of a stage grow: with its layers, and with the micro-batches that are alive in each.
#[derive(Clone, Copy, Debug)]
struct Slopes {
    fixed: f64,
    layer: f64,
    alive: f64,
}

/// How the memory of a stage fills with its layers, as shares of it.
#[derive(Clone, Copy, Debug)]
struct Line {
    fixed: f64,
    layer: f64,
}

impl Slopes {
    fn of(case: &Case<'_>, groups: &[usize], stage: usize) -> Self {
        let bytes = |layers: f64, alive: f64| {
            Peak::stage(case, Stage { alive, ..place(case, groups, stage, layers) }).total()
        };
        let (fixed, layer) = (bytes(0.0, 0.0), bytes(1.0, 0.0));
        Self { fixed, layer: layer - fixed, alive: bytes(1.0, 1.0) - layer }
    }

    fn line(&self, alive: f64, memory: f64) -> Line {
        Line { fixed: self.fixed / memory, layer: (self.layer + alive * self.alive) / memory }
    }
}

impl Line {
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

impl Terms<'_> {
    /// What a stage costs, whatever its memory.
    fn room(&self, groups: &[usize], stage: usize) -> Room {
        let (group, unit) = (groups[stage], &self.units[groups[stage]]);
        let before = if stage == 0 { unit.embedding } else { 0.0 };
        let behind = if stage + 1 == groups.len() { unit.head } else { 0.0 };
        Room { layer: self.means[group], extra: before + behind, most: u32::MAX }
    }

    /// The step of a pipeline of two stages or more.
    fn step(&self, groups: &[usize], layers: &[u32]) -> Step {
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
        Step {
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
            stragglers: stragglers(case, case.config.micro_batches() * slowest + filling),
            fixed: fixed(case),
        }
    }

    /// Messages between stages: between groups over the slower of both networks. In the steady phase the slowest are waited for.
    fn messages(&self, groups: &[usize]) -> f64 {
        let each: Vec<f64> = self.cases.iter().map(one_message).collect();
        let hops = groups.windows(2).map(|pair| each[pair[0]].max(each[pair[1]]));
        let (slowest, sum) = hops.fold((0.0, 0.0), |(slowest, sum), one| (one.max(slowest), sum + one));
        2.0 * (slowest * (steady_messages(&self.cases[0]) + 1.0) + sum)
    }

    /// Exchange among replicas and the optimizer, of the stage that ends both last.
    fn after(&self, groups: &[usize], layers: &[u32], slowest: f64) -> (f64, f64) {
        let end = groups.len() - 1;
        let mut fullest: Vec<Option<Held>> = vec![None; self.cases.len()];
        for (stage, (group, layers)) in groups.iter().zip(layers).enumerate() {
            let is_end = stage == 0 || stage == end;
            let here = Held::of(&self.cases[*group], f64::from(*layers), is_end);
            if fullest[*group].is_none_or(|most| here.all() > most.all()) {
                fullest[*group] = Some(here);
            }
        }
        let of = |(case, held): (&Case<'_>, Held)| (replicas(case, held, slowest), optimizer(case, held));
        let used = self.cases.iter().zip(fullest).filter_map(|(case, held)| Some((case, held?)));
        used.map(of).max_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1))).expect("a layout uses a group")
    }
}
