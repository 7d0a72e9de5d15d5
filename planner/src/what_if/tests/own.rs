//! Tests plans for dtrain's own worker, which has no measured GPU runs, and for power-limited GPUs.

use super::*;
use crate::engine::{ALL, DTRAIN, FSDP_PROGRAM};
use dtrain_protocol::ContextExchange;
use dtrain_recipes::OptimizerKind;

fn spread(priced: &LayoutEstimate) -> f64 {
    priced.step_seconds_high / priced.step_seconds_low
}

#[test]
fn an_outlook_for_the_worker_reads_as_ever() {
    let found = of(&recipe(), on("H100", 64), &DTRAIN).expect("it fits");
    let answer = crate::answer::Answer::of_datasheet_plan(&found, &on("H100", 64)).text(80, 5, 1);
    insta::assert_snapshot!("llama_8b_on_64_h100_for_dtrain", answer);
}

#[test]
fn the_worker_is_doubted_more_than_any_engine_that_was_measured() {
    let own = of(&recipe(), on("H100", 64), &DTRAIN).expect("it fits");
    let words = explain(&own, NEXT);
    assert!(
        words.contains("no run of this engine on a GPU is known") && words.contains("dtrain probe"),
        "{words}"
    );
    for engine in ALL.into_iter().filter(|engine| engine.style().is_measured()) {
        let other = of(&recipe(), on("H100", 64), engine).expect("it fits");
        assert!(spread(&own.choice) > 2.0 * spread(&other.choice), "{}", engine.name());
        assert!(!explain(&other, NEXT).contains("no run of this engine"), "{}", engine.name());
    }
}

/// The program's constants are those of runs of the same kind, so it is doubted less than the worker.
#[test]
fn the_program_for_fsdp2_is_doubted_more_than_the_runs_that_its_constants_are_of() {
    let of = |engine| of(&recipe(), on("H100", 64), engine).expect("it fits");
    let (program, trainer, worker) = (of(&FSDP_PROGRAM), of(&HF_TRAINER), of(&DTRAIN));
    assert!(spread(&trainer.choice) < spread(&program.choice), "{:?}", program.choice);
    assert!(spread(&program.choice) < spread(&worker.choice), "{:?}", program.choice);
    let words = explain(&program, NEXT).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("no run of this engine") && words.contains("dtrain run RECIPE --engine fsdp"),
        "{words}"
    );
    // Its costs are not measured: it is planned on request alone.
    let advice = explain(&trainer, NEXT);
    assert!(advice.contains("the engine torchtitan: ") && !advice.contains("the engine fsdp: "), "{advice}");
}

#[test]
fn the_program_for_fsdp2_says_why_it_has_no_such_layout() {
    let mut recipe = recipe();
    (recipe.layout.context, recipe.layout.pipeline) = (Some(2), Some(1));
    let words =
        of(&recipe, on("H100", 64), &FSDP_PROGRAM).expect_err("it does not split sequences").to_string();
    assert!(words.contains("FSDP2 can run no layout") && words.contains("context parallelism"), "{words}");
    recipe.model = fixtures::deepseek();
    let words = of(&recipe, on("H100", 64), &FSDP_PROGRAM).expect_err("it has no such loss").to_string();
    assert!(words.contains("model.balance; it has no load-balancing loss"), "{words}");
}

#[test]
fn what_is_chosen_for_the_worker_is_within_its_abilities() {
    let recipe = recipe();
    let found = of(&recipe, on("H100", 64), &DTRAIN).expect("it fits");
    let Model::Decoder(model) = &recipe.model else { panic!("it is a decoder") };
    let training = TrainingSpec::of(model, &recipe.train);
    for priced in found.ties.iter().chain(&found.next).chain([&found.choice]) {
        let arrangement = &priced.config.arrangement;
        assert_eq!(
            DTRAIN.unsupported_layout(
                &training,
                arrangement,
                crate::analytic::search::to_count(priced.config.micro_batches())
            ),
            None
        );
        assert_eq!(
            (arrangement.layout.context.get(), arrangement.context_exchange),
            (1, ContextExchange::Ring)
        );
    }
    let request =
        DatasheetPlanRequest { recipe: &recipe, cluster: on("H100", 64), engine: &DTRAIN, next: NEXT };
    let plan = to_plan(&request, &found, ("/data".into(), "0")).expect("it is a plan");
    assert_eq!(plan.engine, None, "`dtrain run` reads it");
    let told = crate::explain(&plan);
    assert!(told.contains("estimated from data sheets"), "{told}");
}

/// The worker's ranks exchange f32 through host memory, whatever the links of the devices.
#[test]
fn faster_links_do_not_help_the_worker() {
    let usual = on("H100", 64);
    let fast = usual
        .with_link(usual.link.class, Some(4.0 * usual.link.bandwidth))
        .with_network(4.0 * usual.network.bandwidth);
    let seconds = |cluster| of(&recipe(), cluster, &DTRAIN).expect("it fits").choice.step_seconds;
    assert!((seconds(fast) / seconds(usual) - 1.0).abs() < 1e-12);
    let slow = usual.with_network(1e8);
    assert!(seconds(slow) > 1.2 * seconds(usual));
}

#[test]
fn what_an_engine_cannot_train_is_said_with_the_reason() {
    let message = |change: fn(&mut Recipe), engine| {
        let mut recipe = recipe();
        change(&mut recipe);
        of(&recipe, on("H100", 64), engine).expect_err("it cannot be trained").to_string()
    };
    let fp8 = |recipe: &mut Recipe| recipe.train.precision = Tunable::Pinned(Precision::Fp8);
    let words = message(fp8, &DTRAIN);
    assert!(words.contains("dtrain can run no layout of 64 devices: it does not support fp8; "), "{words}");
    let words = message(fp8, &TORCHTITAN);
    assert!(
        words.contains("train.fp8_recipe = \"tensorwise\"; it has no scale for a whole tensor"),
        "{words}"
    );
    let words = message(|recipe| recipe.train.optimizer.kind = OptimizerKind::Lamb, &HF_TRAINER);
    assert!(words.contains("Hugging Face Trainer can run no layout of 64 devices"), "{words}");
    assert!(words.contains("train.optimizer = \"lamb\"; transformers have adamw"), "{words}");
    let z_loss = |recipe: &mut Recipe| recipe.train.z_loss = 1e-4;
    for engine in ALL.into_iter().filter(|engine| !["dtrain", "jax"].contains(&engine.name())) {
        let words = message(z_loss, engine);
        assert!(words.contains("train.z_loss; dtrain and MaxText (`--engine jax`) have a z-loss"), "{words}");
    }
    let latent = |recipe: &mut Recipe| recipe.model = fixtures::deepseek();
    assert!(message(latent, &DTRAIN).contains("latent attention"));
}

/// Megatron-LM supports lion, but Megatron-FSDP, which shards gradients, does not.
#[test]
fn an_optimizer_decides_what_may_be_sharded() {
    let mut recipe = recipe();
    assert_eq!(stage(&recipe), dtrain_recipes::ZeroStage::Zero2);
    recipe.train.optimizer.kind = OptimizerKind::Lion;
    assert!(stage(&recipe) <= dtrain_recipes::ZeroStage::Zero1);
}

fn stage(recipe: &Recipe) -> dtrain_recipes::ZeroStage {
    of(recipe, on("H100", 64), &MEGATRON).expect("it fits").choice.config.arrangement.zero
}

#[test]
fn a_power_limit_slows_and_is_told() {
    let clipped = HostGroup { watts: Some(500.0), ..on("H100", 64) };
    let (usual, slow) = (of(&recipe(), on("H100", 64), &MEGATRON), of(&recipe(), clipped, &MEGATRON));
    let (usual, slow) = (usual.expect("it fits"), slow.expect("it fits"));
    let ratio = slow.choice.step_seconds / usual.choice.step_seconds;
    // Matrix products take 1 / sqrt(500/700) as long, everything else is unchanged.
    assert!((1.05..1.19).contains(&ratio), "{ratio}");
    assert!(spread(&slow.choice) > spread(&usual.choice));
    assert_eq!(slow.gpu.0, "H100 SXM5 80GB 500W");
    let row = as_row(&slow, "Megatron-Core", "fused");
    let priced = benchmarks::estimate_rows(&[row], &[], Constants::shipped()).remove(0);
    let there = priced.step_seconds.expect("it can be priced");
    assert!((there / slow.choice.step_seconds - 1.0).abs() < 1e-9, "{there} {:?}", slow.choice);
}

#[test]
fn an_engine_refuses_a_part_that_it_is_not_written_for() {
    let refused = |part, engine| match of(&recipe(), on(part, 64), engine) {
        Err(error @ DatasheetPlanError::Part { .. }) => error.to_string(),
        other => panic!("{part}: {other:?}"),
    };
    assert_eq!(refused("TPU v5p", &MEGATRON), "Megatron-LM does not run on TPU v5p; these do: jax");
    assert_eq!(
        refused("Gaudi3", &HF_TRAINER).split(" does not").last(),
        Some(" run on Gaudi 3; these do: deepspeed")
    );
    assert!(refused("TPU v6", &DTRAIN).contains("jax"));
    of(&recipe(), on("TPU v5p", 64), &crate::engine::JAX).expect("MaxText trains on TPUs");
    let mixed = plan_mixed_cluster(&recipe(), &[on("H100", 8), on("TPU v5p", 8)], &MEGATRON);
    assert!(matches!(mixed, Err(DatasheetPlanError::Part { .. })), "{mixed:?}");
    // The default engine supports the device; advice then names no other engine.
    let usual = |kinds: &[_]| crate::engine::default_engine(kinds).map(|engine| engine.name());
    let [gpu, gaudi, tpu] = ["H100", "Gaudi2", "TPU v4"].map(|part| on(part, 8).gpu.kind());
    assert_eq!(
        [usual(&[gpu]), usual(&[gaudi]), usual(&[tpu])],
        [Some("megatron"), Some("deepspeed"), Some("jax")]
    );
    assert_eq!(usual(&[gaudi, tpu]), None);
    let found = of(&recipe(), on("TPU v5p", 64), &crate::engine::JAX).expect("it fits");
    assert!(found.advice.iter().all(|advice| !advice.change.contains("engine")), "{:?}", found.advice);
}

#[test]
fn twice_the_time_is_no_percentage() {
    let found = of(&recipe(), on("H100", 64), &MEGATRON).expect("it fits");
    let told = explain(&found, NEXT);
    assert!(told.lines().last().is_some_and(|line| line.starts_with("in short")), "{told}");
    assert_eq!(
        [0.12, 0.994, 0.996, 9.06].map(crate::text::slower),
        ["12 % slower", "99 % slower", "2.0 times as long", "10.1 times as long"]
    );
}
