use super::*;
use crate::fixtures;
use crate::planning::plan;
use crate::text::{WIDTH, wrapped};
use dtrain_recipes::{Interval, Mlp, Samples, StopConditions, Tunable};

fn shown(text: &str) -> String {
    let text = wrapped(text, WIDTH);
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(widest <= WIDTH, "a line has {widest} columns");
    text
}

#[test]
fn a_plan_in_full_tells_every_value_with_all_that_costs_time() {
    let (mut recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
    recipe.cluster.price = Some(0.05);
    let plan = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("the sample fits");
    insta::assert_snapshot!(shown(&explain(&plan)));
}

#[test]
fn a_plan_from_the_data_sheet_says_so() {
    let (mut recipe, host) = (fixtures::recipe(), fixtures::host(1));
    let mlp =
        Mlp { inputs: 4, hidden: vec![32], classes: 3, activation: dtrain_recipes::MlpActivation::Relu };
    recipe.model = Model::Mlp(mlp);
    recipe.train.batch = Tunable::Auto;
    recipe.objective.stop = StopConditions { samples: Some(Samples(12_000)), ..StopConditions::default() };
    let plan = plan(&fixtures::request(&recipe, &host, None)).expect("the sample fits");
    insta::assert_snapshot!(shown(&explain(&plan)));
}

#[test]
fn a_plan_for_a_host_that_fails_says_what_the_failures_cost() {
    let (mut recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
    let rows = |recipe: &dtrain_recipes::Recipe| {
        let plan = plan(&fixtures::request(recipe, &host, Some(&rates))).expect("the sample fits");
        let read = Plan::read(&serde_json::to_value(&plan).expect("a plan is JSON"));
        assert_eq!(read.expect("it was just written"), plan);
        let mut text = String::new();
        checkpoints::write_checkpoints(&mut text, &plan, plan.best());
        shown(&text)
    };
    recipe.cluster.mtbf = Some(Seconds(3600.0));
    let hourly = rows(&recipe);
    recipe.cluster.mtbf = Some(Seconds(600.0));
    let often = rows(&recipe);
    recipe.checkpoint.every = Interval::Steps(100);
    recipe.cluster.mtbf = None;
    insta::assert_snapshot!([hourly, often, rows(&recipe)].join("\n"));
}

#[test]
fn a_plan_fits_any_width_and_no_word_is_cut() {
    let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
    let plan = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("the sample fits");
    let text = explain(&plan) + &summary(&plan);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for width in [40, 60, 80, 100, 300] {
        let shown = wrapped(&text, width);
        let widest = shown.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(widest <= width.min(WIDTH), "{widest} of {width} columns:\n{shown}");
        assert_eq!(words(&shown), words(&text));
    }
}
