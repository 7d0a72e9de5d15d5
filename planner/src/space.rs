//! Every way to train that the recipe leaves open: all axes, all divisors, and a reason for each left out.

use crate::batch::divisors;
use crate::candidate::{Rejected, where_it_runs};
use crate::{BatchSplit, Candidate, Rejection};
use dtrain_protocol::{Arrangement, Axis, DeviceKind, HostFacts, Layout, Rates};
use dtrain_recipes::{
    Choice, Devices, LayoutPins, Model, PipelineSchedule, Precision, Recipe, Recompute, ZeroStage,
};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

/// Ranks of one size side by side on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Ranks at work.
    pub ranks: u32,
    /// Compute threads of each.
    pub threads: u32,
    /// Device of each.
    pub device: DeviceKind,
}

/// Everything about a candidate but its micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Index of its [`Pool`].
    pub pool: u32,
    /// How the work is arranged.
    pub arrangement: Arrangement,
}

/// A candidate as two indices: of its way and of its micro-batch among the way's micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Index of the way.
    pub way: u32,
    /// Index of the micro-batch.
    pub micro: u32,
}

/// Everything that may be tried.
#[derive(Clone, Debug)]
pub struct Space {
    /// Samples of one optimizer step.
    pub batch: NonZeroU64,
    /// Ranks side by side.
    pub pools: Vec<Pool>,
    /// Ways, in a fixed order that does not depend on the order of any input.
    pub ways: Vec<Way>,
    /// Micro-batches, ascending, by number of readers and by what their count must be a multiple of.
    micros: BTreeMap<(u32, u32), Vec<NonZeroU32>>,
    /// What was left out before anything was priced.
    pub left_out: LeftOut,
}

/// What the worker can run: `None`, or why not.
pub type Ability = fn(&Arrangement, &Model) -> Option<String>;

impl Space {
    /// Enumerates what `recipe` leaves open on `host` for a batch of `batch` samples.
    pub fn of(
        recipe: &Recipe,
        host: &HostFacts,
        rates: Option<&Rates>,
        batch: NonZeroU64,
        ability: Ability,
    ) -> Self {
        let device = device(recipe, host);
        let mut space = Self {
            batch,
            pools: pools(recipe, host, rates, device),
            ways: Vec::new(),
            micros: BTreeMap::new(),
            left_out: LeftOut::default(),
        };
        for pool in 0..u32::try_from(space.pools.len()).expect("pools are few") {
            for layout in layouts(space.pools[pool as usize].ranks, &recipe.layout) {
                space.add_layout(recipe, pool, layout, ability);
            }
        }
        space
    }

    /// Adds the ways of one layout, or the reason why there are none.
    fn add_layout(&mut self, recipe: &Recipe, pool: u32, layout: Layout, ability: Ability) {
        let Pool { threads, device, .. } = self.pools[pool as usize];
        if let Some(rejection) = does_not_divide(&recipe.model, &layout) {
            self.left_out.add(1, &rejection, || where_it_runs(&layout, device, threads), 0);
            return;
        }
        let micros = micros(self.batch, layout.readers(), recipe.layout.micro_batch);
        if micros.is_empty() {
            let rejection = Rejection::BatchDoesNotDivide {
                batch: self.batch.get(),
                micro: recipe.layout.micro_batch.unwrap_or(1),
                replicas: layout.readers(),
            };
            self.left_out.add(1, &rejection, || where_it_runs(&layout, device, threads), 0);
            return;
        }
        let count = micros.len() as u64;
        let share = self.batch.get() / u64::from(layout.readers());
        for arrangement in arrangements(recipe, layout, device) {
            let round = round(&arrangement);
            let is_whole =
                |micro: &&NonZeroU32| (share / u64::from(micro.get())).is_multiple_of(round.into());
            let fitting: Vec<_> = micros.iter().filter(is_whole).copied().collect();
            let uneven = || {
                format!("the interleaved schedule needs micro-batches in multiples of its stages: {round}")
            };
            let reason = ability(&arrangement, &recipe.model).or_else(|| fitting.is_empty().then(uneven));
            match reason {
                Some(reason) => {
                    let rejection = Rejection::CannotRun(reason);
                    self.left_out.add(count, &rejection, || where_it_runs(&layout, device, threads), 0);
                }
                None => {
                    self.micros.entry((layout.readers(), round)).or_insert(fitting);
                    self.ways.push(Way { pool, arrangement });
                }
            }
        }
    }

    /// The space that holds one candidate only.
    pub fn single(candidate: &Candidate) -> Option<Self> {
        let Candidate { arrangement, split, threads, .. } = *candidate;
        let (layout, device) = (arrangement.layout, arrangement.device);
        let micro = NonZeroU32::new(split.micro())?;
        Some(Self {
            batch: NonZeroU64::new(split.global())?,
            pools: vec![Pool { ranks: layout.world(), threads, device }],
            ways: vec![Way { pool: 0, arrangement }],
            micros: BTreeMap::from([((layout.readers(), round(&arrangement)), vec![micro])]),
            left_out: LeftOut::default(),
        })
    }

    /// Micro-batches of a way, ascending.
    pub fn micros(&self, way: &Way) -> &[NonZeroU32] {
        let key = (way.arrangement.layout.readers(), round(&way.arrangement));
        self.micros.get(&key).map_or(&[], Vec::as_slice)
    }

    /// The micro-batch at `place`.
    pub fn micro(&self, place: Place) -> NonZeroU32 {
        self.micros(&self.ways[place.way as usize])[place.micro as usize]
    }

    /// All places, in order.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        (0u32..).zip(&self.ways).flat_map(|(way, of)| {
            let count = u32::try_from(self.micros(of).len()).expect("divisors are few");
            (0..count).map(move |micro| Place { way, micro })
        })
    }

    /// All micro-batches of all ways, ascending.
    pub fn all_micros(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.micros.values().flatten().map(|m| m.get()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Number of candidates that can be run.
    pub fn len(&self) -> u64 {
        self.ways.iter().map(|way| self.micros(way).len() as u64).sum()
    }

    /// Whether nothing can be run.
    pub fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// The candidate at `place`, with its learning rate.
    pub fn candidate(&self, place: Place, learning_rate: f64) -> Candidate {
        let way = self.ways[place.way as usize];
        let pool = self.pools[way.pool as usize];
        let micro = self.micro(place);
        let readers = NonZeroU32::new(way.arrangement.layout.readers()).expect("a product of degrees");
        Candidate {
            arrangement: way.arrangement,
            split: BatchSplit::of(self.batch, micro, readers).expect("micro-batches divide the share"),
            threads: pool.threads,
            learning_rate,
        }
    }
}

/// The device that trains.
pub fn device(recipe: &Recipe, host: &HostFacts) -> DeviceKind {
    match recipe.cluster.devices {
        Devices::Cpu => DeviceKind::Cpu,
        Devices::Cuda => DeviceKind::Cuda,
        Devices::Auto if host.gpus.is_empty() => DeviceKind::Cpu,
        Devices::Auto => DeviceKind::Cuda,
    }
}

/// Largest number of ranks the planner would choose by itself: one for each core or GPU.
pub fn ranks_most(host: &HostFacts, device: DeviceKind) -> u32 {
    match device {
        DeviceKind::Cpu => host.cores.max(1),
        DeviceKind::Cuda => u32::try_from(host.gpus.len()).unwrap_or(u32::MAX),
    }
}

/// Ranks and threads to try. A pinned number of ranks may be more than the cores; an open one is not.
fn pools(recipe: &Recipe, host: &HostFacts, rates: Option<&Rates>, device: DeviceKind) -> Vec<Pool> {
    let pins = &recipe.layout;
    let pinned: u32 = [pins.data, pins.tensor, pins.pipeline, pins.context, pins.expert]
        .into_iter()
        .flatten()
        .fold(1, u32::saturating_mul);
    let ranks: Vec<u32> = match recipe.cluster.ranks {
        Some(ranks) => vec![ranks],
        None => {
            let most = ranks_most(host, device);
            let beyond = if device == DeviceKind::Cpu { pinned } else { 0 };
            (1..=most.max(beyond)).filter(|r| *r <= most || *r == beyond).collect()
        }
    };
    let mut pools = Vec::new();
    for ranks in ranks.into_iter().filter(|ranks| ranks.is_multiple_of(pinned)) {
        for threads in threads(host, rates, device, ranks) {
            pools.push(Pool { ranks, threads, device });
        }
    }
    pools
}

/// Threads of each of `ranks` ranks: what was measured, otherwise an equal share of the cores.
fn threads(host: &HostFacts, rates: Option<&Rates>, device: DeviceKind, ranks: u32) -> Vec<u32> {
    let measured = rates.iter().flat_map(|rates| &rates.by_ranks);
    let mut threads: Vec<u32> =
        measured.filter(|r| r.ranks == ranks && r.device == device).map(|r| r.threads.max(1)).collect();
    threads.sort_unstable();
    threads.dedup();
    if threads.is_empty() {
        threads.push((host.cores / ranks).max(1));
    }
    threads
}

/// All layouts of `ranks` ranks that respect the pins, in a fixed order.
fn layouts(ranks: u32, pins: &LayoutPins) -> Vec<Layout> {
    let pin = |axis| match axis {
        Axis::Tensor => pins.tensor,
        Axis::Context => pins.context,
        Axis::Expert => pins.expert,
        Axis::Data => pins.data,
        Axis::Pipeline => pins.pipeline,
    };
    let mut found = vec![(Vec::new(), ranks)];
    for axis in Axis::ALL {
        let cut = |(degrees, left): (Vec<u32>, u32)| {
            let ways = divisors(u64::from(left)).into_iter().filter_map(|d| u32::try_from(d).ok());
            let ways: Vec<u32> = ways.filter(|d| pin(axis).is_none_or(|pinned| pinned == *d)).collect();
            ways.into_iter().map(move |d| {
                let mut degrees = degrees.clone();
                degrees.push(d);
                (degrees, left / d)
            })
        };
        found = found.into_iter().flat_map(cut).collect();
    }
    let whole = found.into_iter().filter(|(_, left)| *left == 1);
    whole.filter_map(|(degrees, _)| layout(&degrees)).collect()
}

/// A layout from the degrees in the order of [`Axis::ALL`].
fn layout(degrees: &[u32]) -> Option<Layout> {
    let degree = |axis: Axis| NonZeroU32::new(*degrees.get(axis as usize)?);
    Some(Layout {
        tensor: degree(Axis::Tensor)?,
        context: degree(Axis::Context)?,
        expert: degree(Axis::Expert)?,
        data: degree(Axis::Data)?,
        pipeline: degree(Axis::Pipeline)?,
    })
}

/// Why the model cannot be cut like this, whoever would run it.
fn does_not_divide(model: &Model, layout: &Layout) -> Option<Rejection> {
    let check = |what: &str, size: u32, degree: NonZeroU32| {
        let degree = degree.get();
        let uneven = !size.is_multiple_of(degree);
        uneven.then(|| Rejection::DoesNotDivide { what: what.into(), size, degree })
    };
    let decoder = match model {
        Model::Decoder(d) => check("model.heads", d.heads, layout.tensor)
            .or_else(|| check("model.kv_heads", d.kv_heads, layout.tensor))
            .or_else(|| check("model.ffn", d.ffn, layout.tensor))
            .or_else(|| check("model.vocab", d.vocab, layout.tensor))
            .or_else(|| check("model.context", d.context, layout.context)),
        Model::Mlp(_) | Model::Cnn(_) | Model::Command(_) => None,
    };
    let stages = layout.pipeline.get();
    let too_deep = stages > 1 && stages > model.blocks();
    decoder.or_else(|| {
        too_deep.then(|| Rejection::DoesNotDivide {
            what: "the model's blocks".into(),
            size: model.blocks(),
            degree: stages,
        })
    })
}

/// Micro-batches of one reader's share, ascending; empty when the batch does not divide.
fn micros(batch: NonZeroU64, readers: u32, pinned: Option<u32>) -> Vec<NonZeroU32> {
    let readers = u64::from(readers);
    if !batch.get().is_multiple_of(readers) {
        return Vec::new();
    }
    let sizes = divisors(batch.get() / readers).into_iter().filter_map(|d| u32::try_from(d).ok());
    let wanted = sizes.filter(|d| pinned.is_none_or(|p| p == *d));
    wanted.filter_map(NonZeroU32::new).collect()
}

/// What the number of micro-batches must be a multiple of, see [`crate::schedule::is_possible`].
fn round(arrangement: &Arrangement) -> u32 {
    match arrangement.schedule {
        PipelineSchedule::Interleaved => arrangement.layout.pipeline.get(),
        PipelineSchedule::Gpipe | PipelineSchedule::OneForwardOneBackward | PipelineSchedule::ZeroBubble => 1,
    }
}

/// Every arrangement of one layout that the recipe leaves open.
fn arrangements(recipe: &Recipe, layout: Layout, device: DeviceKind) -> Vec<Arrangement> {
    let pins = &recipe.layout;
    let base = Arrangement { layout, device, ..Arrangement::SINGLE };
    let mut all = vec![base];
    let mut each = |options: &dyn Fn(&Arrangement) -> Vec<Arrangement>| {
        all = all.iter().flat_map(options).collect();
    };
    each(&|a| {
        precisions(&recipe.train.precision)
            .into_iter()
            .map(|precision| Arrangement { precision, ..*a })
            .collect()
    });
    each(&|a| zeros(pins.zero, a.replicas()).into_iter().map(|zero| Arrangement { zero, ..*a }).collect());
    each(&|a| {
        let shard = if a.zero == ZeroStage::Zero0 { 1 } else { pins.shard.unwrap_or(a.replicas()) };
        vec![Arrangement { shard, ..*a }]
    });
    each(&|a| {
        let sequence = layout.tensor.get() > 1 && pins.sequence.unwrap_or(false);
        vec![Arrangement { sequence, ..*a }]
    });
    each(&|a| {
        schedules(pins, layout, recipe.model.blocks())
            .map(|(schedule, chunks)| Arrangement { schedule, chunks, ..*a })
            .collect()
    });
    each(&|a| {
        let recomputes = recomputes(pins.recompute).into_iter();
        let every =
            |recompute| if recompute == Recompute::None { 1 } else { pins.recompute_every.unwrap_or(1) };
        recomputes
            .map(|recompute| Arrangement { recompute, recompute_every: every(recompute), ..*a })
            .collect()
    });
    all
}

/// Schedules of a pipeline with the number of chunks a stage; without a pipeline there is nothing to order.
fn schedules(
    pins: &LayoutPins,
    layout: Layout,
    blocks: u32,
) -> impl Iterator<Item = (PipelineSchedule, u32)> + use<> {
    use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
    let (pinned, chunks, stages) = (pins.schedule, pins.chunks, layout.pipeline.get());
    let all = [OneForwardOneBackward, ZeroBubble, Interleaved, Gpipe];
    all.into_iter().filter_map(move |schedule| {
        let chunks = if schedule == Interleaved { chunks.unwrap_or(2) } else { 1 };
        let fits = stages * chunks <= blocks.max(1);
        match (pinned, stages) {
            (_, 1) => (schedule == OneForwardOneBackward).then_some((schedule, 1)),
            (Some(pinned), _) => (pinned == schedule).then_some((schedule, chunks)),
            (None, _) => fits.then_some((schedule, chunks)),
        }
    })
}

fn precisions(choice: &Choice<Precision>) -> Vec<Precision> {
    match choice {
        Choice::Pinned(precision) => vec![*precision],
        Choice::Among(all) => all.clone(),
        Choice::Auto | Choice::Log { .. } => vec![Precision::F32, Precision::Bf16],
    }
}

/// Without replicas there is nothing to shard: only stage 0, unless the recipe pins another.
fn zeros(pinned: Option<ZeroStage>, replicas: u32) -> Vec<ZeroStage> {
    match pinned {
        Some(zero) => vec![zero],
        None if replicas == 1 => vec![ZeroStage::Zero0],
        None => vec![ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3],
    }
}

fn recomputes(pinned: Option<Recompute>) -> Vec<Recompute> {
    pinned.map_or_else(|| vec![Recompute::None, Recompute::Selective, Recompute::Full], |one| vec![one])
}

/// Candidates left out, counted by heading, each heading with the one that came nearest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeftOut {
    groups: BTreeMap<String, (u64, u64, String, Rejection)>,
}

impl LeftOut {
    /// Counts `count` more under the heading of `rejection`; the smallest `distance` is kept as the nearest.
    pub fn add(&mut self, count: u64, rejection: &Rejection, described: impl Fn() -> String, distance: u64) {
        match self.groups.get_mut(&rejection.heading()) {
            Some((counted, nearest, words, kept)) => {
                *counted += count;
                if distance < *nearest {
                    (*nearest, *words, *kept) = (distance, described(), rejection.clone());
                }
            }
            None => {
                let first = (count, distance, described(), rejection.clone());
                self.groups.insert(rejection.heading(), first);
            }
        }
    }

    /// The groups, the most frequent first.
    pub fn groups(self) -> Vec<Rejected> {
        let group =
            |(heading, (count, _, nearest, rejection))| Rejected { heading, count, nearest, rejection };
        let mut groups: Vec<Rejected> = self.groups.into_iter().map(group).collect();
        groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.heading.cmp(&b.heading)));
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use dtrain_protocol::ability::cannot_run;
    use proptest::prelude::*;

    fn everything(_: &Arrangement, _: &Model) -> Option<String> {
        None
    }

    fn space(recipe: &Recipe, cores: u32, batch: u64, ability: Ability) -> Space {
        Space::of(recipe, &sample::host(cores), None, NonZeroU64::new(batch).expect("positive"), ability)
    }

    fn each(space: &Space) -> Vec<Candidate> {
        space.places().map(|place| space.candidate(place, 1e-3)).collect()
    }

    proptest! {
        #[test]
        fn every_candidate_keeps_the_products(cores in 1u32..13, batch in 1u64..97) {
            let recipe = sample::recipe();
            let space = space(&recipe, cores, batch, everything);
            let all = each(&space);
            prop_assert_eq!(all.len() as u64, space.len());
            for candidate in all {
                prop_assert_eq!(candidate.split.global(), batch);
                prop_assert_eq!(candidate.split.replicas(), candidate.arrangement.layout.readers());
                prop_assert!(candidate.arrangement.layout.world() <= cores);
                prop_assert!(candidate.arrangement.layout.world() * candidate.threads <= cores);
            }
        }

        #[test]
        fn all_factorisations_are_found(ranks in 1u32..49) {
            let all = layouts(ranks, &LayoutPins::default());
            let mut brute = 0;
            for t in 1..=ranks { for c in 1..=ranks / t { for e in 1..=ranks / t / c { for d in 1..=ranks / t / c / e {
                if ranks.is_multiple_of(t * c * e * d) { brute += 1; }
            } } } }
            prop_assert_eq!(all.len(), brute);
            prop_assert!(all.iter().all(|layout| layout.world() == ranks));
        }
    }

    #[test]
    fn pins_are_respected() {
        let mut recipe = sample::recipe();
        recipe.layout = LayoutPins {
            data: Some(3),
            micro_batch: Some(2),
            recompute: Some(Recompute::Full),
            ..Default::default()
        };
        let space = space(&recipe, 8, 36, everything);
        let all = each(&space);
        assert!(!all.is_empty());
        for candidate in all {
            assert_eq!((candidate.arrangement.layout.data.get(), candidate.split.micro()), (3, 2));
            assert_eq!(candidate.arrangement.recompute, Recompute::Full);
        }
    }

    #[test]
    fn pinned_replicas_may_be_more_than_the_cores() {
        let mut recipe = sample::recipe();
        recipe.layout.data = Some(4);
        let space = space(&recipe, 1, 8, cannot_run);
        assert_eq!(space.pools, [Pool { ranks: 4, threads: 1, device: DeviceKind::Cpu }]);
        assert!(!space.is_empty());
    }

    #[test]
    fn what_is_left_out_has_a_reason_and_a_count() {
        let space = space(&sample::recipe(), 2, 32, cannot_run);
        assert!(
            each(&space)
                .iter()
                .all(|c| c.arrangement.layout.tensor.get() == 1 && c.arrangement.precision == Precision::F32)
        );
        let groups = space.left_out.groups();
        let tensor = groups.iter().find(|g| g.heading.ends_with("axis: tensor")).expect("tensor is left out");
        // 4 zero stages are not tried without replicas: 3 recompute modes × 2 precisions × 6 micro-batches.
        assert_eq!(tensor.count, 36);
        assert!(groups.iter().any(|g| g.heading.contains("bf16")));
    }

    #[test]
    fn a_batch_that_no_replica_count_divides_is_said() {
        let mut recipe = sample::recipe();
        recipe.layout.data = Some(2);
        let space = space(&recipe, 2, 15, cannot_run);
        assert!(space.is_empty());
        let groups = space.left_out.groups();
        assert_eq!(groups[0].heading, "a batch of 15 does not split evenly over the replicas");
    }
}
