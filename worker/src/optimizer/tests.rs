//! Host and device optimizers against the formulas in f64.

use super::*;
use crate::mesh::ModelParallelGroups;
use crate::ops::kernels::UpdateCoefficients;
use crate::stage::ModelShard;
use burn::tensor::Device;
use dtrain_protocol::{Arrangement, Layout, Rank, Region};
use dtrain_recipes::{Mlp, MlpActivation, Model, Precision, Recompute, ZeroStage};

const KINDS: [OptimizerKind; 4] =
    [OptimizerKind::Adamw, OptimizerKind::Sgd, OptimizerKind::Lion, OptimizerKind::Lamb];

fn rule(kind: OptimizerKind) -> Rule {
    Rule { kind, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weight_decay: 0.1 }
}

fn gradient(t: u64, i: usize) -> f32 {
    ((dtrain_protocol::shuffle::splitmix64(t, i as u64) % 2001) as f32 - 1000.0) / 500.0
}

fn first_value(i: usize) -> f32 {
    gradient(77, i) * 0.5
}

const LEN: usize = 37;
const SCALE: f32 = 0.5;

fn rate(t: u64) -> f64 {
    0.01 * t as f64 / 20.0
}

/// Computes twenty steps by the formulas.
fn reference(rule: &Rule, has_weight_decay: bool) -> Vec<f64> {
    let mut p: Vec<f64> = (0..LEN).map(|i| f64::from(first_value(i))).collect();
    let (mut m, mut v) = (vec![0.0; LEN], vec![0.0; LEN]);
    let decay = if has_weight_decay { rule.weight_decay } else { 0.0 };
    for t in 1..=20 {
        let (b1, b2, lr) = (rule.beta1, rule.beta2, rate(t));
        let mut direction = vec![0.0; LEN];
        for i in 0..LEN {
            let g = f64::from(gradient(t, i)) * f64::from(SCALE);
            match rule.kind {
                OptimizerKind::Adamw | OptimizerKind::Lamb => {
                    m[i] = b1 * m[i] + (1.0 - b1) * g;
                    v[i] = b2 * v[i] + (1.0 - b2) * g * g;
                    let (m, v) = (m[i] / (1.0 - b1.powf(t as f64)), v[i] / (1.0 - b2.powf(t as f64)));
                    direction[i] = m / (v.sqrt() + rule.epsilon) + decay * p[i];
                }
                OptimizerKind::Sgd => {
                    m[i] = b1 * m[i] + g;
                    direction[i] = m[i] + decay * p[i];
                }
                OptimizerKind::Lion => {
                    direction[i] = (b1 * m[i] + (1.0 - b1) * g).signum() + decay * p[i];
                    m[i] = b2 * m[i] + (1.0 - b2) * g;
                }
            }
        }
        let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let ratio = if rule.kind == OptimizerKind::Lamb { length(&p) / length(&direction) } else { 1.0 };
        for i in 0..LEN {
            p[i] -= lr * ratio * direction[i];
        }
    }
    p
}

fn numbers(rule: &Rule, has_weight_decay: bool, t: u64) -> UpdateCoefficients {
    let region = Region::whole(&[LEN as u64]);
    let parameter = ModelParameter {
        name: "p".into(),
        shape: vec![LEN],
        region,
        has_weight_decay,
        unit: 0,
        range: 0..LEN,
    };
    StageOptimizer::new(rule, std::slice::from_ref(&parameter))
        .numbers(&parameter, WeightUpdate { rate: rate(t), scale: SCALE, t })
}

fn check(found: &[f32], wanted: &[f64], kind: OptimizerKind) {
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!((f64::from(*f) - w).abs() < 1e-5 * (1.0 + w.abs()), "{kind:?} value {i}: {f} for {w}");
    }
}

#[test]
fn both_ways_follow_the_formulas_over_twenty_steps() {
    let devices: Vec<_> = std::iter::once(Device::flex()).chain(crate::ops::tests::gpu()).collect();
    for (kind, has_weight_decay) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let rule = rule(kind);
        let wanted = reference(&rule, has_weight_decay);
        let mut p: Vec<f32> = (0..LEN).map(first_value).collect();
        let (mut m, mut v) = (vec![0.0; LEN], if has_second(kind) { vec![0.0; LEN] } else { vec![] });
        let gradient = |t| (0..LEN).map(|i| gradient(t, i)).collect::<Vec<f32>>();
        for t in 1..=20 {
            host::step(kind, numbers(&rule, has_weight_decay, t), &mut p, &gradient(t), &mut m, &mut v);
        }
        check(&p, &wanted, kind);
        for at in &devices {
            let tensor = |values: &[f32]| Tensor::<1>::from_data(values, at);
            let first: Vec<_> = (0..LEN).map(first_value).collect();
            let mut far = (tensor(&first), tensor(&[0.0; LEN]), tensor(&[0.0; LEN]));
            let begun = far.clone();
            for t in 1..=20 {
                far = device::step(
                    kind,
                    numbers(&rule, has_weight_decay, t),
                    far.0,
                    tensor(&gradient(t)),
                    far.1,
                    far.2,
                );
            }
            check(&far.0.into_data().try_to_vec::<f32>().unwrap(), &wanted, kind);
            let kept: Vec<f32> = begun.0.into_data().try_to_vec().unwrap();
            assert_eq!(kept, first, "what others hold is not changed in place");
        }
    }
}

#[test]
fn lamb_without_a_length_steps_as_adam() {
    let rule = rule(OptimizerKind::Lamb);
    let (mut p, g) = (vec![0.0; LEN], vec![1.0; LEN]);
    let (mut m, mut v) = (vec![0.0; LEN], vec![0.0; LEN]);
    host::step(rule.kind, numbers(&rule, true, 1), &mut p, &g, &mut m, &mut v);
    let zeros = || Tensor::<1>::zeros([LEN], &Device::flex());
    let gradient = Tensor::from_data(g.as_slice(), &Device::flex());
    let far = device::step(rule.kind, numbers(&rule, true, 1), zeros(), gradient, zeros(), zeros());
    let wanted = vec![-rate(1); LEN];
    check(&p, &wanted, rule.kind);
    check(&far.0.into_data().try_to_vec::<f32>().unwrap(), &wanted, rule.kind);
}

fn model() -> Model {
    Model::Mlp(Mlp { inputs: 5, hidden: vec![9, 7], classes: 3, activation: MlpActivation::Relu })
}

fn stage() -> Stage {
    Stage::build(&model(), 0..2, 3, Precision::F32, Recompute::None, &Device::flex()).unwrap()
}

fn fill(stage: &mut Stage, t: u64) {
    let gradients = stage.gradients().values_mut();
    gradients.iter_mut().enumerate().for_each(|(i, g)| *g = gradient(t, i));
}

fn values(stage: &Stage) -> Vec<f32> {
    (0..stage.parameters().len()).flat_map(|index| stage.values(index)).collect()
}

#[test]
fn shards_together_are_the_whole() {
    for kind in [OptimizerKind::Adamw, OptimizerKind::Sgd, OptimizerKind::Lion] {
        let mut one = stage();
        let mut whole = StageOptimizer::new(&rule(kind), one.parameters());
        let mut shards = [0, 1].map(|rank| {
            let stage = shard(rank);
            let optimizer = StageOptimizer::sharded(&rule(kind), stage.parameters(), stage.shards());
            (stage, optimizer)
        });
        for t in 1..=3 {
            fill(&mut one, t);
            whole.step(&mut one, 0.01, 0.7, t);
            for (stage, optimizer) in &mut shards {
                fill(stage, t);
                optimizer.step(stage, 0.01, 0.7, t);
            }
        }
        assert_ne!(values(&one), values(&stage()));
        for index in 0..one.parameters().len() {
            let own = |(stage, optimizer): &(Stage, StageOptimizer)| {
                stage.values(index)[optimizer.owned(index)].to_vec()
            };
            assert_eq!(one.values(index), shards.iter().map(own).collect::<Vec<_>>().concat());
            let joined = |pick: fn((Option<Vec<f32>>, Option<Vec<f32>>)) -> Option<Vec<f32>>| {
                let parts = shards.iter().map(|(_, optimizer)| pick(optimizer.moments(index)));
                parts.collect::<Option<Vec<_>>>().map(|parts| parts.concat())
            };
            assert_eq!(whole.moments(index), (joined(|m| m.0), joined(|m| m.1)));
        }
    }
}

/// Returns the stage of one of two ranks that shard the state of [`stage`].
fn shard(rank: u32) -> Stage {
    let layout = Layout::replicas(std::num::NonZeroU32::new(2).unwrap());
    let arrangement = Arrangement { layout, zero: ZeroStage::Zero1, shard: 2, ..Arrangement::SINGLE };
    let (rank, partners, blocks) = (Rank(rank), ModelParallelGroups::none(), 0..2);
    let chunks = std::slice::from_ref(&blocks);
    let holding = ModelShard { model: &model(), chunks, seed: 3, arrangement, rank, partners };
    Stage::of(&holding, &Device::flex()).unwrap()
}

#[test]
fn lamb_of_parts_steps_as_lamb_of_the_whole() {
    let rule = rule(OptimizerKind::Lamb);
    let mut one = stage();
    let mut whole = StageOptimizer::new(&rule, one.parameters());
    let mut stages = [shard(0), shard(1)];
    let mut optimizers =
        [0, 1].map(|k| StageOptimizer::sharded(&rule, stages[k].parameters(), stages[k].shards()));
    for t in 1..=3 {
        fill(&mut one, t);
        whole.step(&mut one, 0.01, 0.7, t);
        let step = WeightUpdate { rate: 0.01, scale: 0.7, t };
        let mut both = [0, 1].map(|k| {
            fill(&mut stages[k], t);
            optimizers[k].directions(&mut stages[k], step)
        });
        for index in 0..one.parameters().len() {
            let [a, b] = [0, 1].map(|k| both[k].squares[index]);
            for k in [0, 1] {
                both[k].squares[index] = [a[0] + b[0], a[1] + b[1]];
                optimizers[k].apply_direction(index, &mut stages[k], &both[k], step.rate);
            }
        }
        for index in 0..one.parameters().len() {
            for k in [0, 1] {
                let owned = optimizers[k].owned(index);
                let (found, wanted) = (stages[k].values(index), one.values(index));
                let near = |(f, w): (&f32, &f32)| (f - w).abs() < 1e-6;
                assert!(found[owned.clone()].iter().zip(&wanted[owned]).all(near));
            }
        }
    }
}

#[test]
fn moments_put_back_go_on_as_if_nothing_had_happened() {
    for kind in KINDS {
        let mut straight = stage();
        let mut optimizer = StageOptimizer::new(&rule(kind), straight.parameters());
        let mut resumed = stage();
        let mut before = StageOptimizer::new(&rule(kind), resumed.parameters());
        for t in 1..=2 {
            fill(&mut straight, t);
            optimizer.step(&mut straight, 0.01, 1.0, t);
            fill(&mut resumed, t);
            before.step(&mut resumed, 0.01, 1.0, t);
        }
        let mut after = StageOptimizer::new(&rule(kind), resumed.parameters());
        for index in 0..resumed.parameters().len() {
            let (first, second) = before.moments(index);
            assert_eq!(second.is_some(), has_second(kind));
            after.set_moments(index, first, second);
        }
        fill(&mut straight, 3);
        optimizer.step(&mut straight, 0.01, 1.0, 3);
        fill(&mut resumed, 3);
        after.step(&mut resumed, 0.01, 1.0, 3);
        assert_eq!(values(&straight), values(&resumed));
    }
}

#[test]
fn the_norm_is_that_of_all_gradients_and_of_a_part() {
    let mut stage = stage();
    fill(&mut stage, 5);
    let all = stage.gradients().values().to_vec();
    let square = |values: &[f32]| values.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>();
    let found = stage.gradients().norm_squared();
    assert!((found - square(&all)).abs() < 1e-6 * found);
    let part = stage.parameters()[2].range.clone();
    let found = stage.gradients().norm_squared_own(2);
    assert!((found - square(&all[part])).abs() < 1e-6 * found);
}
