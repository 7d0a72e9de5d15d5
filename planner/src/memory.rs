//! Bytes one rank holds at the peak of a step, by what they are for.
//!
//! Counts what the worker keeps: f32 weights, gradients and optimizer state, the tensors every operation saves
//! for its backward, the logits, the buffers of the reduction, and the process itself.

use dtrain_protocol::mapping::SLOT_VALUES;
use dtrain_protocol::{Arrangement, DeviceKind, split};
use dtrain_recipes::{
    Activation, Bytes, Cnn, Decoder, Mlp, Model, Optimizer, OptimizerKind, Positions, Precision, Recompute,
    ZeroStage,
};
use serde::{Deserialize, Serialize};

/// Bytes of one rank at the peak of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Weights, with their copies in a shorter format.
    pub weights: Bytes,
    /// Gradients, with the sum over micro-batches.
    pub gradients: Bytes,
    /// Moments of the optimizer.
    pub optimizer: Bytes,
    /// Values kept for backward, over all micro-batches alive at once.
    pub activations: Bytes,
    /// The output of the head, its softmax and its gradient.
    pub logits: Bytes,
    /// Buffers of the reduction.
    pub buckets: Bytes,
    /// The copy of this rank's share of the state while a checkpoint is written.
    pub checkpoint: Bytes,
    /// The process itself: what was resident before the model was built, code, stacks.
    pub baseline: Bytes,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> Bytes {
        Bytes(self.categories().iter().map(|(_, bytes)| bytes.0).sum())
    }

    /// The parts with their names, in a fixed order.
    pub fn categories(&self) -> [(&'static str, Bytes); 8] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("logits", self.logits),
            ("buckets", self.buckets),
            ("checkpoint", self.checkpoint),
            ("baseline", self.baseline),
        ]
    }
}

/// What decides the memory of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The model.
    pub model: &'a Model,
    /// The update rule.
    pub optimizer: &'a Optimizer,
    /// How the work is arranged.
    pub arrangement: Arrangement,
    /// Samples of one forward pass.
    pub micro: u32,
    /// Forward passes of a step.
    pub micro_batches: u32,
    /// Bytes of the process itself.
    pub baseline: u64,
}

/// Bytes of the heaviest rank. The heaviest stage is found, not assumed: it is often the last.
pub fn peak(held: &Held<'_>) -> Memory {
    (0..held.arrangement.layout.pipeline.get())
        .map(|stage| of_stage(held, stage))
        .max_by_key(|m| m.total())
        .unwrap_or_default()
}

/// Bytes of a rank of pipeline stage `stage`.
fn of_stage(held: &Held<'_>, stage: u32) -> Memory {
    let layout = &held.arrangement.layout;
    let (stages, tensor, data) = (layout.pipeline.get(), layout.tensor.get(), u64::from(layout.data.get()));
    let (first, last) = (stage == 0, stage + 1 == stages);
    let runs = chunks_of(stage, &held.arrangement, held.model.blocks());
    let blocks: u64 = runs.iter().map(|run| run.len() as u64).sum();
    let parameters = parameters(held.model, blocks, first, last) / u64::from(tensor);
    let shard = |at: ZeroStage| if held.arrangement.zero >= at { data } else { 1 };
    let copies = match held.arrangement.precision {
        Precision::F32 => 4,
        Precision::Bf16 => 6,
    };
    let alive = u64::from((stages - stage).min(held.micro_batches));
    let samples = u64::from(held.micro);
    let on_host = held.arrangement.device == DeviceKind::Cpu;
    // What the ranks of a host show to each other: two slots a rank, mapped by all of them.
    let slots = if on_host { 2 * data * 4 * SLOT_VALUES as u64 } else { 0 };
    let fused = on_host && held.arrangement.precision == Precision::F32;
    let kept = kept(held.model, held.arrangement.recompute, held.arrangement.precision, fused);
    let cut = u64::from(tensor * layout.context.get());
    let outer = if first { kept.outer } else { 0 };
    let logits = if last { kept.logits } else { 0 };
    // The logits are gone before gradients pass through a block: the larger of the two counts.
    let working = kept.block_working.saturating_sub(logits);
    let activations = kept.block_stored * blocks * alive + working + outer;
    Memory {
        weights: Bytes(copies * parameters / shard(ZeroStage::Zero3)),
        gradients: Bytes(4 * (parameters + largest_part(held.model)) / shard(ZeroStage::Zero2)),
        optimizer: Bytes(moments(held.optimizer) * 4 * parameters / shard(ZeroStage::Zero1)),
        activations: Bytes(samples * activations / cut),
        logits: Bytes(samples * logits / cut),
        buckets: Bytes(if data > 1 { 4 * parameters + slots } else { 0 }),
        checkpoint: Bytes(if on_host { 4 * (1 + moments(held.optimizer)) * parameters / data } else { 0 }),
        baseline: Bytes(held.baseline),
    }
}

/// The runs of blocks of stage `stage`: the pipeline goes through the stages once for each chunk, and all runs are
/// equal shares, the remainder spread evenly. One truth for memory, price and assignment.
pub fn chunks_of(stage: u32, arrangement: &Arrangement, blocks: u32) -> Vec<std::ops::Range<u32>> {
    let stages = arrangement.layout.pipeline.get();
    let run = |chunk: u32| {
        let share = split::share(u64::from(blocks), chunk * stages + stage, stages * arrangement.chunks);
        let block = |n: u64| u32::try_from(n).expect("a share is at most the whole");
        block(share.start)..block(share.end)
    };
    (0..arrangement.chunks).map(run).collect()
}

/// Parameters of a stage with `blocks` blocks.
fn parameters(model: &Model, blocks: u64, first: bool, last: bool) -> u64 {
    let Model::Decoder(d) = model else { return model.parameters() };
    let head = if d.tied { 0 } else { u64::from(d.vocab) * u64::from(d.hidden) } + d.norm_parameters();
    let embedding = d.outer_parameters() - head;
    let tied_again = if d.tied && last && !first { u64::from(d.vocab) * u64::from(d.hidden) } else { 0 };
    blocks * d.block_parameters()
        + if first { embedding } else { 0 }
        + if last { head + tied_again } else { 0 }
}

/// Parameters of the largest part of the model: their fresh gradients lie beside the sums until they are added.
fn largest_part(model: &Model) -> u64 {
    match model {
        Model::Decoder(d) => d.block_parameters().max(u64::from(d.vocab) * u64::from(d.hidden)),
        Model::Mlp(m) => {
            m.widths().windows(2).map(|w| (u64::from(w[0]) + 1) * u64::from(w[1])).max().unwrap_or(0)
        }
        Model::Cnn(c) => {
            let widest = u64::from(c.stages.iter().copied().max().unwrap_or(0));
            18 * widest * widest
        }
        Model::Command(_) => 0,
    }
}

/// Values the optimizer keeps for each parameter.
pub fn moments(optimizer: &Optimizer) -> u64 {
    match optimizer.kind {
        OptimizerKind::Adamw | OptimizerKind::Lamb => 2,
        OptimizerKind::Lion => 1,
        OptimizerKind::Sgd => u64::from(optimizer.beta1 > 0.0),
    }
}

/// Bytes kept for backward for one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// By every block, for as long as its micro-batch is alive.
    block_stored: u64,
    /// By the one block that is being computed again.
    block_working: u64,
    /// Before the first block.
    outer: u64,
    /// By the head and the loss.
    logits: u64,
}

fn kept(model: &Model, recompute: Recompute, precision: Precision, fused: bool) -> Kept {
    match model {
        Model::Decoder(d) if fused => decoder_fused(d, recompute),
        Model::Decoder(d) => decoder_plain(d, recompute, precision),
        Model::Mlp(m) => mlp(m),
        Model::Cnn(c) => cnn(c, recompute),
        Model::Command(_) => Kept { block_stored: 0, block_working: 0, outer: 0, logits: 0 },
    }
}

// Values for one token: h hidden, k key-value width, a heads, s sequence, f feed-forward width.

/// What the fused operations keep: scores never, only one logarithm for each row of them.
fn decoder_fused(d: &Decoder, recompute: Recompute) -> Kept {
    let (h, f, s) = (u64::from(d.hidden), u64::from(d.ffn), u64::from(d.context));
    let k = u64::from(d.kv_heads) * u64::from(d.head_width());
    let packed = h + 2 * k;
    let (wide, inner) = match d.activation {
        Activation::Swiglu => (2 * f, f),
        Activation::Gelu | Activation::Relu => (f, f),
    };
    // Input, normed, packed queries, keys and values, logarithms, context; residual, normed, up, activated.
    let all = 2 * h + packed + u64::from(d.heads) + h + 2 * h + wide + inner;
    // Gradients on their way through the block: of the residual, of the packed or the wide tensor and beside it.
    let passing = 2 * h + (packed + h).max(wide + inner);
    let (stored, working) = match recompute {
        Recompute::None | Recompute::Selective => (all, passing),
        Recompute::Full => (h, all - h + passing),
    };
    // The loss leaves its gradient where the logits were; the head keeps its input before and after the norm.
    let logits = u64::from(d.vocab) + 3 * h;
    Kept {
        block_stored: 4 * s * stored,
        block_working: 4 * s * working,
        outer: 4 * s * h,
        logits: 4 * s * logits,
    }
}

/// What plain tensor operations keep.
fn decoder_plain(d: &Decoder, recompute: Recompute, precision: Precision) -> Kept {
    let (h, f, s) = (u64::from(d.hidden), u64::from(d.ffn), u64::from(d.context));
    let k = u64::from(d.kv_heads) * u64::from(d.head_width());
    let product = match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
    };
    let rotated = if d.positions == Positions::Rotary { h + k } else { 0 };
    let scores = 2 * u64::from(d.heads) * s;
    // Input, normed, queries, keys, values, rotated copies, context; then residual and normed again.
    let attention = 2 * h + h + 2 * k + rotated + h;
    let feed_forward = 2 * h
        + match d.activation {
            Activation::Swiglu => 4 * f,
            Activation::Gelu | Activation::Relu => 2 * f,
        };
    let all = s * product * (attention + scores + feed_forward);
    let (block_stored, block_working) = match recompute {
        Recompute::None => (all, 0),
        Recompute::Selective => (s * product * (attention + feed_forward), s * product * scores),
        Recompute::Full => (s * 4 * h, all),
    };
    // Logits, log-softmax and the gradient, all in f32.
    Kept {
        block_stored,
        block_working,
        outer: s * 4 * 2 * h,
        logits: s * u64::from(d.vocab) * 12 + s * 8 * h,
    }
}

fn mlp(m: &Mlp) -> Kept {
    let hidden: u64 = m.hidden.iter().map(|w| u64::from(*w)).sum();
    let blocks = (m.hidden.len() as u64).max(1);
    Kept {
        block_stored: 4 * 3 * hidden / blocks,
        block_working: 0,
        outer: 4 * 2 * u64::from(m.inputs),
        logits: 12 * u64::from(m.classes),
    }
}

fn cnn(c: &Cnn, recompute: Recompute) -> Kept {
    let mut pixels = u64::from(c.height) * u64::from(c.width);
    let (mut values, mut inputs, mut largest) = (0, 0, 0);
    for (index, channels) in c.stages.iter().enumerate() {
        if index > 0 {
            pixels = (pixels / 4).max(1);
        }
        // Two convolutions, two norms (each keeps its input and its normed values), two activations, the sum;
        // a convolution is a product over patches, so nine copies of its input live while it works.
        let plane = pixels * u64::from(*channels);
        values += u64::from(c.blocks) * 8 * plane;
        inputs += u64::from(c.blocks) * plane;
        largest = largest.max(9 * plane);
    }
    let blocks = (u64::from(c.blocks) * c.stages.len() as u64).max(1);
    let stem = u64::from(c.height) * u64::from(c.width) * u64::from(c.channels + 3 * c.stages[0]);
    let (block_stored, block_working) = match recompute {
        Recompute::None | Recompute::Selective => (4 * values / blocks, 4 * largest),
        Recompute::Full => (4 * inputs / blocks, 4 * (largest + values / blocks)),
    };
    Kept { block_stored, block_working, outer: 4 * stem, logits: 12 * u64::from(c.classes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use dtrain_protocol::Layout;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    const ON_GPU: Arrangement = Arrangement { device: DeviceKind::Cuda, ..Arrangement::SINGLE };

    fn held<'a>(model: &'a Model, optimizer: &'a Optimizer) -> Held<'a> {
        Held { model, optimizer, arrangement: ON_GPU, micro: 1, micro_batches: 1, baseline: 0 }
    }

    #[test]
    fn gpt2_124m_on_one_rank_is_known_by_hand() {
        let (model, optimizer) = (sample::gpt2(), sample::adamw());
        let memory = peak(&held(&model, &optimizer));
        // 124,439,808 parameters: 4 bytes each in weights and in gradients, 8 in two moments.
        assert_eq!(memory.weights, Bytes(497_759_232));
        // And the gradient of the embedding, 50,257 × 768, before it is added.
        assert_eq!(memory.gradients, Bytes(497_759_232 + 154_389_504));
        assert_eq!(memory.optimizer, Bytes(995_518_464));
        // One token of one block keeps 2·768 + 768 + 2·768 + 768 in attention, 2·12·1024 scores and
        // 2·768 + 2·3072 in the feed-forward: 36,864 values; 12 blocks, 1,024 tokens, 4 bytes; and the
        // embedding's two.
        let block = 1024 * 4 * 36_864;
        assert_eq!(memory.activations, Bytes(12 * block + 1024 * 4 * 2 * 768));
        assert_eq!(memory.logits, Bytes(1024 * 50_257 * 12 + 1024 * 8 * 768));
        assert_eq!(memory.buckets, Bytes(0));
    }

    #[test]
    fn the_fused_operations_of_a_cpu_keep_no_scores() {
        let (model, optimizer) = (sample::gpt2(), sample::adamw());
        let memory = peak(&Held { arrangement: Arrangement::SINGLE, micro: 2, ..held(&model, &optimizer) });
        // One token of one block keeps 5·768 around 3·768 packed values, 12 logarithms and 2·3072, and the
        // embedding keeps 768. Gradients passing through a block are less than the logits were.
        let token = 12 * (8 * 768 + 12 + 2 * 3072) + 768;
        assert_eq!(memory.activations, Bytes(2 * 1024 * 4 * token));
        assert_eq!(memory.logits, Bytes(2 * 1024 * 4 * (50_257 + 3 * 768)));
    }

    /// Peaks of the worker itself, in MiB, on an x86-64 host with one rank of two threads (2026-11-20).
    #[test]
    fn the_worker_was_measured_to_hold_what_is_counted() {
        let Model::Decoder(small) = sample::llama() else { unreachable!("the sample is a decoder") };
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
        let optimizer = sample::adamw();
        for (decoder, micro, recompute, measured) in [
            (&llama, 1, Recompute::None, 182.0),
            (&llama, 4, Recompute::None, 275.7),
            (&llama, 16, Recompute::None, 690.8),
            (&llama, 16, Recompute::Full, 277.8),
            (&gpt, 16, Recompute::None, 579.3),
        ] {
            let model = Model::Decoder(decoder.clone());
            let arrangement = Arrangement { recompute, ..Arrangement::SINGLE };
            let held = Held { arrangement, micro, baseline: 48 << 20, ..held(&model, &optimizer) };
            let counted = peak(&held);
            // They were read before the first checkpoint.
            #[expect(clippy::cast_precision_loss, reason = "a few hundred MiB")]
            let counted = (counted.total().0 - counted.checkpoint.0) as f64 / f64::from(1 << 20);
            let error = counted / measured - 1.0;
            assert!(
                error.abs() < 0.09,
                "micro {micro} {recompute:?}: {counted:.0} MiB counted, {measured} measured"
            );
        }
    }

    #[test]
    fn each_zero_stage_shards_one_thing_more() {
        let (model, optimizer) = (sample::gpt2(), sample::adamw());
        let layout = Layout::replicas(NonZeroU32::new(4).expect("positive"));
        let at = |zero| {
            let arrangement = Arrangement { layout, zero, shard: 4, ..ON_GPU };
            peak(&Held { arrangement, ..held(&model, &optimizer) })
        };
        let whole = at(ZeroStage::Zero0);
        assert_eq!(at(ZeroStage::Zero1).optimizer.0, whole.optimizer.0 / 4);
        assert_eq!(at(ZeroStage::Zero1).gradients, whole.gradients);
        assert_eq!(at(ZeroStage::Zero2).gradients.0, whole.gradients.0 / 4);
        assert_eq!(at(ZeroStage::Zero2).weights, whole.weights);
        assert_eq!(at(ZeroStage::Zero3).weights.0, whole.weights.0 / 4);
    }

    fn pipeline(stages: u32, chunks: u32) -> Arrangement {
        let pipeline = NonZeroU32::new(stages).expect("positive");
        Arrangement { layout: Layout { pipeline, ..Layout::SINGLE }, chunks, ..ON_GPU }
    }

    #[test]
    fn the_blocks_of_all_stages_are_the_blocks() {
        for (stages, chunks) in (1..=8).flat_map(|p| (1..=3).map(move |v| (p, v))) {
            for blocks in stages * chunks..30 {
                let runs = |stage| chunks_of(stage, &pipeline(stages, chunks), blocks);
                let all = (0..chunks).flat_map(|chunk| (0..stages).map(move |stage| (chunk, stage)));
                let all: Vec<_> =
                    all.flat_map(|(chunk, stage)| runs(stage)[chunk as usize].clone()).collect();
                assert_eq!(all, (0..blocks).collect::<Vec<_>>(), "{stages} stages, {chunks} chunks");
            }
        }
    }

    #[test]
    fn the_stages_of_a_pipeline_together_hold_the_parameters() {
        let model = sample::llama();
        for stages in 1..=4 {
            let of_stage = |s| {
                let blocks: usize = chunks_of(s, &pipeline(stages, 1), model.blocks())
                    .iter()
                    .map(ExactSizeIterator::len)
                    .sum();
                parameters(&model, blocks as u64, s == 0, s + 1 == stages)
            };
            assert_eq!((0..stages).map(of_stage).sum::<u64>(), model.parameters());
        }
    }

    proptest! {
        #[test]
        fn memory_grows_with_the_micro_batch(micro in 1u32..64, zero3: bool, full: bool, kind in 0usize..3) {
            let (model, optimizer) = (sample::models()[kind].clone(), sample::adamw());
            let zero = if zero3 { ZeroStage::Zero3 } else { ZeroStage::Zero0 };
            let recompute = if full { Recompute::Full } else { Recompute::None };
            let arrangement = Arrangement { zero, recompute, ..ON_GPU };
            let at = |micro| peak(&Held { micro, arrangement, ..held(&model, &optimizer) }).total();
            prop_assert!(at(micro) < at(micro + 1));
        }

        #[test]
        fn full_recompute_never_needs_more(micro in 1u32..64) {
            let (model, optimizer) = (sample::llama(), sample::adamw());
            let at = |recompute| {
                let arrangement = Arrangement { recompute, ..ON_GPU };
                peak(&Held { micro, arrangement, ..held(&model, &optimizer) }).total()
            };
            prop_assert!(at(Recompute::Full) < at(Recompute::Selective));
            prop_assert!(at(Recompute::Selective) < at(Recompute::None));
        }
    }
}
