//! Products of 16 bits learn like those of 32, if small gradients are kept above zero.

use super::farthest;
use super::world::{World, commit, losses, norms};
use dtrain_protocol::StepId;
use dtrain_recipes::{Precision, ZeroStage};

fn world(ranks: u32, precision: Precision) -> World {
    World::new(ranks).edit(|a| a.arrangement.precision = precision)
}

#[test]
fn f16_learns_as_f32_does() {
    let run = |precision| losses(&world(2, precision).steps(60).run());
    let (full, half) = (run(Precision::F32), run(Precision::F16));
    assert_ne!(full, half, "the products are in half precision");
    let worst = farthest(&full, &half);
    assert!(worst < 0.02, "{worst}");
}

#[test]
fn a_loss_scale_changes_no_norm() {
    let run = |ranks, zero| {
        let world = world(ranks, Precision::F16);
        norms(&if ranks > 1 { world.zero(zero, 2) } else { world }.steps(8).run())
    };
    let one = run(1, ZeroStage::Zero0);
    let full = norms(&world(1, Precision::F32).steps(8).run());
    assert!(farthest(&full, &one) < 0.02, "{full:?}, {one:?}");
    for zero in [ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2] {
        let worst = farthest(&one, &run(2, zero));
        assert!(worst < 1e-2, "{worst}");
    }
}

#[test]
fn a_resumed_run_has_the_loss_scale_of_the_one_that_stopped() {
    let of = |steps| world(2, Precision::F16).steps(steps);
    let whole = of(9).run();
    let saved = commit(&of(9).stop_at(4).run(), StepId(4));
    let rest = of(9).resume(&saved, StepId(4)).run();
    assert_eq!(losses(&rest), losses(&whole)[4..]);
    assert!(rest[0].weights() == whole[0].weights(), "scale and steps are in it");
}
