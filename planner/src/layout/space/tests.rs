use super::*;
use crate::engine::engine_of_recipe;
use crate::fixtures;
use dtrain_protocol::supported::cannot_run;
use dtrain_protocol::{ContextExchange, Gpu};
use dtrain_recipes::{
    Cluster, Compression, Host, LayoutPins, PipelineSchedule, Precision, Recompute, Synchronisation,
    TrainingEngine, Tunable,
};
use proptest::prelude::*;

fn everything(_: &Arrangement, _: &Model) -> Option<String> {
    None
}

fn space(recipe: &Recipe, cores: u32, batch: u64, ability: CapabilityCheck) -> CandidateSpace {
    let abilities = Capabilities { worker: ability, engine: None, is_run: false };
    CandidateSpace::of(
        recipe,
        &fixtures::host(cores),
        None,
        NonZeroU64::new(batch).expect("positive"),
        &abilities,
    )
}

fn each(space: &CandidateSpace) -> Vec<Candidate> {
    space.candidate_ids().map(|id| space.candidate(id, 1e-3)).collect()
}

proptest! {
    #[test]
    fn every_candidate_keeps_the_products(cores in 1u32..13, batch in 1u64..97) {
        let recipe = fixtures::recipe();
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
        let all = enumerate_layouts(ranks, &LayoutPins::default());
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
    let mut recipe = fixtures::recipe();
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
fn replicas_are_alike_as_the_recipe_says_and_one_needs_nobody() {
    let mut recipe = fixtures::recipe();
    let is_exact = |recipe: &Recipe| {
        let space = space(recipe, 2, 32, cannot_run);
        each(&space)
            .iter()
            .map(|c| (c.arrangement.replicas(), c.arrangement.sync.is_exact()))
            .collect::<Vec<_>>()
    };
    assert!(is_exact(&recipe).iter().all(|(_, is_exact)| *is_exact), "it is never chosen");
    recipe.sync = Synchronisation { compress: Compression::Bf16, ..Synchronisation::EXACT };
    let found = is_exact(&recipe);
    assert!(found.iter().all(|(replicas, is_exact)| *is_exact == (*replicas == 1)));
    assert!(found.iter().any(|(replicas, _)| *replicas == 2));
}

#[test]
fn pinned_replicas_may_be_more_than_the_cores() {
    let mut recipe = fixtures::recipe();
    recipe.layout.data = Some(4);
    let space = space(&recipe, 1, 8, cannot_run);
    assert_eq!(space.pools, [RankPool { ranks: 4, threads: 1, device: DeviceKind::Cpu }]);
    assert!(!space.is_empty());
}

/// A capability check that rejects context parallelism.
fn splits_no_sequence(arrangement: &Arrangement, _: &Model) -> Option<String> {
    let degree = arrangement.layout.context;
    (degree.get() > 1).then(|| format!("no work is cut along this axis: context {degree}"))
}

#[test]
fn what_is_left_out_has_a_reason_and_a_count() {
    let refused = space(&fixtures::recipe(), 2, 32, splits_no_sequence);
    assert!(each(&refused).iter().all(|c| c.arrangement.layout.context.get() == 1));
    let groups = refused.left_out.groups();
    let context = groups.iter().find(|g| g.heading.ends_with("axis: context")).expect("context is left out");
    // 3 ZeRO stages × recompute of nothing, of attention, or of all in every block, every second or every
    // fourth; ZeRO 3 only with full recompute; each × 2 precisions × 6 micro-batches.
    assert_eq!(context.count, (3 * 5 + 1) * 2 * 6);
    let able = space(&fixtures::recipe(), 2, 32, cannot_run);
    assert!(each(&able).iter().all(|c| c.arrangement.precision == Precision::F32));
    assert!(able.left_out.groups().iter().any(|g| g.heading.contains("bf16")));
}

#[test]
fn a_batch_that_no_replica_count_divides_is_said() {
    let mut recipe = fixtures::recipe();
    recipe.layout.data = Some(2);
    let space = space(&recipe, 2, 15, cannot_run);
    assert!(space.is_empty());
    let groups = space.left_out.groups();
    assert_eq!(groups[0].heading, "a batch of 15 does not split evenly over the replicas");
}

#[test]
fn both_ways_to_hold_a_sequence_are_offered_where_it_divides() {
    let mut recipe = fixtures::recipe();
    recipe.layout.tensor = Some(4);
    let offered = |recipe: &Recipe| {
        let space = space(recipe, 4, 32, everything);
        let mut all: Vec<bool> = space.options.iter().map(|option| option.arrangement.sequence).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(offered(&recipe), [false, true]);
    recipe.layout.sequence = Some(false);
    assert_eq!(offered(&recipe), [false]);
    recipe.layout.sequence = None;
    if let Model::Decoder(d) = &mut recipe.model {
        d.context = 250;
    }
    assert_eq!(offered(&recipe), [false], "250 tokens have no four equal parts");
}

#[test]
fn a_sequence_is_cut_into_two_pieces_a_rank() {
    let mut recipe = fixtures::recipe();
    recipe.layout.context = Some(4);
    assert!(!space(&recipe, 4, 32, everything).is_empty());
    if let Model::Decoder(d) = &mut recipe.model {
        d.context = 252;
    }
    let space = space(&recipe, 4, 32, everything);
    assert!(space.is_empty());
    let groups = space.left_out.groups();
    assert_eq!(groups[0].rejection.to_string(), "model.context = 252 cannot be split 8 ways");
}

#[test]
fn chunks_and_schedules_are_those_that_are_possible() {
    let mut recipe = fixtures::recipe();
    recipe.layout.pipeline = Some(2);
    let of = |recipe: &Recipe| {
        let space = space(recipe, 2, 24, everything);
        for id in space.candidate_ids() {
            let (option, passes) = (space.options[id.option as usize], space.micro_batches(id));
            let shape = crate::pipeline_schedule::PipelineShape {
                stages: 2,
                chunks: option.arrangement.chunks,
                micros: passes,
            };
            assert!(crate::pipeline_schedule::is_possible(option.arrangement.schedule, shape));
        }
        let mut all: Vec<_> = space
            .options
            .iter()
            .map(|option| (option.arrangement.schedule, option.arrangement.chunks))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
    // Four blocks: two chunks of two stages, not three.
    assert_eq!(of(&recipe), [(Gpipe, 1), (OneForwardOneBackward, 1), (Interleaved, 2), (ZeroBubble, 1)]);
    recipe.layout.chunks = Some(2);
    assert_eq!(of(&recipe), [(Interleaved, 2)]);
    recipe.layout.schedule = Some(Interleaved);
    recipe.layout.chunks = Some(3);
    assert!(of(&recipe).is_empty());
}

#[test]
fn recompute_of_some_blocks_is_offered_where_it_differs() {
    let mut recipe = fixtures::recipe();
    recipe.layout.recompute = Some(Recompute::Full);
    let every = |recipe: &Recipe, cores| {
        let space = space(recipe, cores, 32, everything);
        let mut all: Vec<u32> =
            space.options.iter().map(|option| option.arrangement.recompute_every).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(every(&recipe, 1), [1, 2, 4]);
    recipe.layout.pipeline = Some(4);
    assert_eq!(every(&recipe, 4), [1], "a block a stage");
}

#[test]
fn zero_3_computes_every_block_again() {
    let mut recipe = fixtures::recipe();
    recipe.layout.zero = Some(ZeroStage::Zero3);
    recipe.layout.data = Some(2);
    let space = space(&recipe, 2, 32, everything);
    assert!(!space.is_empty());
    let is_full = |option: &LayoutOption| {
        (option.arrangement.recompute, option.arrangement.recompute_every) == (Recompute::Full, 1)
    };
    assert!(space.options.iter().all(is_full));
}

#[test]
fn shards_are_all_replicas_or_those_of_a_host() {
    let mut recipe = fixtures::recipe();
    recipe.layout.data = Some(8);
    recipe.layout.zero = Some(ZeroStage::Zero1);
    let shards = |recipe: &Recipe| {
        let mut all: Vec<u32> =
            space(recipe, 8, 32, everything).options.iter().map(|option| option.arrangement.shard).collect();
        all.dedup();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(shards(&recipe), [8]);
    let host = |address: &str| Host { address: address.into(), port: 22, user: None, via: None };
    recipe.cluster = Cluster { hosts: vec![host("a"), host("b")], ..recipe.cluster };
    assert_eq!(shards(&recipe), [4, 8]);
    recipe.layout.shard = Some(2);
    assert_eq!(shards(&recipe), [2]);
    recipe.layout.shard = Some(3);
    assert!(shards(&recipe).is_empty(), "3 does not divide 8");
}

#[test]
fn uneven_replicas_share_the_batch_as_they_are_told() {
    let mut recipe = fixtures::recipe();
    recipe.layout.shares = Some(vec![3, 1]);
    recipe.layout.data = Some(2);
    let space = space(&recipe, 2, 32, everything);
    assert!(!space.is_empty());
    for id in space.candidate_ids() {
        let candidate = space.candidate(id, 0.0);
        let passes = |reader| candidate.split.micro_batches_of(reader).get();
        assert_eq!(passes(0), 3 * passes(1));
        assert_eq!((candidate.split.share(0), candidate.split.share(1)), (0..24, 24..32));
        assert_eq!(space.micro_batches(id), passes(0), "the slowest decides");
        assert!(candidate.arrangement.zero <= ZeroStage::Zero1);
        let alone = CandidateSpace::single(&candidate).expect("a candidate is a space");
        assert_eq!(alone.candidate(CandidateId { option: 0, micro: 0 }, 0.0), candidate);
    }
    let groups = space.left_out.groups();
    assert!(groups.iter().any(|g| g.heading.contains("only once per step")), "{groups:?}");
    recipe.train.batch = dtrain_recipes::Tunable::Auto;
    let odd = self::space(&recipe, 2, 30, everything);
    assert!(odd.is_empty(), "30 samples have no quarter");
}

#[test]
fn an_engine_exchanges_keys_and_values_in_a_way_that_it_has() {
    let mut recipe = Recipe { model: fixtures::llama(), ..fixtures::recipe() };
    recipe.layout.context = Some(2);
    for (engine, wanted) in [
        (TrainingEngine::Dtrain, ContextExchange::Ring),
        (TrainingEngine::Torchtitan, ContextExchange::AllGather),
    ] {
        recipe.engine = engine;
        let abilities = Capabilities::of(&recipe, engine_of_recipe(engine));
        let batch = NonZeroU64::new(8).expect("positive");
        let all = each(&CandidateSpace::of(&recipe, &fixtures::host(2), None, batch, &abilities));
        assert!(!all.is_empty(), "{engine:?}");
        assert!(all.iter().all(|c| c.arrangement.context_exchange == wanted), "{engine:?}");
    }
}

#[test]
fn precisions_that_a_gpu_lacks_are_no_candidates() {
    let gpu = |name: &str| Gpu { device: DeviceKind::Cuda, name: name.into(), memory_bytes: 16 << 30 };
    let with = |name: &str| HostFacts { gpus: vec![gpu(name)], ..fixtures::host(8) };
    let precisions = |name: &str, choice: Tunable<Precision>| {
        let mut recipe = fixtures::recipe();
        recipe.train.precision = choice;
        let abilities = Capabilities { worker: |_, _| None, engine: None, is_run: false };
        let space = CandidateSpace::of(&recipe, &with(name), None, NonZeroU64::MIN, &abilities);
        let mut found: Vec<Precision> = space.options.iter().map(|one| one.arrangement.precision).collect();
        found.sort();
        found.dedup();
        found
    };
    assert_eq!(precisions("Tesla V100-SXM2-16GB", Tunable::Auto), [Precision::F32, Precision::F16]);
    assert_eq!(precisions("NVIDIA A100-SXM4-40GB", Tunable::Auto), [Precision::F32, Precision::Bf16]);
    assert!(precisions("Tesla T4", Tunable::Pinned(Precision::Bf16)).is_empty());
}
