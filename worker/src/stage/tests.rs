//! What must be true of every model: parity with a single graph, with finite differences, with itself.

use super::*;
use crate::model::Output;
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
    let loss = mean(stage.forward(at(0), None, samples));
    assert!(stage.backward(at(0), None, 1.0, &mut |_, _| {}).is_none());
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

#[test]
fn parts_together_are_one_graph() {
    for model in models() {
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 3);
        let (loss, gradient) = learn(&mut stage, &batch.samples());
        // One graph over all parts, without any injected gradient.
        let leaves: Vec<_> =
            stage.values.iter().map(|value| value.clone().autodiff().require_grad()).collect();
        let mut flow = None;
        let mut found = None;
        for unit in &stage.units {
            let own: Vec<_> = unit.uses.iter().map(|(_, index)| leaves[*index].clone()).collect();
            match stage.compute(unit, &stage.weights(unit, Some(&own)), flow.take(), &batch.samples()) {
                Output::Activation(x) => flow = Some(x.autodiff()),
                Output::Loss(loss, figures) => found = Some((loss, figures)),
            }
        }
        let (one, figures) = found.unwrap();
        assert_eq!(figures.loss_sum / figures.count as f64, loss);
        let mut gradients = one.backward();
        for (leaf, parameter) in leaves.iter().zip(stage.parameters()) {
            let wanted: Vec<f32> =
                leaf.grad_remove(&mut gradients).unwrap().into_data().try_to_vec().unwrap();
            close(&gradient[parameter.range.clone()], &wanted, 1e-6);
        }
    }
}

#[test]
fn fused_and_plain_operations_train_alike() {
    for model in models() {
        let batch = Batch::new(&model, 3);
        let (loss, gradient) = learn(&mut whole(&model), &batch.samples());
        for recompute in [Recompute::None, Recompute::Selective] {
            let forgets_scores = recompute == Recompute::Selective;
            let plain = Arithmetic { fused: false, precision: Precision::F32, forgets_scores };
            let blocks = 0..model.blocks();
            let (chunks, partners) = ([blocks], Partners::none());
            let arrangement = Arrangement { recompute, ..Arrangement::SINGLE };
            let (model, rank) = (&model, Rank(0));
            let holding = Holding { model, chunks: &chunks, seed: 7, arrangement, rank, partners };
            let stage = Stage::with_arithmetic(&holding, plain, &Device::flex());
            let (wanted_loss, wanted) = learn(&mut stage.unwrap(), &batch.samples());
            assert!((loss - wanted_loss).abs() < 1e-5, "{loss} for {wanted_loss}");
            close(&gradient, &wanted, 1e-4);
        }
    }
}

#[test]
fn half_precision_stays_near_full() {
    let model = Model::Decoder(llama());
    let batch = Batch::new(&model, 3);
    let (loss, gradient) = learn(&mut whole(&model), &batch.samples());
    let blocks = 0..model.blocks();
    let half = Stage::build(&model, blocks, 7, Precision::Bf16, Recompute::None, &Device::flex());
    let (half_loss, half_gradient) = learn(&mut half.unwrap(), &batch.samples());
    assert_ne!(loss, half_loss, "the products are not in half precision");
    assert!((loss - half_loss).abs() < 0.01, "{half_loss} for {loss}");
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let (one, two) = (dot(&gradient, &gradient), dot(&half_gradient, &half_gradient));
    let cosine = dot(&gradient, &half_gradient) / (one * two).sqrt();
    assert!(cosine > 0.999, "{cosine}");
}

#[test]
fn recomputing_changes_no_bit() {
    for model in models() {
        let batch = Batch::new(&model, 3);
        let kept = learn(&mut whole(&model), &batch.samples());
        for recompute in [Recompute::Selective, Recompute::Full] {
            assert_eq!(learn(&mut stage(&model, 0..model.blocks(), recompute), &batch.samples()), kept);
        }
    }
}

#[test]
fn micro_batches_add_up_to_the_batch() {
    for model in models() {
        let batch = Batch::new(&model, 4);
        let mut stage = whole(&model);
        let (loss, wanted) = learn(&mut stage, &batch.samples());
        stage.gradients().clear();
        // Both forwards first, as a pipeline would.
        let first = mean(stage.forward(at(0), None, &batch.slice(0..2)));
        let second = mean(stage.forward(at(1), None, &batch.slice(2..4)));
        stage.backward(at(0), None, 0.5, &mut |_, _| {});
        stage.backward(at(1), None, 0.5, &mut |_, _| {});
        assert!((loss - (first + second) / 2.0).abs() < 1e-6);
        close(stage.gradients().values(), &wanted, 1e-5);
    }
}

#[test]
fn a_pipeline_of_two_stages_is_one_stage() {
    for model in models() {
        let batch = Batch::new(&model, 2);
        let mut one = whole(&model);
        let (loss, wanted) = learn(&mut one, &batch.samples());
        let mut first = stage(&model, 0..1, Recompute::None);
        let mut last = stage(&model, 1..model.blocks(), Recompute::Full);
        let Flow::Activation(x) = first.forward(at(3), None, &batch.samples()) else {
            panic!("no activation")
        };
        assert_eq!(mean(last.forward(at(3), Some(x), &batch.samples())), loss);
        let upstream = last.backward(at(3), None, 1.0, &mut |_, _| {});
        assert!(upstream.is_some());
        assert!(first.backward(at(3), upstream, 1.0, &mut |_, _| {}).is_none());
        let tied = [first.tied_across_stages(), last.tied_across_stages()];
        assert_eq!(tied[0].is_some(), matches!(&model, Model::Decoder(d) if d.tied));
        for (index, parameter) in one.parameters().iter().enumerate() {
            let mut found = vec![0.0; parameter.range.len()];
            let mut holders = 0;
            for stage in [&mut first, &mut last] {
                let Some(own) = stage.parameters().iter().position(|p| p.name == parameter.name) else {
                    continue;
                };
                assert_eq!(stage.values(own), one.values(index), "every layout starts alike");
                let range = stage.parameters()[own].range.clone();
                let gradient = &stage.gradients().values()[range];
                found.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
                holders += 1;
            }
            assert_eq!(holders, if Some(index) == tied[0] { 2 } else { 1 }, "{}", parameter.name);
            close(&found, &wanted[parameter.range.clone()], 1e-6);
        }
    }
}

/// A stage of a schedule that leaves gradients of weights for later.
fn splitting(model: &Model, blocks: Range<u32>, recompute: Recompute, fused: bool) -> Stage {
    let schedule = PipelineSchedule::ZeroBubble;
    let arrangement = Arrangement { recompute, schedule, ..Arrangement::SINGLE };
    let forgets_scores = recompute == Recompute::Selective;
    let arithmetic = Arithmetic { fused, precision: Precision::F32, forgets_scores };
    let (rank, partners) = (Rank(0), Partners::none());
    let holding = Holding { model, chunks: &[blocks], seed: 7, arrangement, rank, partners };
    Stage::with_arithmetic(&holding, arithmetic, &Device::flex()).unwrap()
}

#[test]
fn a_backward_in_two_parts_is_one_to_the_last_bit() {
    for model in models() {
        let batch = Batch::new(&model, 4);
        for (fused, recompute) in [
            (true, Recompute::None),
            (true, Recompute::Full),
            (false, Recompute::None),
            (false, Recompute::Selective),
        ] {
            let of = |micro: u32| batch.slice(2 * micro as usize..2 * micro as usize + 2);
            // The last blocks, as a late stage of a pipeline holds them; and two micro-batches on their way.
            let mut one = splitting(&model, 1..model.blocks(), recompute, fused);
            one.splits = false;
            let mut two = splitting(&model, 1..model.blocks(), recompute, fused);
            let [rows, width] = model.activation_at(1).map(|side| side as usize);
            let input = |micro: u32| {
                let values = (0..2 * rows * width).map(|i| ((i + micro as usize) % 7) as f32 / 7.0 - 0.4);
                let data = burn::tensor::TensorData::new(values.collect::<Vec<_>>(), [2, rows, width]);
                Tensor::<3>::from_data(data, &Device::flex())
            };
            let values = |tensor: Option<Tensor<3>>| tensor.unwrap().into_data().try_to_vec::<f32>().unwrap();
            for micro in 0..2 {
                one.forward(at(micro), Some(input(micro)), &of(micro));
                two.forward(at(micro), Some(input(micro)), &of(micro));
            }
            let whole = [0, 1].map(|micro| values(one.backward(at(micro), None, 0.5, &mut |_, _| {})));
            let inputs = [0, 1].map(|micro| values(two.backward_input(at(micro), None, 0.5)));
            assert_eq!(inputs, whole, "gradients of the input");
            let early = two.gradients().values().to_vec();
            assert_ne!(early, one.gradients().values(), "gradients of weights wait");
            for micro in 0..2 {
                let mut seen = Vec::new();
                two.backward_weights(at(micro), &mut |unit, _| seen.push(unit));
                assert_eq!(seen, (0..two.units()).rev().collect::<Vec<_>>());
            }
            assert_eq!(two.gradients().values(), one.gradients().values(), "fused {fused}, {recompute:?}");
        }
    }
}

#[test]
fn parts_are_done_last_to_first_with_their_gradients_final() {
    for model in models() {
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 2);
        let (_, wanted) = learn(&mut stage, &batch.samples());
        let parameters = stage.parameters().to_vec();
        stage.gradients().clear();
        stage.forward(at(0), None, &batch.samples());
        let mut seen = Vec::new();
        stage.backward(at(0), None, 1.0, &mut |unit, gradients| {
            for parameter in parameters.iter().filter(|p| p.unit == unit) {
                assert_eq!(gradients.values()[parameter.range.clone()], wanted[parameter.range.clone()]);
            }
            seen.push(unit);
        });
        assert_eq!(seen, (0..stage.units()).rev().collect::<Vec<_>>());
    }
}

#[test]
fn training_is_the_same_to_the_last_bit_on_any_number_of_threads() {
    for model in models() {
        let train = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut stage = whole(&model);
                let batch = Batch::new(&model, 4);
                let mut optimizer = Optimizer::new(&ADAMW, stage.parameters());
                let losses: Vec<f64> = (1..=5)
                    .map(|t| {
                        let (loss, _) = learn(&mut stage, &batch.samples());
                        let scale = 1.0 / stage.gradients().norm_squared().sqrt().max(1.0);
                        optimizer.step(&mut stage, 1e-2, scale as f32, t);
                        loss
                    })
                    .collect();
                let values: Vec<_> = (0..stage.parameters().len()).map(|i| stage.values(i)).collect();
                (losses, values)
            })
        };
        assert_eq!(train(1), train(2));
    }
}

const ADAMW: Rule =
    Rule { kind: OptimizerKind::Adamw, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.01 };

#[test]
fn every_model_learns_a_batch_by_heart() {
    for model in models() {
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 4);
        let mut optimizer = Optimizer::new(&ADAMW, stage.parameters());
        let (before, ..) = stage.evaluate(&batch.samples());
        for t in 1..=150 {
            learn(&mut stage, &batch.samples());
            optimizer.step(&mut stage, 1e-2, 1.0, t);
        }
        let (after, hits, count) = stage.evaluate(&batch.samples());
        assert!(after < 0.1 * before, "{after} after {before} for {model:?}");
        assert!(hits as f64 > 0.9 * count as f64, "{hits} of {count}");
    }
}

#[test]
fn the_last_logits_are_those_of_the_whole_sequence() {
    for decoder in [gpt(), llama()] {
        let vocab = decoder.vocab as usize;
        let model = Model::Decoder(decoder);
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 1);
        let logits = stage.logits_last(&batch.tokens[..6]);
        assert_eq!(logits.len(), vocab);
        // The loss of one more sample whose only prediction is the last one says the same.
        let mut loss = |length: usize| {
            let targets = vec![3; length];
            let inputs = &batch.tokens[..length];
            stage.evaluate(&Samples::Tokens { inputs, targets: &targets, samples: 1, length }).0
        };
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let wanted = sum.ln() - f64::from(logits[3]);
        assert!((loss(6) - loss(5) - wanted).abs() < 1e-4, "{} for {wanted}", loss(6) - loss(5));
    }
}

#[test]
fn flat_ranges_of_values_are_copied_across_parameters() {
    let stage = whole(&Model::Mlp(mlp()));
    let len = stage.parameters().last().unwrap().range.end;
    let mut all = vec![0.0; len];
    stage.copy_values(0..len, &mut all);
    let each = (0..stage.parameters().len()).flat_map(|index| stage.values(index));
    assert_eq!(all, each.collect::<Vec<_>>());
    let mut part = vec![0.0; 9];
    stage.copy_values(41..50, &mut part);
    assert_eq!(part, all[41..50]);
}

#[test]
fn a_stage_of_no_blocks_of_the_model_is_refused() {
    let build = |model: &Model, blocks| {
        let device = Device::flex();
        Stage::build(model, blocks, 1, Precision::F32, Recompute::None, &device).err().map(|e| e.to_string())
    };
    let found = build(&Model::Decoder(gpt()), 1..9).unwrap();
    assert_eq!(found, "blocks 1..9 were assigned, but the model has 2");
    let command = Model::Command(dtrain_recipes::Command { argv: vec!["true".into()] });
    assert!(build(&command, 0..0).unwrap().contains("foreign command"));
}
