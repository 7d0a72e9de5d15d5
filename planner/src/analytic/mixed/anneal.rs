//! Simulated annealing over the layouts of a mixture, with the exact partition of layers inside.

use super::every::any;
use super::kept::{Found, Kept};
use super::layout::{Layout, Run};
use super::moves::Move;
use super::price::Pricer;
use super::space::{Degree, Mixture};
use crate::analytic::Config;
use crate::analytic::search::{Cluster, Question, fastest};
use crate::random::Stream;
use argmin::core::{CostFunction, Error, Executor};
use argmin::solver::simulatedannealing::{Anneal, SATempFunc, SimulatedAnnealing};
use dtrain_protocol::order::mix;
use dtrain_recipes::{LayoutPins, Recompute};
use std::cell::{Cell, RefCell};

/// Layouts that are tried in one search, by all descents together.
pub const ITERATIONS: u64 = 24_000;

/// Temperatures between which a descent cools, in the logarithm of seconds.
const TEMPERATURES: (f64, f64) = (0.2, 1e-4);

/// What a layout that does not fit costs beside its time, in the logarithm of seconds: little, so that a descent can pass what
/// does not fit, and in the next one more than any time.
const FENCES: [f64; 2] = [0.3, 30.0];

/// The best `keep` layouts that annealing comes across in `iterations` steps. They begin at the best layouts of each group
/// alone, and of all devices if they were as weak as the weakest. The same seed finds the same.
pub fn anneal(mixture: &Mixture, seed: u64, keep: usize, iterations: u64) -> Found {
    let starts = starts(mixture);
    let descents = u64::try_from((FENCES.len() * starts.len()).max(1)).expect("starts are few");
    let mut landscape = Landscape {
        mixture,
        pricer: Pricer::new(mixture),
        moves: mixture.moves(),
        fence: FENCES[0],
        kept: RefCell::new(Kept::new(keep)),
        stream: Cell::new(Stream::new(mix(seed, 0))),
    };
    let mut lowest: Vec<Layout> = Vec::new();
    for (descent, start) in (1..).zip(&starts) {
        let mut at = start.clone();
        for fence in FENCES {
            landscape.fence = fence;
            let random = Stream::new(mix(seed, descent));
            (landscape, at) = descend(landscape, at, random, iterations / descents);
        }
        if !lowest.contains(&at) {
            lowest.push(at);
        }
    }
    for layout in lowest {
        landscape.polish(layout);
    }
    landscape.kept.into_inner().found()
}

/// Cools down from `start`, to the lowest layout on the way.
fn descend(
    landscape: Landscape<'_>,
    start: Layout,
    random: Stream,
    iterations: u64,
) -> (Landscape<'_>, Layout) {
    let (hot, cold) = TEMPERATURES;
    let steps = f64::from(u32::try_from(iterations.max(2)).unwrap_or(u32::MAX));
    let solver = SimulatedAnnealing::new_with_rng(hot, random)
        .expect("the temperature is positive")
        .with_temp_func(SATempFunc::Exponential((cold / hot).powf(1.0 / steps)));
    let mut result = Executor::new(landscape, solver)
        .configure(|state| state.param(start.clone()).max_iters(iterations))
        .ctrlc(false)
        .run()
        .expect("pricing has no error to return");
    let landscape = result.problem.take_problem().expect("the executor gives the problem back");
    (landscape, result.state.take_best_param().unwrap_or(start))
}

/// Layouts that can be tried from one to the next, with all that were seen.
struct Landscape<'a> {
    mixture: &'a Mixture,
    pricer: Pricer<'a>,
    moves: Vec<Move>,
    /// What a layout that does not fit costs beside its time.
    fence: f64,
    kept: RefCell<Kept>,
    stream: Cell<Stream>,
}

impl Landscape<'_> {
    /// The logarithm of the time of a step; where it does not fit higher by the fence, and the higher the more is missing.
    fn height(&self, layout: &Layout) -> f64 {
        let (seconds, full) = self.pricer.price(layout);
        if !self.pricer.allows(layout) {
            // A descent may pass it.
            self.kept.borrow_mut().skip(1);
            return seconds.max(1e-12).ln() + self.fence;
        }
        self.kept.borrow_mut().note(layout, seconds, full);
        let missing = if full > 1.0 { self.fence * (1.0 + full.ln()) } else { 0.0 };
        seconds.max(1e-12).ln() + missing
    }

    /// Goes to the lowest layout within one step, and where there is none within two, until nothing is lower. What a backward
    /// computes again, the order of passes and what replicas shard may all change with it.
    fn polish(&self, from: Layout) {
        let mut height = self.height(&from);
        let mut at = from;
        loop {
            let near = self.near(&at);
            let lowest = self.lowest(&near, height).or_else(|| {
                let far: Vec<Layout> = near.iter().flat_map(|layout| self.near(layout)).collect();
                self.lowest(&far, height)
            });
            let Some((layout, lower)) = lowest else { return };
            (at, height) = (layout, lower);
        }
    }

    fn near(&self, layout: &Layout) -> Vec<Layout> {
        self.moves.iter().filter_map(|step| self.mixture.moved(layout, *step)).collect()
    }

    /// The lowest of these layouts in any of their variants, where one is below `height`.
    fn lowest(&self, layouts: &[Layout], height: f64) -> Option<(Layout, f64)> {
        let mut lowest = None;
        let mut below = height;
        for layout in layouts {
            for recompute in self.mixture.modes() {
                let layout = Layout { recompute, ..layout.clone() };
                if self.pricer.least(&layout).ln() >= below {
                    continue;
                }
                for layout in self.mixture.variants(&layout) {
                    let height = self.height(&layout);
                    if height < below {
                        below = height;
                        lowest = Some((layout, height));
                    }
                }
            }
        }
        lowest
    }
}

impl CostFunction for Landscape<'_> {
    type Param = Layout;
    type Output = f64;

    fn cost(&self, layout: &Layout) -> Result<f64, Error> {
        Ok(self.height(layout))
    }
}

impl Anneal for Landscape<'_> {
    type Param = Layout;
    type Output = Layout;
    type Float = f64;

    /// One step on, or some.
    fn anneal(&self, layout: &Layout, _: f64) -> Result<Layout, Error> {
        let mut stream = self.stream.get();
        let mut next = layout.clone();
        for _ in 0..[1, 1, 1, 1, 2, 2, 3, 6][stream.pick(8)] {
            let step = self.moves[stream.pick(self.moves.len())];
            next = self.mixture.moved(&next, step).unwrap_or(next);
        }
        self.stream.set(stream);
        Ok(next)
    }
}

/// Layouts to begin at: the best of each group alone, the best of equal devices as weak as the weakest laid on the groups in
/// either order, and one that holds as little as can be.
fn starts(mixture: &Mixture) -> Vec<Layout> {
    let questions = mixture.questions();
    let alone = questions.iter().enumerate().filter_map(|(group, question)| {
        let stages = |layout: &Layout| vec![Run { group, stages: layout.depth() }];
        best(question).map(|layout| Layout { runs: stages(&layout), ..layout })
    });
    let whole = Question { cluster: weakest(mixture), ..mixture.first().clone() };
    let together = best(&whole).into_iter().flat_map(|layout| {
        let (depth, width) = (layout.depth(), layout.width());
        let forward: Vec<usize> = (0..questions.len()).collect();
        let backward = forward.iter().rev().copied().collect();
        [forward, backward]
            .map(|order| Layout { runs: spread(mixture, &order, depth, width), ..layout.clone() })
    });
    alone.chain(together).chain(smallest(mixture)).filter_map(|layout| mixture.settled(layout)).collect()
}

/// The layout of one replica on all groups that fills the fullest stage least.
fn smallest(mixture: &Mixture) -> Option<Layout> {
    let pricer = Pricer::new(mixture);
    let all: Vec<Run> =
        (0..mixture.questions().len()).map(|group| Run { group, stages: mixture.layers() }).collect();
    let one = Layout { is_sequence_parallel: true, recompute: (Recompute::Full, 1), runs: all, ..any() };
    let degrees = mixture.values(Degree::Tensor, &one).into_iter().flat_map(|tensor| {
        let contexts = mixture.values(Degree::Context, &one).into_iter();
        contexts.map(move |context| (tensor, context))
    });
    let settled =
        degrees.filter_map(|(tensor, context)| mixture.settled(Layout { tensor, context, ..one.clone() }));
    let full = settled.map(|layout| (pricer.price(&layout).1, layout));
    full.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, layout)| layout)
}

/// `depth` stages on groups in this order, as many on each as it has room for; at least one each, where degrees must shrink.
fn spread(mixture: &Mixture, order: &[usize], depth: u32, width: u32) -> Vec<Run> {
    let mut left = depth;
    let runs = order.iter().map(|group| {
        let stages = mixture.room(*group, width).min(left).max(1);
        left = left.saturating_sub(stages);
        Run { group: *group, stages }
    });
    runs.collect()
}

/// The best layout of equal devices, as one run of stages.
fn best(question: &Question) -> Option<Layout> {
    // The layouts of a mixture compute all layers again, or none.
    let every = question.pins.recompute_every.or(Some(1));
    let pins = LayoutPins { recompute_every: every, ..question.pins.clone() };
    let question = Question { pins, ..question.clone() };
    let Config { arrangement, micro_batch, .. } = fastest(&question, f64::INFINITY)?.config;
    let degrees = Config { arrangement, micro_batch, batch: 0 }.degrees();
    Some(Layout {
        tensor: degrees.tensor,
        context: degrees.context,
        expert: degrees.expert,
        data: degrees.data,
        micro: micro_batch,
        is_sequence_parallel: arrangement.sequence,
        recompute: (arrangement.recompute, arrangement.recompute_every),
        zero: arrangement.zero,
        schedule: arrangement.schedule,
        chunks: arrangement.chunks,
        runs: vec![Run { group: 0, stages: degrees.pipeline }],
    })
}

/// All devices, as if each were the weakest of them in everything.
fn weakest(mixture: &Mixture) -> Cluster {
    let clusters = || mixture.questions().iter().map(|question| question.cluster);
    let rate = |one: &Cluster| one.gpu.dense_16 * one.watts.map_or(1.0, |watts| one.gpu.clock_at(watts));
    let slowest = clusters().min_by(|a, b| rate(a).total_cmp(&rate(b)));
    clusters().fold(slowest.expect("a cluster has groups"), |weakest, other| Cluster {
        gpu: weakest.gpu,
        devices: mixture.devices(),
        per_host: weakest.per_host.min(other.per_host),
        link: weakest.link.min(other.link),
        network: weakest.network.min(other.network),
        memory: weakest.memory.min(other.memory),
        watts: weakest.watts,
    })
}
