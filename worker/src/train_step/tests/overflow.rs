//! Error feedback on two replicas, of which one overflows under the loss scale.

use super::*;
use crate::stage::ModelShard;
use dtrain_protocol::Layout;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_recipes::{Compression, Synchronisation};
use std::num::NonZeroU32;
use std::time::Duration;

const WIDTH: usize = 6;
const SAMPLES: usize = 4;

/// Loss scale of the first step, as in [`LossScale`].
const SCALE: f32 = 65_536.0;

/// The micro-batch whose loss is finite and whose gradients overflow under [`SCALE`]. Its rows have either
/// sign, so that every hidden unit sees some, and either class, so that some are classified wrong with any
/// weights.
const TOO_LARGE: u64 = 13;

struct Rows;

impl SampleSource for Rows {
    fn len(&self) -> u64 {
        16
    }

    fn read(&self, numbers: &[u64]) -> Result<Batch, DataError> {
        let number = numbers[0];
        let chance = |index| (splitmix64(number, index) % 1000) as f32 / 500.0 - 1.0;
        let value = |index: usize| match (number, index / WIDTH % 2) {
            (TOO_LARGE, 0) => 1e36 * chance((index % WIDTH) as u64),
            (TOO_LARGE, _) => -1e36 * chance((index % WIDTH) as u64),
            _ => chance(index as u64),
        };
        let values = (0..SAMPLES * WIDTH).map(value).collect();
        Ok(Batch::Rows { values, classes: vec![0, 0, 1, 1], samples: SAMPLES, width: WIDTH })
    }
}

/// Returns norm and weights of one rank after each step; a step computes the micro-batch with one of
/// `numbers`.
fn rank(
    (group, rank): (loopback::ThreadRank, u32),
    compress: Compression,
    numbers: Vec<u64>,
) -> Vec<(Option<f64>, Vec<f32>)> {
    let model = Model::Mlp(Mlp {
        inputs: WIDTH as u32,
        hidden: vec![8],
        classes: 2,
        activation: MlpActivation::Relu,
    });
    let layout = Layout::replicas(NonZeroU32::new(2).expect("not zero"));
    let sync = Synchronisation { compress, ..Synchronisation::EXACT };
    let arrangement = Arrangement { layout, sync, ..Arrangement::SINGLE };
    let samples = SAMPLES as u64;
    let begin = samples * u64::from(rank);
    let training =
        Hyperparameters { batch: 2 * samples, share: begin..begin + samples, micro_batch: 4, ..training() };
    let until = RunUntil::default();
    let rank = Rank(rank);
    let mesh = Mesh::of(Box::new(group), &arrangement, rank).expect("all are there");
    let (blocks, partners) = (0..model.blocks(), mesh.partners().clone());
    let chunks = std::slice::from_ref(&blocks);
    let holding = ModelShard { model: &model, chunks, seed: 3, arrangement, rank, partners };
    let stage = Stage::of(&holding, &Device::flex()).expect("the model has these blocks");
    let mut loss_scale = LossScale::of(Precision::F16).expect("f16 has one");
    loss_scale.set_state([SCALE, 0.0]);
    let mut replica = replica(stage, mesh, &arrangement, (&training, &until), Some(loss_scale));
    let steps = numbers.len() as u64;
    let mut stream = MicroBatchLoader::of(Arc::new(Rows), numbers.into_iter().map(|number| vec![number]));
    let length = replica.stage.parameters().last().map_or(0, |last| last.range.end);
    let step = |done| {
        let outcome = run_step(&mut replica, &ACTIONS, &mut stream, (StepId(done), 1), StepTotals::default());
        let mut weights = vec![0.0; length];
        replica.stage.copy_values(0..length, &mut weights);
        (outcome.expect("a smaller scale helps").gradient_norm, weights)
    };
    (0..steps).map(step).collect()
}

/// Returns norms and weights of both ranks after each step, of which `steps` has the micro-batch of either
/// rank.
fn run(compress: Compression, steps: &[[u64; 2]]) -> Vec<Vec<(Option<f64>, Vec<f32>)>> {
    let start = |(index, group): (usize, loopback::ThreadRank)| {
        let numbers: Vec<u64> = steps.iter().map(|step| step[index]).collect();
        std::thread::spawn(move || rank((group, u32::try_from(index).expect("two")), compress, numbers))
    };
    let groups = loopback::threads(2, Duration::from_secs(20)).into_iter().enumerate();
    let threads: Vec<_> = groups.map(start).collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

#[test]
fn training_goes_on_as_if_the_step_had_not_been_in_which_one_rank_overflowed() {
    for compress in [Compression::PowerSgd { rank: 1 }, Compression::TopK { keep: 0.1 }] {
        let wanted = run(compress, &[[0, 1], [4, 5], [6, 7], [8, 9]]);
        assert!(wanted[0].iter().all(|(norm, _)| norm.is_some_and(|norm| norm > 0.0)), "{wanted:?}");
        for too_large in [[2, TOO_LARGE], [TOO_LARGE, 2]] {
            let mut found = run(compress, &[[0, 1], too_large, [4, 5], [6, 7], [8, 9]]);
            for steps in &mut found {
                let (norm, weights) = steps.remove(1);
                assert_eq!((norm, &weights), (None, &steps[0].1), "nothing moves");
            }
            // The scale is halved from then on, which changes no bit.
            assert_eq!(found, wanted, "{compress:?}");
        }
    }
}
