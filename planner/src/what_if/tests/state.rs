//! Requests of people with one card or few: adapters, 4-bit weights, 8-bit moments, and state in host memory.

use super::requests::{cluster, llama, llama_13b};
use super::*;
use crate::engine::{DEEPSPEED, FSDP_PROGRAM};
use dtrain_recipes::{AdaptedLayers, FrozenPrecision, Lora, MomentPrecision, Offload, StatePolicy};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

fn llama_3_8b() -> Recipe {
    llama([32, 4096, 32, 8, 14336, 128_256, 2048], 16)
}

fn llama_2_7b() -> Recipe {
    llama([32, 4096, 32, 32, 11008, 32000, 2048], 16)
}

fn with_adapters(mut recipe: Recipe, base: Option<FrozenPrecision>) -> Recipe {
    let Model::Decoder(decoder) = &mut recipe.model else { panic!("it is a decoder") };
    decoder.lora = Some(Lora { rank: 16, alpha: 32.0, layers: AdaptedLayers::All, base });
    recipe
}

#[test]
fn adapters_of_an_8b_model_fit_a_card_of_24_gb() {
    for engine in [&HF_TRAINER as &'static dyn Engine, &DEEPSPEED] {
        let peak = |base| {
            let found = of(&with_adapters(llama_3_8b(), base), cluster("1x1 RTX 4090"), engine);
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", engine.name()));
            assert!(
                found.choice.config.arrangement.state.is_plain(),
                "{}",
                describe_layout(&found.choice.config)
            );
            found.choice.peak_bytes / GIB
        };
        let (whole, quantized) = (peak(None), peak(Some(FrozenPrecision::Nf4)));
        assert!((16.0..24.0).contains(&whole), "{whole}");
        assert!(quantized < whole - 6.0, "{quantized} {whole}");
    }
}

#[test]
fn the_whole_of_a_7b_model_trains_on_one_card_with_state_in_host_memory() {
    for engine in [&HF_TRAINER as &'static dyn Engine, &DEEPSPEED, &FSDP_PROGRAM] {
        let found = of(&llama_2_7b(), cluster("1x1 RTX 4090"), engine);
        let found = found.unwrap_or_else(|error| panic!("{}: {error}", engine.name()));
        let state = found.choice.config.arrangement.state;
        assert!(state.is_exact() && state.offload != Offload::None, "{}: {state:?}", engine.name());
    }
    let mut pinned = llama_2_7b();
    pinned.train.state.moments = MomentPrecision::Int8;
    let found = of(&pinned, cluster("1x1 RTX 4090"), &HF_TRAINER).expect("it fits in host memory");
    let state = found.choice.config.arrangement.state;
    assert_eq!(state.moments, MomentPrecision::Int8);
    assert_ne!(state.offload, Offload::None);
}

#[test]
fn a_13b_model_trains_on_four_l40s_in_shards_and_host_memory() {
    for engine in [&HF_TRAINER as &'static dyn Engine, &DEEPSPEED] {
        let found = of(&llama_13b(), cluster("1x4 L40S"), engine);
        let found = found.unwrap_or_else(|error| panic!("{}: {error}", engine.name()));
        assert!(found.choice.peak_bytes < 45.0 * GIB, "{}", found.choice.peak_bytes);
    }
}

#[test]
fn what_does_not_fit_names_the_three_cheapest_ways() {
    for (recipe, on) in
        [(llama_2_7b(), "1x1 RTX 4090"), (llama_13b(), "1x4 L40S"), (llama_3_8b(), "1x1 A100-40GB")]
    {
        let error = of(&recipe, cluster(on), &MEGATRON).expect_err("Megatron keeps all state on the GPU");
        let DatasheetPlanError::NothingFits { ways, .. } = &error else { panic!("{error}") };
        assert_eq!(ways.len(), 3, "{error}");
        assert!(ways.is_sorted_by(|a, b| a.device_seconds <= b.device_seconds), "{error}");
        let has = |word: &str| ways.iter().any(|way| way.change.contains(word));
        assert!(has("model.lora = { rank = 16 }") && has("(1x"), "{error}");
    }
}

#[test]
fn state_that_changes_the_result_is_proposed_and_never_chosen() {
    let found = of(&llama_3_8b(), cluster("1x4 A100"), &HF_TRAINER).expect("it fits");
    assert_eq!(found.choice.config.arrangement.state, StatePolicy::PLAIN);
    let names: Vec<&str> = found.advice.iter().map(|advice| advice.change.as_str()).collect();
    for change in ["8-bit moments", "weights and moments of bf16", "adapters of rank 16"] {
        assert!(names.contains(&change), "{names:?}");
    }
}

#[test]
fn less_state_needs_less_memory_and_offload_takes_longer() {
    let plan = |change: fn(&mut Recipe)| {
        let mut recipe = llama([16, 2048, 16, 16, 5632, 32000, 2048], 16);
        change(&mut recipe);
        of(&recipe, cluster("1x1 A100"), &HF_TRAINER).expect("a 1B model fits").choice
    };
    let plain = plan(|recipe| recipe.train.state.offload = Some(Offload::None));
    let small = plan(|recipe| recipe.train.state.moments = MomentPrecision::Int8);
    assert!(small.bytes[0].1 < 0.7 * plain.bytes[0].1, "moments of 8 of 16 bytes go to 2");
    let moved = plan(|recipe| recipe.train.state.offload = Some(Offload::Optimizer));
    assert!(moved.bytes[0].1 < 0.5 * plain.bytes[0].1);
    assert!(moved.step_seconds > plain.step_seconds);
}
