//! Tests of the search space of a recipe.

use super::*;
use crate::fixtures;

fn recommended() -> Decision<f64> {
    Decision { value: 1e-3, low: 3.3e-4, high: 3e-3, reason: "a test".into() }
}

fn open() -> Recipe {
    let mut recipe = fixtures::recipe();
    recipe.train.batch = Tunable::Log { low: Samples(12), high: Samples(100) };
    recipe.train.warmup = Tunable::Log { low: Warmup::Steps(0), high: Warmup::Steps(50) };
    recipe.train.precision = Tunable::Among(vec![Precision::Bf16, Precision::F32]);
    recipe
}

fn names(searched: &RecipeSearchSpace) -> Vec<&str> {
    searched.space().dimensions().iter().map(|dimension| dimension.name.as_str()).collect()
}

#[test]
fn a_plain_recipe_is_searched_for_its_learning_rate_alone() {
    let searched = RecipeSearchSpace::of(&fixtures::recipe(), Some(&recommended()));
    let scale = Scale::Log { low: 3.3e-4, high: 3e-3 };
    assert_eq!(searched.space().dimensions(), [Dimension::new("train.learning_rate", scale)]);
}

#[test]
fn what_is_pinned_or_has_one_value_is_not_searched() {
    let mut recipe = fixtures::recipe();
    recipe.train.learning_rate = Tunable::Pinned(1e-3);
    recipe.train.batch = Tunable::Log { low: Samples(8), high: Samples(15) };
    recipe.train.warmup = Tunable::Among(vec![Warmup::Steps(10), Warmup::Steps(10)]);
    recipe.train.precision = Tunable::Among(vec![Precision::F32]);
    assert!(names(&RecipeSearchSpace::of(&recipe, Some(&recommended()))).is_empty());
}

#[test]
fn a_recipe_takes_what_was_found() {
    let recipe = open();
    let searched = RecipeSearchSpace::of(&recipe, Some(&recommended()));
    assert_eq!(names(&searched), ["train.learning_rate", "train.batch", "train.warmup", "train.precision"]);
    let values = searched.space().values(&[1.0, 0.4, 0.0, 0.9]);
    let found = searched.recipe_with(&recipe, &values);
    assert_eq!(found.train.learning_rate, Tunable::Pinned(3e-3));
    assert_eq!(found.train.batch, Tunable::Pinned(Samples(24)), "of 12, 24, 48, 96");
    assert_eq!(found.train.warmup, Tunable::Pinned(Warmup::Steps(1)));
    assert_eq!(found.train.precision, Tunable::Pinned(Precision::Bf16));
    assert!(names(&RecipeSearchSpace::of(&found, Some(&recommended()))).is_empty(), "nothing is left open");
    let settings: Vec<String> = searched.settings(&values).into_iter().map(|(_, text)| text).collect();
    assert_eq!(settings, ["0.003", "24", "\"1 steps\"", "\"bf16\""]);
}

#[test]
fn a_seed_is_varied_from_the_one_after_the_recipes() {
    let recipe = fixtures::recipe();
    let searched = RecipeSearchSpace::of(&recipe, Some(&recommended()));
    let (more, seed) = searched.with_seed(&recipe).expect("a model of dtrain has a seed");
    assert_eq!(names(&more), ["train.learning_rate", "train.seed"]);
    let values = [TrialValue::Real(1e-3), TrialValue::Whole(seed + 2)];
    assert!(more.space().coordinates(&values).is_some());
    let found = more.recipe_with(&recipe, &values);
    assert_eq!((found.train.seed, found.train.learning_rate), (recipe.train.seed + 3, Tunable::Pinned(1e-3)));
    assert!(more.with_seed(&recipe).is_none(), "it is varied already");
}

#[test]
fn choices_are_searched_in_their_order() {
    let mut recipe = fixtures::recipe();
    recipe.train.learning_rate = Tunable::Among(vec![1e-2, 1e-3, 1e-2]);
    recipe.train.warmup =
        Tunable::Among(vec![Warmup::Tokens(Tokens(512)), Warmup::Steps(3), Warmup::Tokens(Tokens(256))]);
    let searched = RecipeSearchSpace::of(&recipe, Some(&recommended()));
    let all: Vec<Vec<TrialValue>> = searched.space().all().expect("four").collect();
    assert_eq!(all[0], [TrialValue::Real(1e-3), TrialValue::Whole(256)]);
    assert_eq!(all.len(), 4);
    let warmup = searched.recipe_with(&recipe, &all[3]).train.warmup;
    assert_eq!(warmup, Tunable::Pinned(Warmup::Tokens(Tokens(512))));
    assert_eq!(searched.settings(&all[3])[1].1, "\"512 tokens\"");
}

#[test]
fn the_plan_is_the_first_trial() {
    let (recipe, host, rates) = (open(), fixtures::host(4), fixtures::rates(4));
    let plan = crate::plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("it fits");
    let searched = RecipeSearchSpace::of(&recipe, Some(&plan.learning_rate));
    let values = searched.planned_values(&plan).expect("every dimension has a value");
    let place = searched.space().point(&values).expect("they are values of the space");
    assert!(place.iter().all(|coordinate| (0.0..=1.0).contains(coordinate)), "{values:?}");
    let rate = values[0].number().expect("a learning rate");
    assert!((rate / plan.learning_rate.value - 1.0).abs() < 0.01, "{rate}");
    let warmup = values[2].number().expect("a count");
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let planned = plan.best().run_length.warmup.value as f64;
    assert!((warmup - planned).abs() <= 1.0, "{warmup} {planned}");
}
