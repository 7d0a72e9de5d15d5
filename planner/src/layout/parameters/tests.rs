//! Parameter counts, compared with those of the recipe.

use super::*;
use crate::fixtures;
use dtrain_protocol::Rank;
use dtrain_recipes::{AdaptedLayers, Lora};
use std::num::NonZeroU32;

fn n(degree: u32) -> NonZeroU32 {
    NonZeroU32::new(degree).expect("degrees start at one")
}

#[test]
fn all_parts_together_are_the_model() {
    let more = [fixtures::gpt2(), fixtures::deepseek(), Model::Custom(fixtures::own())];
    for model in fixtures::models().into_iter().chain(more) {
        let parts = ModelParameters::of(&model, &Layout::SINGLE, Coord([0; 5]));
        assert_eq!(parts.stage(&Arrangement::SINGLE, 0).all().all(), model.parameters());
        let mut units = 0;
        parts.for_each_unit(&Arrangement::SINGLE, 0, |unit, _, count| units += count * unit.values.all());
        assert_eq!(units, model.parameters());
    }
}

#[test]
fn adapters_are_what_is_trained_and_all_other_weights_are_frozen() {
    let Model::Decoder(llama) = fixtures::llama() else { panic!("a decoder") };
    let lora = Lora { rank: 4, alpha: 8.0, layers: AdaptedLayers::All, base: None };
    let model = Model::Decoder(Decoder { lora: Some(lora), ..llama.clone() });
    let parts = ModelParameters::of(&model, &Layout::SINGLE, Coord([0; 5]));
    assert_eq!(parts.stage(&Arrangement::SINGLE, 0).all().all(), model.trained_parameters());
    assert_eq!(parts.frozen(&Arrangement::SINGLE, 0).all(), llama.parameters());
    let layout = Layout { tensor: n(2), ..Layout::SINGLE };
    let half = ModelParameters::of(&model, &layout, Coord([0; 5])).stage(&Arrangement::SINGLE, 0).all();
    assert_eq!(2 * (half.all() - half.whole) + half.whole, model.trained_parameters());
}

#[test]
fn the_stages_of_a_pipeline_together_hold_the_model_and_a_tied_embedding_twice() {
    let gpt = fixtures::gpt2();
    for model in [gpt.clone(), fixtures::deepseek(), Model::Custom(fixtures::own())]
        .into_iter()
        .chain(fixtures::models())
    {
        for stages in 1..=model.blocks().min(4) {
            let layout = Layout { pipeline: n(stages), ..Layout::SINGLE };
            let arrangement = Arrangement { layout, ..Arrangement::SINGLE };
            let parts = ModelParameters::of(&model, &layout, Coord([0; 5]));
            let held: u64 = (0..stages).map(|s| parts.stage(&arrangement, s).all().all()).sum();
            let again = if model == gpt && stages > 1 { 50_257 * 768 } else { 0 };
            assert_eq!(held, model.parameters() + again, "{stages} stages");
        }
    }
}

#[test]
fn tensor_parallel_ranks_hold_the_model_and_what_is_whole_each() {
    for (model, ways) in
        [(fixtures::gpt2(), 2), (fixtures::gpt2(), 4), (fixtures::llama(), 4), (fixtures::deepseek(), 2)]
    {
        let layout = Layout { tensor: n(ways), ..Layout::SINGLE };
        let of = |rank| {
            ModelParameters::of(&model, &layout, layout.coord(Rank(rank)))
                .stage(&Arrangement::SINGLE, 0)
                .all()
        };
        let held: u64 = (0..ways).map(|rank| of(rank).all()).sum();
        assert_eq!(held, model.parameters() + u64::from(ways - 1) * of(0).whole);
        let most = ModelParameters::largest(&model, &layout).stage(&Arrangement::SINGLE, 0).all();
        assert!((0..ways).all(|rank| of(rank).all() <= most.all()), "50,257 does not divide");
    }
    // GPT-2 holds whole: 25 norms of 2·768, 24 row biases of 768, 1,024 positions of 768.
    let layout = Layout { tensor: n(2), ..Layout::SINGLE };
    let whole =
        ModelParameters::largest(&fixtures::gpt2(), &layout).stage(&Arrangement::SINGLE, 0).all().whole;
    assert_eq!(whole, 768 * (25 * 2 + 24 + 1024));
}
