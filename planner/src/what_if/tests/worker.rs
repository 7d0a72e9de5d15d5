//! Plans of models that dtrain's own worker alone trains.

use super::*;
use crate::answer::{Answer, LINES, ROWS};
use crate::engine::DTRAIN;
use crate::hardware::Machine;
use dtrain_recipes::{Devices, DiLoCo, GpuFacts, StopConditions, Synchronisation};

/// Returns a residual network of 11 million parameters on images of 64 × 64, with the plan of ResNet-18.
fn resnet() -> Recipe {
    let cnn =
        Cnn { channels: 3, height: 64, width: 64, stages: vec![64, 128, 256, 512], blocks: 2, classes: 100 };
    let mut recipe = Recipe { name: "resnet".into(), model: Model::Cnn(cnn), ..fixtures::recipe() };
    recipe.train.batch = Tunable::Pinned(Samples(256));
    recipe.objective.stop = StopConditions { steps: Some(10_000), ..StopConditions::default() };
    recipe
}

fn groups(on: &str, gbits: Option<f64>) -> Vec<HostGroup> {
    Machine::parse(on, gbits, &GpuFacts::default()).unwrap_or_else(|error| panic!("{on}: {error}")).groups
}

fn planned(
    recipe: &Recipe,
    groups: &[HostGroup],
    engine: &'static dyn Engine,
) -> Result<WorkerPlan, DatasheetPlanError> {
    plan_for_worker(&WorkerPlanRequest {
        recipe,
        groups,
        engine,
        samples: None,
        data_root: "/data".into(),
        program: "0.1.0",
    })
}

fn found(recipe: &Recipe, on: &str, gbits: Option<f64>) -> WorkerPlan {
    planned(recipe, &groups(on, gbits), &DTRAIN).unwrap_or_else(|error| panic!("{on}: {error}"))
}

fn step(plan: &WorkerPlan) -> f64 {
    plan.plan.best().price().step.0
}

#[test]
fn a_residual_network_on_a_slow_network_is_replicated_and_its_exchange_is_named() {
    let found = found(&resnet(), "4x1 RTX 3060", Some(1.0));
    let best = found.plan.best();
    assert_eq!(best.candidate.arrangement.layout.data.get(), 4);
    // 11 million gradients of 4 bytes, three halves of them each way, at 0.8 Gbit/s.
    let bytes = 4.0 * 1.5 * crate::text::whole(resnet().model.parameters());
    let exchange = bytes / 0.1e9;
    assert!((0.8 * exchange..1.4 * exchange).contains(&found.exchange_seconds), "{found:?}");
    let text = Answer::of_worker_plan(&found).text(80, ROWS, 1);
    insta::assert_snapshot!("resnet_on_4_slow_hosts", text);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("on 4 RTX 3060 12GB (4 hosts × 1), engine dtrain"), "{text}");
    assert!(words.contains("over a network of 1.0 Gbit/s per GPU"), "{text}");
    assert!(words.contains("hosts with cores and memory enough"), "{text}");
    assert!(text.lines().count() < LINES, "{text}");
}

#[test]
fn a_slower_network_is_a_longer_step_and_an_assumed_one_is_named() {
    let [slow, fast, usual] =
        [Some(1.0), Some(10.0), None].map(|gbits| found(&resnet(), "4x1 RTX 3060", gbits));
    assert!(step(&slow) > 2.0 * step(&fast), "{} and {}", step(&slow), step(&fast));
    let is_named = |plan: &WorkerPlan| plan.assumptions.iter().any(|one| one.correct == "--network");
    assert!(is_named(&usual) && !is_named(&slow));
    let exchange = |plan: &WorkerPlan| plan.exchange_seconds;
    assert!(exchange(&slow) > 5.0 * exchange(&fast));
    assert!(slow.advice.iter().any(|advice| advice.change == "a network twice as fast"), "{:?}", slow.advice);
}

#[test]
fn links_within_a_host_and_the_network_both_count() {
    let inside = found(&resnet(), "1x4 RTX 3060", None);
    let both = found(&resnet(), "2x2 RTX 3060", Some(1.0));
    let apart = found(&resnet(), "4x1 RTX 3060", Some(1.0));
    assert!(inside.exchange_seconds < 0.2 * both.exchange_seconds, "{} s", inside.exchange_seconds);
    assert!(both.exchange_seconds < apart.exchange_seconds, "two GPUs of a host add before they send");
    assert!(inside.assumptions.iter().any(|one| one.correct == "cluster.gpu.link"));
}

#[test]
fn rarer_exchanges_are_priced() {
    let mut recipe = resnet();
    let exact = found(&recipe, "4x1 RTX 3060", Some(1.0));
    recipe.sync = Synchronisation {
        local: Some(DiLoCo { every: 8, outer_learning_rate: 0.7, outer_momentum: 0.9 }),
        ..Synchronisation::EXACT
    };
    let local = found(&recipe, "4x1 RTX 3060", Some(1.0));
    assert!(step(&local) < 0.5 * step(&exact), "{} and {}", step(&local), step(&exact));
}

#[test]
fn memory_and_power_are_those_of_the_part() {
    let mut recipe = resnet();
    recipe.train.precision = Tunable::Pinned(Precision::F32);
    let available = |on: &str| found(&recipe, on, None).plan.best().price().memory_available.0;
    assert!(available("1x1 RTX 3060") < 12 << 30 && available("1x1 A100-80GB") > 64 << 30);
    assert!(step(&found(&recipe, "1x1 H100 350W", None)) > 1.1 * step(&found(&recipe, "1x1 H100", None)));
    (recipe.layout.micro_batch, recipe.train.batch) = (Some(1 << 14), Tunable::Pinned(Samples(1 << 14)));
    let error = planned(&recipe, &groups("1x1 RTX 3060", None), &DTRAIN).expect_err("it is too large");
    assert!(error.to_string().contains("GiB are available"), "{error}");
}

#[test]
fn a_custom_network_and_a_perceptron_are_planned_too() {
    for model in [Model::Custom(fixtures::own()), fixtures::models()[1].clone()] {
        let recipe = Recipe { model, ..resnet() };
        let found = found(&recipe, "2x4 RTX 3060", Some(10.0));
        let text = Answer::of_worker_plan(&found).text(80, ROWS, 1);
        assert!(text.lines().count() < LINES, "{text}");
        assert_eq!(found.plan.host.cores, 0, "they are unknown");
    }
}

#[test]
fn what_the_worker_does_not_do_is_refused_by_name() {
    let refused = |recipe: &Recipe, on: &str, engine| {
        planned(recipe, &groups(on, None), engine).expect_err(on).to_string()
    };
    let engine = refused(&resnet(), "4x1 RTX 3060", &MEGATRON);
    assert!(engine.contains("Megatron") && engine.contains("model.kind = \"cnn\""), "{engine}");
    let mixed = refused(&resnet(), "4x1 RTX 3060 + 1x8 H100", &DTRAIN);
    assert!(mixed.contains("plan each group by itself"), "{mixed}");
    assert!(refused(&resnet(), "1x8 MI300X", &DTRAIN).starts_with("dtrain does not run on MI300X"));
    assert!(refused(&recipe(), "1x8 H100", &DTRAIN).contains("and this is another"));
    let mut cpus = resnet();
    cpus.cluster.devices = Devices::Cpu;
    assert!(refused(&cpus, "1x8 H100", &DTRAIN).contains("cluster.devices = \"cpu\""));
    let mut epochs = resnet();
    epochs.objective.stop = StopConditions { epochs: Some(3.0), ..StopConditions::default() };
    assert!(refused(&epochs, "1x8 H100", &DTRAIN).contains("number of training samples"));
}
