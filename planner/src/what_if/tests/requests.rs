//! Requests whose answers once could not run, with the answers that they have.

use super::*;
use crate::engine::{DEEPSPEED, DTRAIN, FSDP_PROGRAM};
use crate::hardware::Machine;
use dtrain_recipes::{Compression, DiLoCo, GpuFacts, Synchronisation};

pub(super) fn cluster(on: &str) -> HostGroup {
    Machine::parse(on, None, &GpuFacts::default()).unwrap_or_else(|error| panic!("{on}: {error}")).groups[0]
}

/// Returns a Llama with these layers, hidden size, heads, key-value heads, feed-forward width, vocabulary and
/// context, and this batch.
pub(super) fn llama(dimensions: [u32; 7], batch: u64) -> Recipe {
    let [layers, hidden, heads, kv_heads, ffn, vocab, context] = dimensions;
    let mut recipe = recipe();
    let Model::Decoder(decoder) = &mut recipe.model else { panic!("it is a decoder") };
    *decoder = Decoder { layers, hidden, heads, kv_heads, ffn, vocab, context, ..decoder.clone() };
    recipe.train.batch = Tunable::Pinned(Samples(batch));
    recipe
}

pub(super) fn llama_13b() -> Recipe {
    llama([40, 5120, 40, 40, 13824, 32000, 4096], 128)
}

fn gpt2_xl() -> Recipe {
    let mut recipe = Recipe { model: fixtures::gpt2(), ..recipe() };
    let Model::Decoder(decoder) = &mut recipe.model else { panic!("it is a decoder") };
    *decoder = Decoder { layers: 48, hidden: 1600, heads: 25, kv_heads: 25, ffn: 6400, ..decoder.clone() };
    recipe.train.batch = Tunable::Pinned(Samples(256));
    recipe
}

#[test]
fn parts_without_bf16_train_in_f16() {
    for on in ["1x8 V100-SXM2-32GB", "1x8 T4"] {
        for engine in [&MEGATRON as &'static dyn Engine, &DEEPSPEED, &HF_TRAINER] {
            let found = of(&gpt2_xl(), cluster(on), engine);
            let found = found.unwrap_or_else(|error| panic!("{on}, {}: {error}", engine.name()));
            assert_eq!(found.choice.config.arrangement.precision, Precision::F16, "{on}");
            assert!(found.precision.reason.contains("has no bf16"), "{}", found.precision.reason);
        }
    }
    let mut pinned = gpt2_xl();
    pinned.train.precision = Tunable::Pinned(Precision::Bf16);
    let error = of(&pinned, cluster("1x8 V100"), &MEGATRON).expect_err("it has no bf16").to_string();
    assert!(error.contains("V100 SXM2 32GB has no products in bf16") && error.contains("\"f16\""), "{error}");
    pinned.train.precision = Tunable::Pinned(Precision::F16);
    let found = of(&pinned, cluster("1x8 A100"), &MEGATRON).expect("it fits");
    assert_eq!(found.choice.config.arrangement.precision, Precision::F16, "it is pinned");
    let small = llama([22, 2048, 32, 4, 5632, 32000, 2048], 128);
    let in_f32 = of(&small, cluster("1x8 V100"), &TORCHTITAN);
    assert!(in_f32.is_ok_and(|found| found.precision.value == Precision::F32), "torchtitan has no f16");
}

#[test]
fn a_size_of_memory_in_a_name_counts() {
    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
    let small = of(&gpt2_xl(), cluster("1x8 V100-SXM2-16GB"), &MEGATRON).expect("it fits in shards");
    assert!(small.choice.peak_bytes < 16.0 * GIB, "{}", small.choice.peak_bytes);
    let error = of(&recipe(), cluster("1x2 A100-40GB PCIe"), &MEGATRON).expect_err("it does not fit");
    let DatasheetPlanError::NothingFits { available, .. } = error else { panic!("{error}") };
    assert!((39.0..41.0).contains(&available), "{available}");
    assert!((cluster("1x4 L40S").memory / GIB - 45.0).abs() < 0.1);
}

#[test]
fn memory_leaves_room_for_the_error_of_the_estimate_or_the_chance_is_said() {
    let requests = [
        (llama([80, 8192, 64, 8, 28672, 32000, 4096], 256), "2x8 H100"),
        (llama_13b(), "1x8 L40S"),
        (recipe(), "1x8 RTX 4090"),
        (recipe(), "1x8 A100-40GB"),
    ];
    for (recipe, on) in requests {
        for engine in [&MEGATRON as &'static dyn Engine, &HF_TRAINER] {
            let Ok(found) = of(&recipe, cluster(on), engine) else { continue };
            let (high, memory) = (found.choice.peak_bytes_high, found.memory_bytes);
            assert!(found.choice.peak_bytes <= memory, "{on}");
            assert_eq!(found.out_of_memory.is_some(), high > memory, "{on}: {high:.3e} of {memory:.3e}");
        }
    }
}

#[test]
fn a_batch_that_the_devices_do_not_divide_is_the_reason_and_the_nearest_are_named() {
    let mut recipe = recipe();
    recipe.train.batch = Tunable::Pinned(Samples(64));
    for (devices, near) in [(3, [63, 66]), (5, [60, 65]), (6, [60, 66]), (7, [63, 70])] {
        let error = of(&recipe, on("A100-80GB", devices), &FSDP_PROGRAM).expect_err("64 does not divide");
        let DatasheetPlanError::Batch { batches, .. } = &error else { panic!("{devices}: {error}") };
        assert_eq!(*batches, near, "{error}");
        let mut near_recipe = recipe.clone();
        near_recipe.train.batch = Tunable::Pinned(Samples(u64::from(near[0])));
        assert!(of(&near_recipe, on("A100-80GB", devices), &FSDP_PROGRAM).is_ok(), "{devices}");
    }
    recipe.train.batch = Tunable::Auto;
    recipe.objective.stop = dtrain_recipes::StopConditions { steps: Some(1000), ..Default::default() };
    for devices in [3, 5, 6, 7] {
        let found = of(&recipe, on("A100-80GB", devices), &FSDP_PROGRAM).expect("the batch is free");
        assert_eq!(found.choice.config.degrees().data, devices);
    }
}

#[test]
fn approximate_synchronization_is_priced_or_refused() {
    let mut recipe = llama([24, 1024, 16, 16, 2816, 32000, 1024], 128);
    let slow = Machine::parse("4x1 RTX 4090", Some(1.0), &GpuFacts::default()).expect("a machine").groups[0];
    let exact = of(&recipe, slow, &DTRAIN).expect("it fits").choice.step_seconds;
    let local = DiLoCo { every: 50, outer_learning_rate: 0.7, outer_momentum: 0.9 };
    recipe.sync = Synchronisation { local: Some(local), ..Synchronisation::EXACT };
    let rare = of(&recipe, slow, &DTRAIN).expect("it fits");
    assert!(rare.choice.step_seconds < 0.7 * exact, "{} {exact}", rare.choice.step_seconds);
    assert!(rare.choice.config.arrangement.sync.local.is_some(), "it is written");
    for engine in [&MEGATRON as &'static dyn Engine, &FSDP_PROGRAM, &HF_TRAINER, &DEEPSPEED] {
        let error = of(&recipe, slow, engine).expect_err("it has no DiLoCo").to_string();
        assert!(
            error.contains("alike approximately") && error.contains("sync"),
            "{}: {error}",
            engine.name()
        );
    }
    recipe.sync = Synchronisation { compress: Compression::TopK { keep: 0.01 }, ..Synchronisation::EXACT };
    assert!(of(&recipe, slow, &DTRAIN).expect("it fits").choice.step_seconds < exact);
}

#[test]
fn tensor_parallel_hides_nothing_behind_pcie() {
    let found = of(&recipe(), cluster("1x8 RTX 4090"), &MEGATRON).expect("it fits");
    let on_nvlink = GpuFacts {
        link: Some(dtrain_recipes::GpuLink::Nvswitch),
        link_bandwidth: Some(300.0),
        ..GpuFacts::default()
    };
    let fast = Machine::parse("1x8 RTX 4090", None, &on_nvlink).expect("a machine").groups[0];
    let fast = of(&recipe(), fast, &MEGATRON).expect("it fits");
    assert!(found.choice.step_seconds > 1.3 * fast.choice.step_seconds);
    let small = llama([22, 2048, 32, 4, 5632, 32000, 2048], 256);
    let found = of(&small, cluster("1x8 RTX 3090"), &MEGATRON).expect("it fits");
    assert_eq!(found.choice.config.degrees().tensor, 1, "{:?}", found.choice.config.degrees());
}

#[test]
fn parts_that_an_engine_does_not_support_are_refused_with_those_that_do() {
    for (on, engine) in [
        ("1x8 MI300X", &DTRAIN as &'static dyn Engine),
        ("1x8 TPU v5p", &MEGATRON),
        ("1x8 Gaudi 2", &HF_TRAINER),
    ] {
        let error = of(&recipe(), cluster(on), engine).expect_err("it does not run").to_string();
        assert!(error.contains("does not run on") && error.contains("these do: "), "{error}");
    }
    assert!(of(&recipe(), cluster("1x8 MI300X"), &TORCHTITAN).is_ok());
}

#[test]
fn groups_train_in_the_precision_that_all_have_and_each_with_its_kernel() {
    let groups = [cluster("1x8 H100"), cluster("1x8 V100")];
    let mut recipe = llama([22, 2048, 32, 4, 5632, 32000, 2048], 128);
    let found = plan_mixed_cluster(&recipe, &groups, &MEGATRON).expect("it fits");
    assert_eq!(found.precision.value, Precision::F16);
    recipe.train.precision = Tunable::Pinned(Precision::F32);
    let groups = [cluster("1x8 H100"), cluster("1x8 A100")];
    let slow = plan_mixed_cluster(&recipe, &groups, &MEGATRON).expect("it fits");
    recipe.train.precision = Tunable::Auto;
    let fast = plan_mixed_cluster(&recipe, &groups, &MEGATRON).expect("it fits");
    assert!(slow.choice.step_seconds > 1.2 * fast.choice.step_seconds, "f32 is slower");
}

#[test]
fn figures_of_the_recipe_replace_those_of_the_table() {
    let on = |facts: &GpuFacts| Machine::parse("1x1 V100", None, facts).expect("a machine").groups[0];
    let small = llama([8, 1024, 16, 16, 2816, 32000, 1024], 16);
    let seconds = |facts: &GpuFacts| of(&small, on(facts), &HF_TRAINER).expect("it fits").choice.step_seconds;
    let slow = GpuFacts { tflops: Some(30.0), ..GpuFacts::default() };
    assert!(seconds(&slow) > 1.3 * seconds(&GpuFacts::default()));
    let described = GpuFacts {
        memory: Some(dtrain_recipes::Bytes(32 << 30)),
        tflops: Some(125.0),
        memory_bandwidth: Some(900.0),
        ..GpuFacts::default()
    };
    let card = Machine::parse("1x1 Card 9", None, &described).expect("a machine").groups[0];
    let interval = |cluster| {
        let choice = of(&small, cluster, &HF_TRAINER).expect("it fits").choice;
        choice.step_seconds_high / choice.step_seconds_low
    };
    assert!(interval(card) > interval(cluster("1x1 H100")), "less is known of it");
    assert!(Machine::parse("1x8 H100 + 1x8 A100", None, &slow).is_err(), "it describes one kind of GPU");
}

#[test]
fn nvlink_joins_the_racks_of_an_nvl72() {
    let rack = cluster("18x4 GB200");
    assert_eq!((rack.link_domain(), cluster("2x8 B200").link_domain()), (72, 8));
}
