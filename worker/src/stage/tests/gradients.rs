//! Gradients of a whole model, computed in every way.

use super::super::pass::PartOutput;
use super::*;
use crate::network::ForwardMode;

/// Computes all parts in one graph, without any injected gradient: returns the loss with the additions of
/// blocks, and its figures.
fn one_graph(stage: &Stage, leaves: &[Tensor<1>], samples: &ModelInput<'_>) -> (Tensor<1>, LossFigures) {
    let (mut flow, mut penalties) = (None, Vec::new());
    for unit in &stage.units {
        let own: Vec<_> = unit.uses.iter().map(|(_, index)| leaves[*index].clone()).collect();
        let weights = stage.weights(unit, Some(&own), ForwardMode::Train);
        match stage.compute(unit, &weights, flow.take(), samples) {
            PartOutput::Activation(x, penalty) => {
                flow = Some(x.autodiff());
                penalties.extend(penalty);
            }
            PartOutput::Loss(loss, figures) => {
                return (penalties.into_iter().fold(loss, Tensor::add), figures.read());
            }
        }
    }
    panic!("a whole model ends with a loss")
}

fn leaves(stage: &Stage) -> Vec<Tensor<1>> {
    stage.values.iter().map(|value| value.clone().autodiff().require_grad()).collect()
}

/// Separates experts so far that a small step changes no choice, and moves adapters away from zero.
fn prepare(stage: &mut Stage) {
    for index in 0..stage.parameters().len() {
        let name = &stage.parameters()[index].name;
        if name.ends_with("lora_b") {
            let values = (0..stage.parameters()[index].range.len()).map(|place| 0.05 * (place as f32).sin());
            stage.set_values(index, values.collect());
            continue;
        }
        let factor = if name.contains("router") { 60.0 } else { 10.0 };
        if name.contains("router") || name.contains("experts") {
            let values = stage.values(index).iter().map(|value| value * factor).collect();
            stage.set_values(index, values);
        }
    }
}

#[test]
fn every_gradient_agrees_with_finite_differences() {
    for model in models() {
        let mut stage = whole(&model);
        prepare(&mut stage);
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
                let has_experts = matches!(&model, Model::Decoder(d) if d.experts.is_some());
                let step = if matches!(model, Model::Cnn(_)) || has_experts { 3e-4 } else { 1e-2 };
                let mut at = |shift: f32| {
                    let mut moved = values.clone();
                    moved[place] += shift;
                    stage.set_values(index, moved);
                    let (loss, figures) = one_graph(&stage, &leaves(&stage), &batch.samples());
                    let told = figures.loss_sum / figures.count as f64;
                    // The reported loss is as exact as possible, but lacks the additions of blocks.
                    if has_experts { f64::from(loss.into_scalar::<f32>()) } else { told }
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
        let leaves = leaves(&stage);
        let (one, figures) = one_graph(&stage, &leaves, &batch.samples());
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
            let plain =
                Arithmetic { by: Implementation::Reference, precision: Precision::F32, forgets_scores };
            let blocks = 0..model.blocks();
            let (chunks, partners) = ([blocks], ModelParallelGroups::none());
            let arrangement = Arrangement { recompute, ..Arrangement::SINGLE };
            let (model, rank) = (&model, Rank(0));
            let holding = ModelShard { model, chunks: &chunks, seed: 7, arrangement, rank, partners };
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

/// On a device, sums are counted once, and take host memory only once they are copied there.
#[test]
fn gradients_of_a_device_have_no_room_on_the_host_until_they_are_brought_there() {
    let Some(device) = crate::ops::tests::gpu() else { return };
    let model = Model::Mlp(mlp());
    let batch = Batch::new(&model, 3);
    let (_, wanted) = learn(&mut whole(&model), &batch.samples());
    let mut stage =
        Stage::build(&model, 0..model.blocks(), 7, Precision::F32, Recompute::None, &device).unwrap();
    let parameters = stage.parameters().len();
    stage.gradients().clear();
    assert_eq!((stage.gradients().bytes(), stage.gradients().room()), (0, 0));
    stage.forward(at(0), None, &batch.samples());
    stage.backward(at(0), None, 1.0, &mut |_, _| {});
    let bytes = 4 * wanted.len() as u64;
    let norm: f64 = wanted.iter().map(|g| f64::from(g * g)).sum();
    let gradients = stage.gradients();
    assert!((gradients.norm_squared() - norm).abs() < 1e-3 * norm, "{}", gradients.norm_squared());
    assert_eq!((gradients.bytes(), gradients.room()), (bytes, 0));
    gradients.to_host(0..parameters);
    assert_eq!((gradients.bytes(), gradients.room()), (bytes, wanted.len()));
    close(gradients.values(), &wanted, 1e-4);
    gradients.change(0, |values| values.fill(3.0));
    let first = stage.parameters()[0].range.clone();
    let Some(changed) = stage.gradients().tensor(0) else { panic!("its sum is a tensor") };
    assert_eq!(changed.into_data().try_to_vec::<f32>().unwrap(), vec![3.0; first.len()]);
}

#[test]
fn only_training_adds_the_balance_of_experts_to_the_loss() {
    let model = Model::Decoder(moe());
    let (stage, batch) = (whole(&model), Batch::new(&model, 2));
    let leaves = leaves(&stage);
    let penalties = |mode| {
        let (mut flow, mut penalties) = (None, 0);
        for unit in &stage.units {
            let own: Vec<_> = unit.uses.iter().map(|(_, index)| leaves[*index].clone()).collect();
            let weights = stage.weights(unit, Some(&own), mode);
            if let PartOutput::Activation(x, penalty) =
                stage.compute(unit, &weights, flow.take(), &batch.samples())
            {
                flow = Some(x);
                penalties += usize::from(penalty.is_some());
            }
        }
        penalties
    };
    assert_eq!(penalties(ForwardMode::Train), model.blocks() as usize);
    assert_eq!(penalties(ForwardMode::Evaluate), 0);
}

#[test]
fn a_z_loss_moves_the_gradient_and_no_reported_loss() {
    for model in [gpt(), llama(), moe()].map(Model::Decoder) {
        let batch = Batch::new(&model, 2);
        let of = |weight| {
            let mut stage = whole(&model).with_z_loss(weight);
            let (loss, gradient) = learn(&mut stage, &batch.samples());
            (loss, stage.evaluate(&batch.samples()), gradient)
        };
        let (loss, evaluated, without) = of(0.0);
        let (one_loss, one_evaluated, one) = of(0.1);
        let (_, _, two) = of(0.2);
        assert_eq!((one_loss, one_evaluated), (loss, evaluated));
        // The gradient is linear in the weight.
        let wanted: Vec<f32> = one.iter().zip(&without).map(|(one, without)| 2.0 * one - without).collect();
        close(&two, &wanted, 1e-5);
        let farthest = one.iter().zip(&without).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(farthest > 1e-3, "the z-loss has no gradient");
    }
}

/// The z-loss is in the loss of a training pass, and in that of no other.
#[test]
fn only_training_adds_the_z_loss_to_the_loss() {
    let model = Model::Decoder(llama());
    let (stage, batch) = (whole(&model).with_z_loss(0.1), Batch::new(&model, 2));
    let leaves = leaves(&stage);
    let added = |mode| {
        let mut flow = None;
        for unit in &stage.units {
            let own: Vec<_> = unit.uses.iter().map(|(_, index)| leaves[*index].clone()).collect();
            match stage.compute(unit, &stage.weights(unit, Some(&own), mode), flow.take(), &batch.samples()) {
                PartOutput::Activation(x, _) => flow = Some(x),
                PartOutput::Loss(loss, figures) => {
                    let figures = figures.read();
                    return f64::from(loss.into_scalar::<f32>()) - figures.loss_sum / figures.count as f64;
                }
            }
        }
        panic!("a whole model ends with a loss")
    };
    // The scores are near zero at first, so that Z is about the number of classes.
    let wanted = 0.1 * f64::from(llama().vocab).ln().powi(2);
    assert!((added(ForwardMode::Train) / wanted - 1.0).abs() < 0.05);
    assert!(added(ForwardMode::Evaluate).abs() < 1e-6);
}
