use super::*;
use crate::engine::Engine as _;
use crate::fixtures;
use crate::hardware::gpu;
use crate::text::{WIDTH, wrapped};
use dtrain_recipes::{Activation, Decoder, Model, Samples, Tunable};

/// Returns a recipe of a 70B Llama.
fn recipe() -> Recipe {
    let mut recipe = fixtures::recipe();
    recipe.name = "llama-70b".into();
    let Model::Decoder(decoder) = &mut recipe.model else { panic!("the sample is a decoder") };
    *decoder = Decoder {
        layers: 80,
        hidden: 8192,
        heads: 64,
        kv_heads: 8,
        ffn: 28672,
        vocab: 128_256,
        context: 8192,
        activation: Activation::Swiglu,
        tied: false,
        bias: false,
        ..*decoder
    };
    recipe.train.batch = Tunable::Pinned(Samples(512));
    recipe
}

fn on(part: &str, hosts: u32) -> HostGroup {
    HostGroup::of(gpu(part).expect("it is in the table"), hosts, 8)
}

fn of(recipe: &Recipe, groups: &[HostGroup]) -> Result<MixedClusterPlan, DatasheetPlanError> {
    plan_mixed_cluster(recipe, groups, &crate::engine::MEGATRON)
}

#[test]
fn an_outlook_of_two_groups_reads_as_ever() {
    let found = of(&recipe(), &[on("H100", 16), on("A100-80GB", 16)]).expect("it fits");
    insta::assert_snapshot!("llama_70b_on_h100_and_a100", wrapped(&explain_mixed_cluster(&found), WIDTH));
}

#[test]
fn together_is_faster_than_alone_and_seconds_are_the_sums_of_their_parts() {
    let found = of(&recipe(), &[on("H100", 16), on("A100-80GB", 16)]).expect("it fits");
    for group in &found.groups {
        assert!(group.step_seconds.is_none_or(|alone| alone > found.choice.step_seconds), "{group:?}");
    }
    for priced in found.ties.iter().chain([&found.choice]) {
        let seconds: f64 = priced.causes.iter().map(|(_, seconds)| seconds).sum();
        assert!((seconds / priced.step_seconds - 1.0).abs() < 1e-12, "{priced:?}");
        assert!(priced.groups.iter().all(|on| on.peak_bytes <= on.memory_bytes * (1.0 + 1e-12)));
        assert_eq!(priced.groups.iter().flat_map(|on| &on.layers).sum::<u32>(), 80);
        assert!(priced.step_seconds <= (1.0 + TIE) * found.choice.step_seconds * (1.0 + TIE));
    }
}

#[test]
fn what_cannot_be_met_is_refused_with_its_reason() {
    let mut small = on("H100", 1);
    small.memory = 4e9;
    let error = of(&recipe(), &[small, small]).expect_err("it does not fit").to_string();
    assert!(error.contains("GiB"), "{error}");
    let mut pinned = recipe();
    pinned.layout.tensor = Some(7);
    let error = of(&pinned, &[on("H100", 1), on("A100", 1)]).expect_err("7 does not divide").to_string();
    assert!(error.contains("must divide"), "{error}");
}

/// Megatron-LM has no zero bubble, and no ZeRO-2 in a pipeline.
#[test]
fn what_is_proposed_for_groups_is_what_the_engine_can_run() {
    let groups = [on("H100", 16), on("A100-80GB", 16)];
    let recipe = recipe();
    let found = of(&recipe, &groups).expect("it fits");
    let Model::Decoder(model) = &recipe.model else { panic!("it is a decoder") };
    let training = crate::engine::TrainingSpec::of(model, &recipe.train);
    for priced in found.ties.iter().chain([&found.choice]) {
        let config = priced.layout.config(found.batch.value as u32);
        let why = crate::engine::MEGATRON.unsupported_layout(
            &training,
            &config.arrangement,
            config.micro_batches() as u32,
        );
        assert_eq!(why, None, "{:?}", priced.layout);
    }
}
