//! What of a recipe is searched.

use super::*;
use crate::sample;

fn recommended() -> Decision<f64> {
    Decision { value: 1e-3, low: 3.3e-4, high: 3e-3, reason: "a test".into() }
}

fn open() -> Recipe {
    let mut recipe = sample::recipe();
    recipe.train.batch = Choice::Log { low: Samples(12), high: Samples(100) };
    recipe.train.warmup = Choice::Log { low: Warmup::Steps(0), high: Warmup::Steps(50) };
    recipe.train.precision = Choice::Among(vec![Precision::Bf16, Precision::F32]);
    recipe
}

fn names(searched: &Searched) -> Vec<&str> {
    searched.space().dimensions().iter().map(|dimension| dimension.name.as_str()).collect()
}

#[test]
fn a_plain_recipe_is_searched_for_its_learning_rate_alone() {
    let searched = Searched::of(&sample::recipe(), Some(&recommended()));
    let scale = Scale::Log { low: 3.3e-4, high: 3e-3 };
    assert_eq!(searched.space().dimensions(), [Dimension::new("train.learning_rate", scale)]);
}

#[test]
fn what_is_pinned_or_has_one_value_is_not_searched() {
    let mut recipe = sample::recipe();
    recipe.train.learning_rate = Choice::Pinned(1e-3);
    recipe.train.batch = Choice::Log { low: Samples(8), high: Samples(15) };
    recipe.train.warmup = Choice::Among(vec![Warmup::Steps(10), Warmup::Steps(10)]);
    recipe.train.precision = Choice::Among(vec![Precision::F32]);
    assert!(names(&Searched::of(&recipe, Some(&recommended()))).is_empty());
}

#[test]
fn a_recipe_takes_what_was_found() {
    let recipe = open();
    let searched = Searched::of(&recipe, Some(&recommended()));
    assert_eq!(names(&searched), ["train.learning_rate", "train.batch", "train.warmup", "train.precision"]);
    let values = searched.space().values(&[1.0, 0.4, 0.0, 0.9]);
    let found = searched.pinned(&recipe, &values);
    assert_eq!(found.train.learning_rate, Choice::Pinned(3e-3));
    assert_eq!(found.train.batch, Choice::Pinned(Samples(24)), "of 12, 24, 48, 96");
    assert_eq!(found.train.warmup, Choice::Pinned(Warmup::Steps(1)));
    assert_eq!(found.train.precision, Choice::Pinned(Precision::Bf16));
    assert!(names(&Searched::of(&found, Some(&recommended()))).is_empty(), "nothing is left open");
    let settings: Vec<String> = searched.settings(&values).into_iter().map(|(_, text)| text).collect();
    assert_eq!(settings, ["0.003", "24", "\"1 steps\"", "\"bf16\""]);
}

#[test]
fn a_seed_is_varied_from_the_one_after_the_recipes() {
    let recipe = sample::recipe();
    let searched = Searched::of(&recipe, Some(&recommended()));
    let (more, seed) = searched.with_seed(&recipe).expect("a model of dtrain has a seed");
    assert_eq!(names(&more), ["train.learning_rate", "train.seed"]);
    let values = [Value::Real(1e-3), Value::Whole(seed + 2)];
    assert!(more.space().place(&values).is_some());
    let found = more.pinned(&recipe, &values);
    assert_eq!((found.train.seed, found.train.learning_rate), (recipe.train.seed + 3, Choice::Pinned(1e-3)));
    assert!(more.with_seed(&recipe).is_none(), "it is varied already");
}

#[test]
fn choices_are_searched_in_their_order() {
    let mut recipe = sample::recipe();
    recipe.train.learning_rate = Choice::Among(vec![1e-2, 1e-3, 1e-2]);
    recipe.train.warmup =
        Choice::Among(vec![Warmup::Tokens(Tokens(512)), Warmup::Steps(3), Warmup::Tokens(Tokens(256))]);
    let searched = Searched::of(&recipe, Some(&recommended()));
    let all: Vec<Vec<Value>> = searched.space().all().expect("four").collect();
    assert_eq!(all[0], [Value::Real(1e-3), Value::Whole(256)]);
    assert_eq!(all.len(), 4);
    let warmup = searched.pinned(&recipe, &all[3]).train.warmup;
    assert_eq!(warmup, Choice::Pinned(Warmup::Tokens(Tokens(512))));
    assert_eq!(searched.settings(&all[3])[1].1, "\"512 tokens\"");
}

#[test]
fn the_plan_is_the_first_trial() {
    let (recipe, host, rates) = (open(), sample::host(4), sample::rates(4));
    let plan = crate::plan(&sample::request(&recipe, &host, Some(&rates))).expect("it fits");
    let searched = Searched::of(&recipe, Some(&plan.learning_rate));
    let values = searched.planned(&plan).expect("every dimension has a value");
    let place = searched.space().point(&values).expect("they are values of the space");
    assert!(place.iter().all(|coordinate| (0.0..=1.0).contains(coordinate)), "{values:?}");
    let rate = values[0].number().expect("a learning rate");
    assert!((rate / plan.learning_rate.value - 1.0).abs() < 0.01, "{rate}");
    let warmup = values[2].number().expect("a count");
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let planned = plan.best().pace.warmup.value as f64;
    assert!((warmup - planned).abs() <= 1.0, "{warmup} {planned}");
}
