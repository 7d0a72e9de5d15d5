//! Tests of trainings that engines cannot run in any layout.

use super::*;

/// Each was checked in the package that its engine's file names.
#[test]
fn engines_have_these_optimizers() {
    use OptimizerKind::{Adamw, Lamb, Lion, Sgd};
    let has = |engine: &dyn Engine, zero| {
        let arrangement = Arrangement { recompute: Recompute::Full, ..on_gpus(data(8), zero) };
        let able = |kind: &OptimizerKind| {
            let training = TrainingSpec { optimizer: *kind, ..with_adamw(&llama()) };
            let reason = engine.unsupported_layout(&training, &arrangement, MICRO_BATCHES);
            assert!(
                reason.is_none_or(|reason| reason.what.starts_with("train.optimizer = \"")),
                "{reason:?}"
            );
            reason.is_none()
        };
        [Adamw, Lamb, Lion, Sgd].into_iter().filter(able).collect::<Vec<_>>()
    };
    assert_eq!(has(&DTRAIN, Zero1), [Adamw, Lamb, Lion, Sgd]);
    assert_eq!(has(&MEGATRON, Zero0), [Adamw, Lion, Sgd]);
    assert_eq!(has(&MEGATRON, Zero1), [Adamw, Lion]);
    assert_eq!(has(&MEGATRON, Zero3), [Adamw]);
    assert_eq!(has(&TORCHTITAN, Zero3), [Adamw]);
    assert_eq!(has(&HF_TRAINER, Zero0), [Adamw, Lion, Sgd]);
    assert_eq!(has(&HF_TRAINER, Zero3), [Adamw, Sgd]);
    assert_eq!(has(&FSDP_PROGRAM, Zero3), [Adamw, Lion, Sgd]);
    assert_eq!(has(&DEEPSPEED, Zero3), [Adamw, Lion, Sgd]);
    assert_eq!(has(&JAX, Zero3), [Adamw]);
}

#[test]
fn torchtitan_has_no_scale_of_a_whole_tensor() {
    let arrangement = Arrangement { precision: Precision::Fp8, ..on_gpus(data(8), Zero3) };
    for (fp8_recipe, word) in [(Fp8Recipe::Tensorwise, "tensorwise"), (Fp8Recipe::Delayed, "delayed")] {
        let training = TrainingSpec { fp8_recipe, ..with_adamw(&llama()) };
        let reason =
            TORCHTITAN.unsupported_layout(&training, &arrangement, MICRO_BATCHES).expect("it has none");
        assert_eq!(reason.what, format!("train.fp8_recipe = \"{word}\""));
        let half = Arrangement { precision: Precision::Bf16, ..arrangement };
        assert_eq!(TORCHTITAN.unsupported_layout(&training, &half, MICRO_BATCHES), None);
    }
}

#[test]
fn dtrain_and_maxtext_add_a_z_loss() {
    let arrangement = Arrangement { recompute: Recompute::Full, ..on_gpus(data(8), Zero1) };
    let is_refused = |engine: &dyn Engine, has_z_loss| {
        let training = TrainingSpec { has_z_loss, ..with_adamw(&llama()) };
        let zero =
            if [HF_TRAINER.name(), TORCHTITAN.name()].contains(&engine.name()) { Zero3 } else { Zero1 };
        let arrangement = Arrangement { zero, ..arrangement };
        let reason = engine.unsupported_layout(&training, &arrangement, MICRO_BATCHES);
        assert_eq!(reason.is_some(), engine.unsupported_training(&training, Precision::Bf16).is_some());
        assert!(reason.is_none_or(|reason| reason.what == "train.z_loss"), "{}: {reason:?}", engine.name());
        reason.is_some()
    };
    assert!(ALL.into_iter().all(|engine| !is_refused(engine, false)));
    let have: Vec<_> =
        ALL.into_iter().filter(|engine| !is_refused(*engine, true)).map(Engine::name).collect();
    assert_eq!(have, ["dtrain", "jax"]);
}
