use super::*;

use crate::fixtures;
use dtrain_protocol::Layout;
use dtrain_recipes::{Activation, Decoder, DiLoCo, Positions, Synchronisation};
use proptest::prelude::*;
use std::num::NonZeroU32;

const ON_GPU: Arrangement = Arrangement { device: DeviceKind::Cuda, ..Arrangement::SINGLE };

/// Inputs of the memory model, before the layout is known.
#[derive(Clone, Copy)]
struct Asked<'a> {
    model: &'a Model,
    optimizer: &'a Optimizer,
    arrangement: Arrangement,
    micro: u32,
    micro_batches: u32,
    baseline: u64,
}

fn held<'a>(model: &'a Model, optimizer: &'a Optimizer) -> Asked<'a> {
    Asked { model, optimizer, arrangement: ON_GPU, micro: 1, micro_batches: 1, baseline: 0 }
}

fn peak(asked: &Asked<'_>) -> MemoryBreakdown {
    let Asked { model, optimizer, arrangement, micro, micro_batches, baseline } = *asked;
    let parts = ModelParameters::largest(model, &arrangement.layout);
    PipelineMemory::of(&MemoryInputs { model, parts: &parts, optimizer, arrangement, baseline })
        .peak((micro, micro_batches))
}

#[test]
fn gpt2_124m_on_one_rank_is_known_by_hand() {
    let (model, optimizer) = (fixtures::gpt2(), fixtures::adamw());
    let memory = peak(&held(&model, &optimizer));
    // 124,439,808 parameters: 4 bytes each in weights and in gradients, 8 in two moments. The matrices of
    // queries, keys and values of a block lie side by side once more.
    assert_eq!(memory.weights, Bytes(497_759_232 + 12 * 4 * 768 * 3 * 768));
    // And the gradients of the embedding, (50,257 + 1,024) × 768, before they are added.
    assert_eq!(memory.gradients, Bytes(497_759_232 + 157_535_232));
    assert_eq!(memory.optimizer, Bytes(995_518_464));
    // One token of one block saves 2·768 before attention, 3·768 heads, 12·1024 of their softmax, 768 after
    // it, and 2·768 and 2·3072 in the feed-forward, and 4 figures of the norms: 24,580 values; 12 blocks,
    // 1,024 tokens, 4 bytes; and three numbers per token for its place in the embedding. Gradients passing
    // through a block are less than the logits were.
    let block = 1024 * 4 * 24_580;
    assert_eq!(memory.activations, Bytes(12 * block + 1024 * 4 * 3));
    assert_eq!(memory.logits, Bytes(1024 * 4 * (50_257 + 3 * 768)));
    assert_eq!(memory.buckets, Bytes(0));
}

/// The architecture of Llama 3 8B.
fn llama_8b(context: u32) -> Model {
    let Model::Decoder(small) = fixtures::llama() else { unreachable!("the sample is a decoder") };
    let [hidden, heads, kv_heads, ffn, vocab] = [4096, 32, 8, 14_336, 128_256];
    Model::Decoder(Decoder { layers: 32, hidden, heads, kv_heads, ffn, vocab, context, ..small })
}

#[test]
fn the_kernels_of_a_device_keep_factors_in_16_bits_and_one_softmax() {
    let one = ActivationSharding { tensor: 1, sequence: false, context: 1 };
    let of_token = |context: u32, recompute, precision| {
        let kept = saved_activations(&llama_8b(context), one, recompute, precision, OpBackend::Device);
        [kept.block_stored, kept.again_stored, kept.again_working - kept.block_working]
            .map(|bytes| bytes / u64::from(context))
    };
    // Input and residual in f32, both normed in 16 bits, mean and deviation of both; heads, their context;
    // gate and up in f32, their product in 16 bits. Beside it the softmax: 32 heads, 2 bytes each.
    let rest = 2 * 4096 * (4 + 2) + 16 + 2 * (4096 + 2 * 1024) + 2 * 4096 + 14_336 * (2 * 4 + 2);
    for context in [1024, 8192] {
        let softmax = u64::from(context) * 32 * 2;
        let stored = rest + softmax;
        assert_eq!(
            of_token(context, Recompute::Full, Precision::Bf16),
            [stored, 4 * 4096, stored - 4 * 4096]
        );
        // Attention saves the tensor that its heads are split from, in f32.
        let heads = 2 * (4096 + 2 * 1024);
        let selective = of_token(context, Recompute::Selective, Precision::Bf16);
        assert_eq!(selective, [stored, rest - heads + 2 * heads, heads + softmax]);
    }
    assert_eq!((rest + 1024 * 64, rest + 8192 * 64), (278_544, 737_296));
    // All in f32: twice the heads and their softmax.
    let f32 = of_token(1024, Recompute::None, Precision::F32)[0];
    assert_eq!(f32 - rest, 2 * 4096 * 2 + 2 * (4096 + 2 * 1024) + 2 * 4096 + 2 * 14_336 + 2 * 1024 * 64);
}

#[test]
fn a_pass_that_is_alive_keeps_its_copies_of_weights() {
    let optimizer = fixtures::adamw();
    let at = |precision, recompute| {
        let arrangement = Arrangement { precision, recompute, ..ON_GPU };
        peak(&Asked { arrangement, ..held(&llama_8b(64), &optimizer) }).weights.0
    };
    let (all, block) = (llama_8b(64).parameters(), 218_112_000);
    assert_eq!(at(Precision::Bf16, Recompute::None), 6 * all);
    assert_eq!(
        at(Precision::Bf16, Recompute::Full),
        4 * all + 2 * (all - 31 * block),
        "of one block at a time"
    );
    let side_by_side = 4 * 4096 * (4096 + 2 * 1024 + 2 * 14_336);
    assert_eq!(at(Precision::F32, Recompute::None), 4 * all + 32 * side_by_side);
    assert_eq!(at(Precision::F32, Recompute::Full), 4 * all + side_by_side);
}

#[test]
fn the_largest_tensor_is_known() {
    let largest = |context, precision, tensor| {
        let layout = Layout { tensor: n(tensor), ..Layout::SINGLE };
        let arrangement = Arrangement { precision, layout, ..ON_GPU };
        largest_tensor::largest(&llama_8b(context), &arrangement, 3)
    };
    let scores = |bytes| LargestTensor { what: "the attention scores of a micro-batch", bytes: Bytes(bytes) };
    assert_eq!(largest(8192, Precision::Bf16, 1), scores(2 * 3 * 32 * 8192 * 8192));
    assert_eq!(largest(8192, Precision::F32, 4), scores(4 * 3 * 8 * 8192 * 8192));
    let short = largest(64, Precision::Bf16, 1);
    assert_eq!(
        short,
        LargestTensor { what: "the table of the vocabulary", bytes: Bytes(4 * 4096 * 128_256) }
    );
    let logits = largest_tensor::largest(&llama_8b(1024), &ON_GPU, 8);
    assert_eq!(
        logits,
        LargestTensor { what: "the logits of a micro-batch", bytes: Bytes(4 * 8 * 1024 * 128_256) }
    );
}

#[test]
fn the_fused_operations_of_a_cpu_keep_no_scores() {
    let (model, optimizer) = (fixtures::gpt2(), fixtures::adamw());
    let memory = peak(&Asked { arrangement: Arrangement::SINGLE, micro: 2, ..held(&model, &optimizer) });
    // One token of one block saves 5·768 around 3·768 packed values, 12 logarithms and 2·3072, and the
    // embedding 768. Gradients passing through a block are less than the logits were.
    let token = 12 * (8 * 768 + 12 + 2 * 3072) + 768;
    assert_eq!(memory.activations, Bytes(2 * 1024 * 4 * token));
    assert_eq!(memory.logits, Bytes(2 * 1024 * 4 * (50_257 + 3 * 768)));
}

/// Compares with peaks of the worker itself, in MiB, on an x86-64 host with one rank of two threads
/// (2026-11-20).
#[test]
fn the_worker_was_measured_to_hold_what_is_counted() {
    let Model::Decoder(small) = fixtures::llama() else { unreachable!("the sample is a decoder") };
    let llama = Decoder { layers: 6, ..small };
    let gpt = Decoder {
        kv_heads: 8,
        positions: Positions::Learned,
        norm: dtrain_recipes::Norm::Layer,
        activation: Activation::Gelu,
        tied: true,
        bias: true,
        ..llama.clone()
    };
    let optimizer = fixtures::adamw();
    for (decoder, micro, recompute, measured) in [
        (&llama, 1, Recompute::None, 182.0),
        (&llama, 4, Recompute::None, 275.7),
        (&llama, 16, Recompute::None, 690.8),
        (&llama, 16, Recompute::Full, 277.8),
        (&gpt, 16, Recompute::None, 579.3),
    ] {
        let model = Model::Decoder(decoder.clone());
        let arrangement = Arrangement { recompute, ..Arrangement::SINGLE };
        let held = Asked { arrangement, micro, baseline: 48 << 20, ..held(&model, &optimizer) };
        let counted = peak(&held);
        // Measured before the first checkpoint.
        #[expect(clippy::cast_precision_loss, reason = "a few hundred MiB")]
        let counted = (counted.total().0 - counted.checkpoint.0) as f64 / f64::from(1 << 20);
        let error = counted / measured - 1.0;
        assert!(
            error.abs() < 0.09,
            "micro {micro} {recompute:?}: {counted:.0} MiB counted, {measured} measured"
        );
    }
}

fn n(degree: u32) -> NonZeroU32 {
    NonZeroU32::new(degree).expect("degrees start at one")
}

fn cut(change: impl FnOnce(&mut Layout)) -> Arrangement {
    let mut layout = Layout::SINGLE;
    change(&mut layout);
    Arrangement { layout, ..ON_GPU }
}

#[test]
fn each_zero_stage_shards_one_thing_more() {
    let (model, optimizer) = (fixtures::gpt2(), fixtures::adamw());
    let at = |zero| {
        let arrangement = Arrangement { zero, shard: 4, ..cut(|layout| layout.data = n(4)) };
        peak(&Asked { arrangement, ..held(&model, &optimizer) })
    };
    let (all, embedding) = (497_759_232, 157_535_232);
    assert_eq!(at(ZeroStage::Zero1).optimizer, Bytes(2 * all / 4));
    assert_eq!(at(ZeroStage::Zero1).gradients, Bytes(all + embedding));
    assert_eq!(at(ZeroStage::Zero2).gradients, Bytes(all / 4 + embedding), "the shard and one part");
    // Queries, keys and values of a block side by side.
    let copies = 12 * 4 * 768 * 3 * 768;
    assert_eq!(at(ZeroStage::Zero2).weights, Bytes(all + copies));
    let whole = all / 4 + 3 * embedding + copies;
    assert_eq!(at(ZeroStage::Zero3).weights, Bytes(whole), "the shard, a part, and packs");
}

#[test]
fn tensor_parallel_ranks_keep_what_korthikanti_et_al_count() {
    let (model, optimizer) = (fixtures::gpt2(), fixtures::adamw());
    let activations = |tensor: u32, sequence| {
        let layout = Layout { tensor: n(tensor), ..Layout::SINGLE };
        let arrangement = Arrangement { layout, sequence, ..Arrangement::SINGLE };
        peak(&Asked { arrangement, ..held(&model, &optimizer) }).activations.0
    };
    // Of 14·768 + 12 values a token and block, 8·768 + 2·3,072 + 12: inputs and normed inputs, 4·768, are
    // whole on every rank, all else is sharded. In sequence mode the two inputs are sharded too, and the
    // embedding.
    let (cut, normed, input) = (4 * 768 + 12 + 2 * 3072, 2 * 768, 2 * 768);
    let bytes = |a_block: u64, embedding: u64| 4 * 1024 * (12 * a_block + embedding);
    assert_eq!(activations(1, false), bytes(cut + normed + input, 768));
    assert_eq!(activations(4, false), bytes(cut / 4 + normed + input, 768));
    assert_eq!(activations(4, true), bytes(cut / 4 + normed + input / 4, 768 / 4));
}

#[test]
fn a_schedule_decides_how_many_micro_batches_are_alive() {
    let (model, optimizer) = (fixtures::gpt2(), fixtures::adamw());
    let at = |schedule, chunks, stage| {
        let arrangement =
            Arrangement { schedule, chunks, device: DeviceKind::Cpu, ..cut(|layout| layout.pipeline = n(4)) };
        let asked = Asked { arrangement, micro_batches: 8, ..held(&model, &optimizer) };
        let Asked { model, optimizer, arrangement, micro, micro_batches, baseline } = asked;
        let parts = ModelParameters::largest(model, &arrangement.layout);
        let held = MemoryInputs { model, parts: &parts, optimizer, arrangement, baseline };
        let kept = activations_of(&held);
        let memory = PipelineMemory::of(&held).passing(stage, (micro, micro_batches));
        let first = if stage == 0 { kept.outer } else { 0 };
        let working =
            if stage == 3 { kept.block_working.saturating_sub(kept.logits) } else { kept.block_working };
        ((memory.activations.0 - first - working) / kept.block_stored, memory.logits.0 / kept.logits)
    };
    use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
    // Three blocks per stage. GPipe keeps all 8 micro-batches, and their logits.
    assert_eq!([0, 3].map(|stage| at(Gpipe, 1, stage)), [(3 * 8, 0), (3 * 8, 8)]);
    assert_eq!([0, 2, 3].map(|stage| at(OneForwardOneBackward, 1, stage)), [(3 * 4, 0), (3 * 2, 0), (3, 1)]);
    // Narayanan et al. 2021: 2 (p − s − 1) + (v − 1) p + 1 chunks of one block.
    assert_eq!([0, 3].map(|stage| at(Interleaved, 3, stage)), [(15, 0), (9, 1)]);
    assert_eq!([0, 3].map(|stage| at(ZeroBubble, 1, stage)), [(3 * 4, 0), (3 * 4, 4)]);
}

#[test]
fn of_every_fourth_block_only_the_input_is_kept() {
    let (model, optimizer) = (fixtures::gpt2(), fixtures::adamw());
    let at = |recompute, recompute_every| {
        let arrangement = Arrangement { recompute, recompute_every, ..Arrangement::SINGLE };
        peak(&Asked { arrangement, ..held(&model, &optimizer) }).activations.0
    };
    // All but the input of each of 3 blocks of 12; recompute needs less than the logits did.
    let rest = 4 * 1024 * (7 * 768 + 12 + 2 * 3072);
    assert_eq!(at(Recompute::None, 1) - at(Recompute::Full, 4), 3 * rest);
    assert_eq!(at(Recompute::None, 1) - at(Recompute::Full, 1), 12 * rest);
}

#[test]
fn a_tied_embedding_lies_on_the_last_stage_again() {
    let (model, optimizer) = (fixtures::gpt2(), fixtures::adamw());
    let memory =
        peak(&Asked { arrangement: cut(|layout| layout.pipeline = n(12)), ..held(&model, &optimizer) });
    // One block of 7,087,872, the norm of 1,536 and the embedding: more than the first stage's positions.
    assert!(memory.weights.0 >= 4 * (7_087_872 + 1_536 + 50_257 * 768), "{memory:?}");
    assert!(memory.logits.0 > 0, "the last stage is the heaviest");
}

#[test]
fn replicas_that_are_alike_approximately_keep_more() {
    let (model, optimizer) = (fixtures::gpt2(), fixtures::adamw());
    let kept = |compress, local, staleness| {
        let sync = Synchronisation { compress, local, staleness };
        let arrangement = Arrangement { sync, ..cut(|layout| layout.data = n(2)) };
        peak(&Asked { arrangement, ..held(&model, &optimizer) }).optimizer.0 / (4 * model.parameters())
    };
    let local = Some(DiLoCo { every: 10, outer_learning_rate: 0.7, outer_momentum: 0.9 });
    assert_eq!(kept(Compression::Bf16, None, 0), 2, "nothing but the moments");
    assert_eq!(kept(Compression::PowerSgd { rank: 4 }, None, 0), 3);
    assert_eq!(kept(Compression::None, local, 0), 5, "weights, momentum and a change");
    assert_eq!(kept(Compression::TopK { keep: 0.1 }, local, 0), 6);
    assert_eq!(kept(Compression::Bf16, None, 3), 5, "gradients of three more steps");
}

proptest! {
    #[test]
    fn memory_grows_with_the_micro_batch(micro in 1u32..64, zero3: bool, full: bool, kind in 0usize..3) {
        let (model, optimizer) = (fixtures::models()[kind].clone(), fixtures::adamw());
        let zero = if zero3 { ZeroStage::Zero3 } else { ZeroStage::Zero0 };
        let recompute = if full { Recompute::Full } else { Recompute::None };
        let arrangement = Arrangement { zero, recompute, ..ON_GPU };
        let at = |micro| peak(&Asked { micro, arrangement, ..held(&model, &optimizer) }).total();
        prop_assert!(at(micro) < at(micro + 1));
    }

    #[test]
    fn full_recompute_never_needs_more(micro in 1u32..64) {
        let (model, optimizer) = (fixtures::llama(), fixtures::adamw());
        let at = |recompute| {
            let arrangement = Arrangement { recompute, ..ON_GPU };
            peak(&Asked { micro, arrangement, ..held(&model, &optimizer) }).total()
        };
        prop_assert!(at(Recompute::Full) < at(Recompute::Selective));
        prop_assert!(at(Recompute::Selective) < at(Recompute::None));
    }

    #[test]
    fn cutting_more_never_needs_more(axis in 0usize..4, micro in 1u32..9, micro_batches in 1u32..9, kind in 0usize..2) {
        let (model, optimizer) = ([fixtures::gpt2(), fixtures::llama()][kind].clone(), fixtures::adamw());
        let at = |ways: u32| {
            let arrangement = cut(|layout| match axis {
                0 => layout.tensor = n(ways),
                1 => layout.context = n(ways),
                2 => layout.pipeline = n(ways),
                _ => layout.data = n(ways),
            });
            let zero = if axis == 3 { ZeroStage::Zero3 } else { ZeroStage::Zero0 };
            let shard = if axis == 3 { ways } else { 1 };
            let arrangement = Arrangement { zero, shard, recompute: Recompute::Full, ..arrangement };
            let memory = peak(&Asked { arrangement, micro, micro_batches, ..held(&model, &optimizer) });
            // Communication buffers exist only with several ranks.
            memory.total().0 - memory.buckets.0
        };
        if axis != 3 {
            prop_assert!(at(2) <= at(1));
        }
        prop_assert!(at(4) <= at(2), "{} and {}", at(4), at(2));
    }

    #[test]
    fn every_zero_stage_needs_no_more_than_the_one_before(replicas in 2u32..9, micro in 1u32..5) {
        let (model, optimizer) = (fixtures::llama(), fixtures::adamw());
        let at = |zero| {
            let arrangement = Arrangement { zero, shard: replicas, recompute: Recompute::Full, ..cut(|l| l.data = n(replicas)) };
            let memory = peak(&Asked { arrangement, micro, ..held(&model, &optimizer) });
            (memory.optimizer.0, memory.gradients.0, memory.buckets.0)
        };
        let all = [ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3].map(at);
        prop_assert!(all.windows(2).all(|w| w[1].0 <= w[0].0 && w[1].1 <= w[0].1 && w[1].2 <= w[0].2));
    }
}
