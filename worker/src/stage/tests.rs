//! What must be true of every model: parity with a single graph, with finite differences, with itself.

use super::*;
use crate::optimizer::Optimizer;
use dtrain_recipes::{Activation, Cnn, Decoder, Mlp, Norm, Optimizer as Rule, OptimizerKind, Positions};

fn gpt() -> Decoder {
    Decoder {
        layers: 2,
        hidden: 12,
        heads: 3,
        kv_heads: 3,
        ffn: 20,
        vocab: 17,
        context: 9,
        positions: Positions::Learned,
        norm: Norm::Layer,
        activation: Activation::Gelu,
        tied: true,
        bias: true,
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

fn mlp() -> Mlp {
    Mlp { inputs: 5, hidden: vec![9, 7], classes: 3, activation: Activation::Gelu }
}

fn cnn() -> Cnn {
    Cnn { channels: 2, height: 7, width: 5, stages: vec![4, 6], blocks: 2, classes: 3 }
}

fn models() -> Vec<Model> {
    vec![Model::Decoder(gpt()), Model::Decoder(llama()), Model::Mlp(mlp()), Model::Cnn(cnn())]
}

fn stage(model: &Model, blocks: Range<u32>, recompute: Recompute) -> Stage {
    Stage::build(model, blocks, 7, Precision::F32, recompute, &Device::flex()).unwrap()
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
        let word = |i: usize, n: usize| (dtrain_protocol::order::mix(5, i as u64) % n as u64) as u32;
        match model {
            Model::Decoder(d) => {
                let n = samples * d.context as usize;
                let tokens = (0..n).map(|i| word(i, d.vocab as usize)).collect();
                let targets = (0..n).map(|i| word(i + n, d.vocab as usize)).collect();
                Self { tokens, targets, values: vec![], samples, width: d.context as usize }
            }
            Model::Mlp(m) => Self::rows(samples, m.inputs as usize, m.classes as usize),
            Model::Cnn(c) => {
                Self::rows(samples, (c.channels * c.height * c.width) as usize, c.classes as usize)
            }
            Model::Command(_) => unreachable!(),
        }
    }

    fn rows(samples: usize, width: usize, classes: usize) -> Self {
        let word = |i: usize| dtrain_protocol::order::mix(6, i as u64);
        let values = (0..samples * width).map(|i| (word(i) % 2000) as f32 / 1000.0 - 1.0).collect();
        let targets = (0..samples).map(|i| (word(i + 99) % classes as u64) as u32).collect();
        Self { tokens: vec![], targets, values, samples, width }
    }

    fn samples(&self) -> Samples<'_> {
        self.slice(0..self.samples)
    }

    fn slice(&self, range: Range<usize>) -> Samples<'_> {
        let (samples, width) = (range.len(), self.width);
        if self.tokens.is_empty() {
            let values = &self.values[range.start * width..range.end * width];
            return Samples::Rows { values, classes: &self.targets[range], samples, width };
        }
        let tokens = range.start * width..range.end * width;
        let (inputs, targets) = (&self.tokens[tokens.clone()], &self.targets[tokens]);
        Samples::Tokens { inputs, targets, samples, length: width }
    }
}

/// Mean loss and its gradient of one batch.
fn learn(stage: &mut Stage, samples: &Samples<'_>) -> (f64, Vec<f32>) {
    stage.gradients().clear();
    let loss = mean(stage.forward(0, None, samples));
    assert!(stage.backward(0, None, 1.0, &mut |_, _| {}).is_none());
    (loss, stage.gradients().values().to_vec())
}

fn mean(flow: Flow) -> f64 {
    match flow {
        Flow::Loss { loss_sum, count, .. } => loss_sum / count as f64,
        Flow::Activation(_) => panic!("the last stage gives a loss"),
    }
}

fn close(found: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!((f - w).abs() <= tolerance * (1.0 + w.abs()), "value {i}: {f} instead of {w}");
    }
}

#[test]
fn parameters_are_counted_as_the_recipe_counts_them() {
    let mut models = models();
    models.push(Model::Decoder(Decoder { kv_heads: 1, tied: true, ..llama() }));
    models.push(Model::Decoder(Decoder { tied: false, bias: false, ..gpt() }));
    for model in models {
        let stage = whole(&model);
        let counted: usize = stage.parameters().iter().map(|p| p.range.len()).sum();
        assert_eq!(counted as u64, model.parameters(), "{model:?}");
        assert_eq!(stage.parameters().last().unwrap().range.end, counted);
    }
}

#[test]
fn every_gradient_agrees_with_finite_differences() {
    for model in models() {
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 2);
        let (_, gradient) = learn(&mut stage, &batch.samples());
        let parameters = stage.parameters().to_vec();
        for (index, parameter) in parameters.iter().enumerate() {
            let values = stage.values(index);
            // A few values of each parameter, along the gradient where the loss moves most.
            let own = &gradient[parameter.range.clone()];
            let steepest = (0..own.len()).max_by(|a, b| own[*a].abs().total_cmp(&own[*b].abs())).unwrap();
            for place in [steepest, own.len() / 2] {
                // Rectifiers have kinks, which a long step would cross.
                let step = if matches!(model, Model::Cnn(_)) { 3e-4 } else { 1e-2 };
                let mut at = |shift: f32| {
                    let mut moved = values.clone();
                    moved[place] += shift;
                    stage.set_values(index, moved);
                    let (sum, _, count) = stage.evaluate(&batch.samples());
                    sum / count as f64
                };
                let difference = (at(step) - at(-step)) / f64::from(2.0 * step);
                stage.set_values(index, values.clone());
                let error = (difference - f64::from(own[place])).abs();
                let name = &parameter.name;
                assert!(
                    error < 2e-3 + 0.03 * difference.abs(),
                    "{name}[{place}]: {} for {difference}",
                    own[place]
                );
            }
        }
    }
}
