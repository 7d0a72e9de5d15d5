//! Replicas that shard their state train like those that do not.

use super::farthest;
use super::world::{World, commit, losses, norms};
use crate::stage::Stage;
use crate::zero::ZeroShards;
use burn::tensor::Device;
use dtrain_protocol::communication_volume::ROW_VALUES;
use dtrain_protocol::{Assignment, Event, Rank, StepId};
use dtrain_recipes::{OptimizerKind, Precision, Recompute, ZeroStage};

const STAGES: [ZeroStage; 3] = [ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3];

/// Number of replicas, and of those in a shard group.
const GROUPS: [(u32, u32); 5] = [(2, 2), (3, 3), (4, 4), (4, 2), (4, 1)];

#[test]
fn sharded_replicas_lose_as_those_that_are_not() {
    for (ranks, shard) in GROUPS {
        let whole = World::new(ranks).steps(20).run();
        for zero in STAGES {
            let parts = World::new(ranks).zero(zero, shard).steps(20).run();
            let worst = farthest(&losses(&whole), &losses(&parts));
            assert!(worst < 1e-5, "{zero:?} of {shard} among {ranks}: the losses differ by {worst}");
            let worst = farthest(&norms(&whole), &norms(&parts));
            assert!(worst < 1e-5, "{zero:?} of {shard} among {ranks}: the norms differ by {worst}");
        }
    }
}

#[test]
fn every_rule_follows_one_rank() {
    use OptimizerKind::{Adamw, Lamb, Lion, Sgd};
    for kind in [Adamw, Sgd, Lion, Lamb] {
        // Lion takes signs: where a gradient is nearly nothing, the last bit of a sum decides them.
        let most = if kind == Lion { 1e-3 } else { 1e-5 };
        let clip = |world: World| world.rule(kind).edit(|a| a.training.clip = Some(0.5)).steps(20);
        let one = losses(&clip(World::new(1)).run());
        for zero in STAGES {
            for (ranks, shard) in [(2, 2), (4, 2)] {
                let parts = losses(&clip(World::new(ranks)).zero(zero, shard).run());
                let worst = farthest(&one, &parts);
                assert!(worst < most, "{kind:?}, {zero:?}, {shard} of {ranks}: the losses differ by {worst}");
            }
        }
    }
}

/// Replicas add in the order of ranks with all-reduce and with reduce-scatter. The norm is added in another
/// order, so the bits are equal only without clipping; and with LAMB never.
#[test]
fn sharded_moments_do_not_change_a_bit_where_nothing_is_clipped() {
    for kind in [OptimizerKind::Adamw, OptimizerKind::Sgd, OptimizerKind::Lion] {
        let world = |ranks| World::new(ranks).rule(kind).edit(|a| a.training.clip = None).steps(20);
        for ranks in [2, 3] {
            let whole = losses(&world(ranks).run());
            assert_eq!(whole, losses(&world(ranks).zero(ZeroStage::Zero1, ranks).run()));
        }
    }
}

#[test]
fn the_same_shards_give_the_same_bits() {
    for zero in STAGES {
        let run = || World::new(4).zero(zero, 2).steps(8).run();
        let (first, second) = (run(), run());
        assert_eq!((losses(&first), norms(&first)), (losses(&second), norms(&second)));
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(first.weights(), second.weights());
        }
    }
}

#[test]
fn a_checkpoint_of_one_stage_goes_on_under_another() {
    use ZeroStage::{Zero0, Zero1, Zero2, Zero3};
    let whole = losses(&World::new(4).steps(9).run());
    let ways = [(Zero0, 1), (Zero1, 4), (Zero2, 2), (Zero3, 4), (Zero3, 2)];
    for (first, then) in ways.iter().zip(ways.iter().cycle().skip(2)) {
        let saved = commit(&World::new(4).zero(first.0, first.1).steps(5).run(), StepId(5));
        for ranks in [2, 4] {
            let shard = then.1.min(ranks);
            let rest = World::new(ranks).zero(then.0, shard).steps(9).resume(&saved, StepId(5)).run();
            let worst = farthest(&whole[5..], &losses(&rest));
            assert!(worst < 1e-5, "{first:?}, then {then:?} on {ranks}: the losses differ by {worst}");
        }
    }
}

#[test]
fn validation_sees_whole_weights() {
    let validated = |world: World| -> Vec<f64> {
        // Seven samples: no two replicas have as many.
        let ended = world.steps(6).edit(|a| a.validate_every = 3).run();
        let losses = ended[0].events.iter().filter_map(|event| match event {
            Event::Validated { loss, .. } => Some(*loss),
            _ => None,
        });
        losses.collect()
    };
    let whole = validated(World::new(4));
    assert_eq!(whole.len(), 2);
    for zero in STAGES {
        let worst = farthest(&whole, &validated(World::new(4).zero(zero, 4)));
        assert!(worst < 1e-5, "{zero:?}: {worst}");
    }
}

/// A bucket of `N` bytes costs `N (n - 1) / n` to scatter, and as much to gather.
#[test]
fn ranks_send_what_the_formula_says() {
    let (ranks, micro_batches) = (2, 2);
    let sent = |zero| {
        let ended = World::new(ranks).zero(zero, ranks).steps(2).run();
        let assignment = ended[0].assignment.clone();
        let sent = ended[0].events.iter().find_map(|event| match event {
            Event::Step(figures) => Some(figures.sent_bytes),
            _ => None,
        });
        (sent.unwrap(), assignment)
    };
    for zero in STAGES {
        let (sent, Assignment { model, arrangement, .. }) = sent(zero);
        let stage = Stage::build(&model, 0..2, 3, Precision::F32, Recompute::None, &Device::flex()).unwrap();
        let shards = ZeroShards::of(&arrangement, Rank(0), stage.parameters());
        let unit = |unit: usize| -> u64 {
            let lengths = shards.packs_of(unit).map(|pack| shards.packs()[pack].length() as u64);
            lengths.map(|length| 4 * length / u64::from(ranks)).sum()
        };
        let all: u64 = (0..stage.units()).map(unit).sum();
        let (embedding, head) = (unit(0), unit(stage.units() - 1));
        let values = match zero {
            ZeroStage::Zero0 => unreachable!("it is none of the stages"),
            ZeroStage::Zero1 => 2 * all,
            ZeroStage::Zero2 => (micro_batches + 1) * all,
            // All but the head are gathered twice, and the tied embedding once more for the head.
            ZeroStage::Zero3 => micro_batches * (all + 2 * all - head + embedding),
        };
        // A row for the loss, and one for the norm.
        assert_eq!(sent, values + 2 * 4 * ROW_VALUES, "{zero:?}");
    }
}
