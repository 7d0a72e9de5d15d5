use super::*;
use crate::fixtures;
use dtrain_protocol::Layout;
use dtrain_recipes::{Compression, DiLoCo, PipelineSchedule, Recompute, Synchronisation, ZeroStage};
use proptest::prelude::*;
use std::num::NonZeroU32;

fn n(degree: u32) -> NonZeroU32 {
    NonZeroU32::new(degree).expect("degrees start at one")
}

fn cut(change: impl FnOnce(&mut Layout)) -> Arrangement {
    let mut layout = Layout::SINGLE;
    change(&mut layout);
    Arrangement { layout, ..Arrangement::SINGLE }
}

fn sent(model: &Model, arrangement: &Arrangement, split: (u32, u32)) -> Traffic {
    Traffic::of_rank(model, arrangement, split, Rank(0))
}

/// Parameters of GPT-2 124M.
const GPT2: u64 = 124_439_808;
const ROW: u64 = 4 * ROW_VALUES;

#[test]
fn one_rank_sends_nothing() {
    for model in fixtures::models() {
        assert_eq!(sent(&model, &Arrangement::SINGLE, (4, 3)), Traffic::default());
    }
}

#[test]
fn replicas_send_their_gradients_once_whatever_the_micro_batches() {
    let model = fixtures::gpt2();
    for replicas in [2, 4] {
        let arrangement = cut(|layout| layout.data = n(replicas));
        let traffic = sent(&model, &arrangement, (1, 8));
        // 2 N (n − 1) / n, N a multiple of 4.
        let share = u64::from(replicas - 1) * GPT2 / u64::from(replicas);
        assert_eq!(traffic.gradients, Bytes(4 * 2 * share));
        assert_eq!(traffic.total(), Bytes(4 * 2 * share + u64::from(replicas - 1) * ROW));
    }
}

#[test]
fn tokens_go_to_their_experts_and_back_in_both_directions() {
    let model = fixtures::experts();
    let arrangement = cut(|layout| layout.expert = n(4));
    let traffic = sent(&model, &arrangement, (2, 3));
    // Of 2 · 256 tokens and two experts each, three quarters go to other ranks, as rows of 256; and eight
    // numbers.
    let ways = 4 * 2 * 256 * 2 * 256 / 4 * 3;
    assert_eq!(traffic.expert, Bytes(3 * 4 * (4 * ways + 4 * 8 / 4 * 3)));
    let again = Arrangement { recompute: Recompute::Full, ..arrangement };
    assert_eq!(sent(&model, &again, (2, 3)).expert, Bytes(3 * 4 * (6 * ways + 2 * 4 * 8 / 4 * 3)));
    // No other rank holds the same experts.
    let dtrain_recipes::Model::Decoder(d) = &model else { unreachable!() };
    let experts = 4 * 8 * 3 * u64::from(d.hidden * d.ffn);
    assert_eq!(traffic.gradients, Bytes(4 * 2 * (model.parameters() - experts) / 4 * 3));
    let replicated = cut(|layout| layout.data = n(4));
    let all = sent(&model, &replicated, (2, 3));
    assert_eq!((all.gradients, all.expert), (Bytes(4 * 2 * model.parameters() / 4 * 3), Bytes(0)));
}

#[test]
fn a_short_rest_goes_to_everybody_at_once() {
    // A perceptron of 2,000 values fits into one small all-reduce: N (n − 1), not 2 N (n − 1) / n.
    let model = Model::Mlp(dtrain_recipes::Mlp {
        inputs: 19,
        hidden: vec![80],
        classes: 4,
        activation: dtrain_recipes::MlpActivation::Relu,
    });
    assert_eq!(model.parameters(), 20 * 80 + 81 * 4);
    let traffic = sent(&model, &cut(|layout| layout.data = n(4)), (1, 1));
    assert_eq!(traffic.gradients, Bytes(4 * 3 * 1924));
}

#[test]
fn each_zero_stage_sends_what_rajbhandari_et_al_say() {
    let model = fixtures::gpt2();
    let at = |zero, micro_batches| {
        let arrangement = Arrangement { zero, shard: 4, ..cut(|layout| layout.data = n(4)) };
        sent(&model, &arrangement, (1, micro_batches))
    };
    // One way of all weights: N (n − 1) / n; every parameter of GPT-2 divides by 4. The head reads the
    // embedding of the same rank, 51,281 rows with positions; in its backward it still has it, and its own
    // norm.
    let way = 4 * GPT2 / 4 * 3;
    let (embedding, norm) = (4 * 51_281 * 768 / 4 * 3, 4 * 2 * 768 / 4 * 3);
    for m in [1, 5] {
        let times = u64::from(m);
        assert_eq!(
            (at(ZeroStage::Zero1, m).gradients, at(ZeroStage::Zero1, m).weights),
            (Bytes(way), Bytes(way))
        );
        assert_eq!(at(ZeroStage::Zero2, m).gradients, Bytes(times * way));
        assert_eq!(at(ZeroStage::Zero2, m).weights, Bytes(way));
        assert_eq!(at(ZeroStage::Zero3, m).gradients, Bytes(times * way));
        assert_eq!(at(ZeroStage::Zero3, m).weights, Bytes(times * (2 * way + embedding - norm)));
    }
    let plain = sent(&model, &cut(|layout| layout.data = n(4)), (1, 1));
    assert_eq!(at(ZeroStage::Zero1, 1).gradients.0 + way, plain.gradients.0, "as much as an all-reduce");
}

#[test]
fn a_hybrid_shard_reduces_inside_and_then_across() {
    let model = fixtures::gpt2();
    let arrangement = Arrangement { zero: ZeroStage::Zero1, shard: 2, ..cut(|layout| layout.data = n(4)) };
    let traffic = sent(&model, &arrangement, (1, 3));
    // Inside a group: half of the gradients. Across: an all-reduce between two of the other half, 2 · (N/2) /
    // 2.
    assert_eq!(traffic.gradients, Bytes(4 * (GPT2 / 2 + GPT2 / 2)));
    assert_eq!(traffic.weights, Bytes(4 * GPT2 / 2));
}

#[test]
fn tensor_parallelism_sends_four_all_reduces_a_block_and_micro_batch() {
    let model = fixtures::gpt2();
    let arrangement = cut(|layout| layout.tensor = n(2));
    let (micro, m) = (2, 3);
    let traffic = sent(&model, &arrangement, (micro, m));
    // Shoeybi et al. 2019: of 2 · 1,024 · 768 values, between two ranks all of them once; one more for the
    // embedding forward and one for the head backward; maxima, and sums with targets, of 2,048 rows.
    let stream = 4 * 2 * 1024 * 768;
    let loss = 4 * (2048 + 2 * 2048);
    assert_eq!(traffic.tensor, Bytes(3 * ((4 * 12 + 2) * stream + loss)));
    let again = Arrangement { recompute: Recompute::Full, ..arrangement };
    assert_eq!(sent(&model, &again, (micro, m)).tensor, Bytes(3 * ((6 * 12 + 2) * stream + loss)));
    let every = Arrangement { recompute_every: 4, ..again };
    assert_eq!(sent(&model, &every, (micro, m)).tensor, Bytes(3 * ((4 * 12 + 2 * 3 + 2) * stream + loss)));
}

#[test]
fn sequence_parallelism_sends_as_much_as_without_but_for_what_is_whole() {
    let model = fixtures::gpt2();
    let plain = cut(|layout| layout.tensor = n(4));
    let sequence = Arrangement { sequence: true, ..plain };
    let (a, b) = (sent(&model, &plain, (1, 2)).tensor, sent(&model, &sequence, (1, 2)).tensor);
    // Korthikanti et al. 2022: an all-reduce is a reduce-scatter and an all-gather. The norms, row biases and
    // positions, 843,264 values, are summed once, 2 N · 3 / 4.
    assert_eq!(b.0 - a.0, 4 * (843_264 * 2 / 4 * 3));
}

#[test]
fn a_shard_is_padded_parameter_by_parameter() {
    let model = fixtures::gpt2();
    let arrangement = Arrangement { zero: ZeroStage::Zero1, shard: 5, ..cut(|layout| layout.data = n(5)) };
    let parts = ModelParameters::of(&model, &arrangement.layout, Coord([0; 5]));
    let mut blocks = 0;
    parts.for_each_unit(&arrangement, 0, |unit, _, count| blocks += count * unit.block(5));
    // A fifth of everything, and less than a value more for each of 148 parameters.
    assert!(blocks * 5 > GPT2 && blocks < GPT2 / 5 + 148, "{blocks}");
    assert_eq!(sent(&model, &arrangement, (1, 2)).weights, Bytes(4 * 4 * blocks));
}

#[test]
fn a_balanced_ring_hands_on_half_of_the_keys_where_nobody_sees_more() {
    let Model::Decoder(mut llama) = fixtures::llama() else { unreachable!("the sample is a decoder") };
    llama.layers = 3;
    let model = Model::Decoder(llama);
    let arrangement = cut(|layout| layout.context = n(4));
    // Keys and values of 4 heads of 32 of two samples of 64 tokens.
    let keys = 4 * 2 * 64 * 2 * 128;
    let of = |rank| Traffic::of_rank(&model, &arrangement, (2, 5), Rank(rank)).context.0;
    // Forward, again backward, and gradients, in halves of keys.
    let halves = [3 + 3 + 6, 6 + 6 + 5, 5 + 5 + 5, 4 + 4 + 5];
    assert_eq!([0, 1, 2, 3].map(of), halves.map(|halves| 5 * 3 * halves * keys / 2));
    assert!(
        sent(&model, &arrangement, (2, 5)).gradients.0 > 0,
        "context-parallel ranks hold the same weights"
    );
    let two = cut(|layout| layout.context = n(2));
    // Between two: the first half of the first's keys, all of the second's; gradients of as much come back.
    let of = |rank| Traffic::of_rank(&model, &two, (2, 5), Rank(rank)).context.0;
    assert_eq!([0, 1].map(of), [1 + 1 + 2, 2 + 2 + 1].map(|halves| 5 * 3 * halves * keys));
}

#[test]
fn stages_hand_on_activations_and_hand_back_gradients() {
    let model = fixtures::gpt2();
    let arrangement = cut(|layout| layout.pipeline = n(4));
    let message = 4 * 3 * 1024 * 768;
    let of = |arrangement: &Arrangement, rank| Traffic::of_rank(&model, arrangement, (3, 8), Rank(rank));
    assert_eq!([0, 1, 2, 3].map(|r| of(&arrangement, r).pipeline.0), [1, 2, 2, 1].map(|k| 8 * k * message));
    // The embedding is tied: first and last sum it.
    assert_eq!([0, 1, 2, 3].map(|r| of(&arrangement, r).tied.0), [1, 0, 0, 1].map(|k| k * 4 * 50_257 * 768));
    // Two chunks: every stage sends twice, but for the ends of the model.
    let two = Arrangement { schedule: PipelineSchedule::Interleaved, chunks: 2, ..arrangement };
    assert_eq!([0, 1, 2, 3].map(|r| of(&two, r).pipeline.0), [3, 4, 4, 3].map(|k| 8 * k * message));
}

#[test]
fn the_boundaries_of_a_residual_network_are_of_unlike_sizes() {
    let cnn = dtrain_recipes::Cnn {
        channels: 1,
        height: 28,
        width: 28,
        stages: vec![8, 16],
        blocks: 1,
        classes: 10,
    };
    let model = Model::Cnn(cnn);
    let traffic = sent(&model, &cut(|layout| layout.pipeline = n(2)), (2, 1));
    // Eight channels of 28 × 28 after the first block.
    assert_eq!(traffic.pipeline, Bytes(4 * 2 * 8 * 28 * 28));
}

proptest! {
    /// Every message between ranks has a sender and a receiver, so sums over all stages are equal forward and
    /// backward.
    #[test]
    fn every_message_of_a_pipeline_has_two_ends(stages in 2u32..5, chunks in 1u32..3, micro in 1u32..4) {
        let model = fixtures::gpt2();
        let arrangement = Arrangement { chunks, ..cut(|layout| layout.pipeline = n(stages)) };
        let (mut forward, mut backward) = (0, 0);
        for rank in 0..stages {
            let coord = arrangement.layout.coord(Rank(rank));
            let parts = ModelParameters::of(&model, &arrangement.layout, coord);
            let sender = TrafficModel::of(&model, &parts, &arrangement, coord);
            sender.each(micro, |transfer| if transfer.purpose == TrafficPurpose::Pipeline {
                match transfer.when {
                    TransferPhase::Forward => forward += transfer.values * transfer.times,
                    _ => backward += transfer.values * transfer.times,
                }
            });
        }
        prop_assert_eq!(forward, backward);
        let hops = u64::from(stages * chunks - 1);
        prop_assert_eq!(forward, hops * u64::from(micro) * 1024 * 768);
    }

    /// The members of a group together send the volume in the formula, for any uneven parts.
    #[test]
    fn uneven_parts_send_the_whole_between_them(values in 1u64..100_000, ranks in 2u32..9) {
        let all = |kind| {
            let (purpose, when, channel) = (TrafficPurpose::Gradients, TransferPhase::Step, Channel::Replicas);
            let one = CommunicationOp { purpose, when, kind, channel, ranks, values, times: 1 };
            (0..ranks).map(|index| one.sent(index)).sum::<u64>()
        };
        let others = u64::from(ranks - 1);
        prop_assert_eq!(all(CollectiveKind::ReduceScatter), 4 * values * others);
        prop_assert_eq!(all(CollectiveKind::AllGather), 4 * values * others);
        let small = if values <= SMALL_VALUES { u64::from(ranks) } else { 2 };
        prop_assert_eq!(all(CollectiveKind::AllReduce), 4 * values * others * small);
    }
}

#[test]
fn replicas_that_are_alike_approximately_send_less() {
    let model = fixtures::gpt2();
    let of = |compress, local| {
        let sync = Synchronisation { compress, local, staleness: 0 };
        sent(&model, &Arrangement { sync, ..cut(|layout| layout.data = n(4)) }, (1, 8)).gradients.0
    };
    let exact = of(Compression::None, None);
    assert_eq!(exact, 2 * 3 * GPT2);
    // Two values in the space of one; a scale for each of two blocks, to three others, for each of 475
    // buckets.
    let halves = exact / 2 + 475 * 2 * 3 * 4;
    assert_eq!((of(Compression::F16, None), of(Compression::Bf16, None)), (halves, halves));
    // One value in a hundred with its index, 2,622 of 262,144, to three others; of the last bucket 1,836 of
    // 183,552.
    assert_eq!(of(Compression::TopK { keep: 0.01 }, None), 3 * 2 * 4 * (474 * 2622 + 1836));
    let local = Some(DiLoCo { every: 10, outer_learning_rate: 0.7, outer_momentum: 0.9 });
    assert_eq!(of(Compression::None, local), exact / 10);
    // Rank 4: embedding and positions, and in each of twelve blocks four matrices with two sides of 768 and
    // two with 768 and 3,072; norms and biases are uncompressed.
    let sides = 4 * (50_257 + 768 + 1024 + 768 + 12 * (4 * 2 * 768 + 2 * (768 + 3072)));
    let whole = GPT2 - (50_257 + 1024) * 768 - 12 * (4 * 768 * 768 + 2 * 768 * 3072);
    let found = of(Compression::PowerSgd { rank: 4 }, None);
    assert!(found.abs_diff(2 * 3 * (sides + whole)) < 100, "{found}");
}
