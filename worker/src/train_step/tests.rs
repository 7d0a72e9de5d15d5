//! A step with a loss scale updates the weights like one without, or not at all.

use super::*;
use crate::comm::loopback;
use crate::data::{Batch, DataError, SampleSource};
use burn::tensor::Device;
use dtrain_protocol::{Arrangement, Rank};
use dtrain_recipes::{Mlp, MlpActivation, Model, Optimizer as Rule, OptimizerKind, Precision, Recompute};
use std::sync::Arc;

mod overflow;

struct Row;

impl SampleSource for Row {
    fn len(&self) -> u64 {
        1
    }

    fn read(&self, _: &[u64]) -> Result<Batch, DataError> {
        Ok(Batch::Rows { values: vec![0.5, -2.0], classes: vec![1], samples: 1, width: 2 })
    }
}

fn training() -> Hyperparameters {
    Hyperparameters {
        optimizer: Rule { kind: OptimizerKind::Sgd, beta1: 0.0, beta2: 0.0, ..Rule::ADAMW },
        learning_rate: 0.25,
        clip: Some(0.125),
        seed: 0,
        ..Hyperparameters::plain()
    }
}

const PASS: Pass = Pass { micro: 0, chunk: 0 };

/// A step of one micro-batch.
const ACTIONS: [Action; 4] =
    [Action::Forward(PASS), Action::Backward(PASS), Action::ReduceGradients, Action::UpdateWeights];

/// Creates a replica without a checkpoint or any other optional part.
pub(crate) fn replica<'a>(
    stage: Stage,
    mesh: Mesh,
    arrangement: &Arrangement,
    (training, until): (&'a Hyperparameters, &'a RunUntil),
    loss_scale: Option<LossScale>,
) -> Replica<'a> {
    Replica {
        clock: DeviceClock::of(stage.device()),
        optimizer: StageOptimizer::new(&training.optimizer, stage.parameters()),
        reduction: GradientReduction::of(&stage, arrangement),
        messages: PipelineMessages::new(mesh.pipeline().clone(), stage.device()),
        training,
        until,
        stage,
        outer: None,
        loss_scale,
        noise: None,
        mesh,
        slowdown: Slowdown::default(),
        copying: None,
    }
}

/// Returns norm and weights after each of `steps` steps from a loss scale of `scale`.
fn run(scale: Option<f32>, steps: u64) -> Result<Vec<(Option<f64>, Vec<f32>)>, Failure> {
    let model = Model::Mlp(Mlp { inputs: 2, hidden: vec![3], classes: 2, activation: MlpActivation::Relu });
    let (training, until, arrangement) = (training(), RunUntil::default(), Arrangement::SINGLE);
    let blocks = 0..model.blocks();
    let device = Device::flex();
    let stage = Stage::build(&model, blocks, 7, Precision::F32, Recompute::None, &device).expect("it fits");
    let mesh = Mesh::of(Box::new(loopback::SingleRank), &arrangement, Rank(0)).expect("one rank");
    let loss_scale = scale.map(|scale| {
        let mut loss_scale = LossScale::of(Precision::F16).expect("f16 has one");
        loss_scale.set_state([scale, 0.0]);
        loss_scale
    });
    let mut replica = replica(stage, mesh, &arrangement, (&training, &until), loss_scale);
    let mut stream = MicroBatchLoader::of(Arc::new(Row), std::iter::repeat(vec![0]));
    (0..steps)
        .map(|done| {
            let outcome =
                run_step(&mut replica, &ACTIONS, &mut stream, (StepId(done), 1), StepTotals::default())?;
            let mut weights = vec![0.0; 17];
            replica.stage.copy_values(0..17, &mut weights);
            Ok((outcome.gradient_norm, weights))
        })
        .collect()
}

/// On a device, every border of phases waits for it in the first two steps, and none in those after them.
#[test]
fn a_device_is_waited_for_at_the_borders_of_phases_in_some_steps() {
    let model = Model::Mlp(Mlp { inputs: 2, hidden: vec![3], classes: 2, activation: MlpActivation::Relu });
    let (training, until, arrangement) = (training(), RunUntil::default(), Arrangement::SINGLE);
    let stage =
        Stage::build(&model, 0..1, 7, Precision::F32, Recompute::None, &Device::flex()).expect("it fits");
    let mesh = Mesh::of(Box::new(loopback::SingleRank), &arrangement, Rank(0)).expect("one rank");
    let mut replica = replica(stage, mesh, &arrangement, (&training, &until), None);
    let waits = std::rc::Rc::new(std::cell::Cell::new(0));
    let counter = std::rc::Rc::clone(&waits);
    // A device that takes ten milliseconds for all work between two waits.
    replica.clock = DeviceClock::with(Some(Box::new(move || {
        counter.set(counter.get() + 1);
        std::thread::sleep(std::time::Duration::from_millis(10));
    })));
    let mut stream = MicroBatchLoader::of(Arc::new(Row), std::iter::repeat(vec![0]));
    let (mut waited, mut shares) = (Vec::new(), Vec::new());
    for done in 0..4 {
        let outcome = run_step(&mut replica, &ACTIONS, &mut stream, (StepId(done), 1), StepTotals::default());
        let times = outcome.expect("all is finite").times;
        assert!((times.parts() - times.step).abs() < 1e-9, "{times:?}");
        if done < 2 {
            assert!(times.forward >= 0.01 && times.backward >= 0.01 && times.optimizer >= 0.01, "{times:?}");
        }
        waited.push(waits.get());
        shares.push(times.forward / times.step);
    }
    assert!(shares[2..].iter().all(|share| (share - shares[1]).abs() < 1e-9), "{shares:?}");
    // Clearing gradients, samples, forward, backward, gradients, their sum, the update.
    let each = waited[0];
    assert!(each >= 6, "{waited:?}");
    assert_eq!(waited, [each, 2 * each, 2 * each, 2 * each]);
}

#[test]
fn a_loss_scale_changes_no_bit() {
    let wanted = run(None, 3).expect("all is finite");
    assert!(wanted[0].0 > Some(0.125), "it is clipped: {:?}", wanted[0].0);
    assert_eq!(run(Some(1024.0), 3).expect("all is finite"), wanted);
}

#[test]
fn a_loss_scale_that_is_too_large_is_halved_and_nothing_moves() {
    let wanted = run(None, 1).expect("all is finite").remove(0);
    // With it the squares of the gradients overflow f32.
    let found = run(Some(2f32.powi(67)), 12).expect("a smaller scale helps");
    let good = found.iter().position(|(norm, _)| norm.is_some()).expect("some scale is small enough");
    assert!(good > 0, "the first is too large: {found:?}");
    let first = run(Some(1.0), 1).expect("all is finite").remove(0).1;
    assert_ne!(found[0].1, first);
    assert!(found[..good].iter().all(|(_, weights)| *weights == found[0].1), "nothing moves: {found:?}");
    let (norm, weights) = &found[good];
    assert!((norm.expect("it is good") / wanted.0.expect("it is finite") - 1.0).abs() < 1e-5);
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
    assert!(weights.iter().zip(&wanted.1).all(near), "{weights:?}, {:?}", wanted.1);
}
