//! Properties of every model: parity with a single graph, with finite differences, with itself.

mod gradients;
mod learning;
mod packed;
mod pipeline;
mod reads;
mod values;

use super::*;
use crate::network::{self, ModelInput};
use dtrain_recipes::{
    Activation, AdaptedLayers, Cnn, Decoder, Experts, InputSignature, Lora, Mlp, MlpActivation, Norm,
    Positions,
};

fn gpt() -> Decoder {
    Decoder {
        layers: 2,
        hidden: 12,
        heads: 3,
        kv_heads: 3,
        ffn: 20,
        vocab: 17,
        context: 9,
        ..Decoder::small_gpt2()
    }
}

fn llama() -> Decoder {
    Decoder {
        hidden: 16,
        heads: 4,
        kv_heads: 2,
        positions: Positions::Rotary,
        norm: Norm::Rms,
        activation: Activation::Swiglu,
        tied: false,
        bias: false,
        ..gpt()
    }
}

/// Creates a decoder whose tokens pass two of four experts, which lack the capacity for all.
fn moe() -> Decoder {
    let experts = Experts { capacity: Some(1.0), balance: 0.5, ..Experts::new(4, 2) };
    Decoder { ffn: 10, experts: Some(experts), ..llama() }
}

/// Creates a decoder with GELU and biases, whose tokens pass one expert.
fn switch() -> Decoder {
    let experts = Experts { balance: 0.1, ..Experts::new(3, 1) };
    Decoder { ffn: 10, experts: Some(experts), ..gpt() }
}

/// Creates a decoder whose heads are together wider than the hidden size, with another rotary base; biases
/// and norms as in Qwen2.
fn wide() -> Decoder {
    let norm_epsilon = Some(1e-3);
    Decoder { head_width: Some(6), rotary_base: Some(500), norm_epsilon, qkv_bias: Some(true), ..llama() }
}

/// Creates a decoder that trains LoRA adapters alone.
fn adapted() -> Decoder {
    Decoder { lora: Some(Lora { rank: 3, alpha: 6.0, layers: AdaptedLayers::All, base: None }), ..llama() }
}

fn mlp() -> Mlp {
    Mlp { inputs: 5, hidden: vec![9, 7], classes: 3, activation: MlpActivation::Gelu }
}

fn cnn() -> Cnn {
    Cnn { channels: 2, height: 7, width: 5, stages: vec![4, 6], blocks: 2, classes: 3 }
}

fn models() -> Vec<Model> {
    let decoders = [gpt(), llama(), moe(), switch(), wide(), adapted()].map(Model::Decoder);
    let rows = [Model::Mlp(mlp()), Model::Cnn(cnn())];
    decoders.into_iter().chain(rows).chain(network::tests::models()).collect()
}

fn stage(model: &Model, blocks: Range<u32>, recompute: Recompute) -> Stage {
    Stage::build(model, blocks, 7, Precision::F32, recompute, &Device::flex()).unwrap()
}

fn at(micro: u32) -> Pass {
    Pass { micro, chunk: 0 }
}

fn whole(model: &Model) -> Stage {
    stage(model, 0..model.blocks(), Recompute::None)
}

/// Samples that own their values.
struct Batch {
    tokens: Vec<u32>,
    targets: Vec<u32>,
    values: Vec<f32>,
    samples: usize,
    width: usize,
}

impl Batch {
    fn new(model: &Model, samples: usize) -> Self {
        let word = |i: usize, n: usize| (dtrain_protocol::shuffle::splitmix64(5, i as u64) % n as u64) as u32;
        match model.reads().unwrap() {
            InputSignature::Tokens { context, vocab } => {
                let n = samples * context as usize;
                let tokens = (0..n).map(|i| word(i, vocab as usize)).collect();
                let targets = (0..n).map(|i| word(i + n, vocab as usize)).collect();
                Self { tokens, targets, values: vec![], samples, width: context as usize }
            }
            InputSignature::Rows { inputs, classes } => {
                Self::rows(samples, inputs as usize, classes as usize)
            }
        }
    }

    fn rows(samples: usize, width: usize, classes: usize) -> Self {
        let word = |i: usize| dtrain_protocol::shuffle::splitmix64(6, i as u64);
        let values = (0..samples * width).map(|i| (word(i) % 2000) as f32 / 1000.0 - 1.0).collect();
        let targets = (0..samples).map(|i| (word(i + 99) % classes as u64) as u32).collect();
        Self { tokens: vec![], targets, values, samples, width }
    }

    fn samples(&self) -> ModelInput<'_> {
        self.slice(0..self.samples)
    }

    fn slice(&self, range: Range<usize>) -> ModelInput<'_> {
        let (samples, width) = (range.len(), self.width);
        if self.tokens.is_empty() {
            let values = &self.values[range.start * width..range.end * width];
            return ModelInput::Rows { values, classes: &self.targets[range], samples, width };
        }
        let tokens = range.start * width..range.end * width;
        let (inputs, targets) = (&self.tokens[tokens.clone()], &self.targets[tokens]);
        ModelInput::Tokens { inputs, targets, samples, length: width, packed: None }
    }
}

/// Returns the mean loss and its gradient for one batch.
fn learn(stage: &mut Stage, samples: &ModelInput<'_>) -> (f64, Vec<f32>) {
    stage.gradients().clear();
    let loss = mean(stage.forward(at(0), None, samples));
    assert!(stage.backward(at(0), None, 1.0, &mut |_, _| {}).is_none());
    (loss, stage.gradients().values().to_vec())
}

fn mean(flow: ForwardOutput) -> f64 {
    match flow {
        ForwardOutput::Loss(figures) => {
            let LossFigures { loss_sum, count, .. } = figures.read();
            loss_sum / count as f64
        }
        ForwardOutput::Activation(_) => panic!("the last stage gives a loss"),
    }
}

fn close(found: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!((f - w).abs() <= tolerance * (1.0 + w.abs()), "value {i}: {f} instead of {w}");
    }
}
