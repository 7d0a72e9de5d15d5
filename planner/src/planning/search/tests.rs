use super::*;
use crate::choice::pareto_front::pareto_front;
use crate::fixtures;
use crate::layout::space::{CandidateId, CandidateSpace, Capabilities};
use crate::price::cost_model::Feasibility;
use crate::rates::calibrate::Factors;
use crate::rates::cost_inputs::CostInputs;
use dtrain_protocol::{Arrangement, HostFacts, Rates};
use dtrain_recipes::{Model, Recipe};
use proptest::prelude::*;
use std::num::NonZeroU64;

fn everything(_: &Arrangement, _: &Model) -> Option<String> {
    None
}

fn case<'a>(recipe: &'a Recipe, host: &'a HostFacts, rates: Option<&'a Rates>) -> CostInputs<'a> {
    CostInputs {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host,
        group: None,
        engine: None,
        rates,
        factors: Factors::default(),
    }
}

fn space(recipe: &Recipe, host: &HostFacts, rates: Option<&Rates>, batch: u64) -> CandidateSpace {
    let abilities = Capabilities { worker: everything, engine: None, is_run: false };
    CandidateSpace::of(recipe, host, rates, NonZeroU64::new(batch).expect("positive"), &abilities)
}

fn ids(space: &CandidateSpace) -> Vec<CandidateId> {
    space.candidate_ids().collect()
}

/// Returns the fastest candidate that fits, without argmin.
fn brute(cost_model: &CostModel<'_>) -> Option<(f64, CandidateId)> {
    let priced = ids(cost_model.space()).into_iter().filter_map(|id| match cost_model.feasibility(id) {
        Feasibility::Fits(cost) => Some((cost.step_seconds, id)),
        Feasibility::TooMuch(_) => None,
    });
    priced.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn exhaustive_finds_what_brute_force_finds(cores in 1u32..9, batch in 1u64..65, gib in 1u64..4, measured: bool) {
        let recipe = fixtures::recipe();
        let host = HostFacts { memory_bytes: gib << 28, ..fixtures::host(cores) };
        let rates = measured.then(|| fixtures::rates(cores));
        let space = space(&recipe, &host, rates.as_ref(), batch);
        let cost_model = CostModel::new(case(&recipe, &host, rates.as_ref()), &space);
        let ranking = exhaustive::rank(&cost_model, 5);
        prop_assert_eq!(ranking.best.first().copied(), brute(&cost_model));
        prop_assert_eq!(ranking.priced, space.len());
        prop_assert!(ranking.best.len() <= 5);
        prop_assert!(ranking.best.windows(2).all(|w| w[0].0 <= w[1].0));
        let fitting = ids(&space).into_iter().filter_map(|id| match cost_model.feasibility(id) {
            Feasibility::Fits(cost) => Some((cost, id)),
            Feasibility::TooMuch(_) => None,
        });
        prop_assert_eq!(ranking.front.into_points(), pareto_front(fitting));
    }
}

#[test]
fn every_value_of_every_axis_has_its_champion() {
    let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(4), fixtures::rates(4));
    let space = space(&recipe, &host, Some(&rates), 16);
    let cost_model = CostModel::new(case(&recipe, &host, Some(&rates)), &space);
    let ranking = exhaustive::rank(&cost_model, 1);
    let best_with = |axis: &str, value: &str| {
        let mut with = ids(&space);
        with.retain(|id| ranking.values(*id).any(|own| own == (axis, value)));
        let seconds = |id: &CandidateId| match cost_model.feasibility(*id) {
            Feasibility::Fits(cost) => cost.step_seconds,
            Feasibility::TooMuch(_) => f64::INFINITY,
        };
        with.into_iter().map(|id| (seconds(&id), id)).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
    };
    let best_per_axis: Vec<_> =
        ranking.best_per_axis().map(|(axis, value, id)| (axis, value.to_string(), id)).collect();
    for (axis, value) in [
        ("ranks", "4 ranks × 1 thread"),
        ("tensor", "2"),
        ("zero", "3"),
        ("recompute", "full"),
        ("micro-batch", "8"),
        ("pipeline", "4"),
    ] {
        let found =
            best_per_axis.iter().find(|(a, v, _)| (*a, v.as_str()) == (axis, value)).map(|found| found.2);
        assert_eq!(found, best_with(axis, value).map(|(_, id)| id), "{axis} {value}");
    }
}

#[test]
fn the_causes_of_a_step_are_the_parts_of_its_time() {
    let (host, rates) = (fixtures::host(4), fixtures::rates(4));
    for model in [fixtures::llama(), fixtures::experts()] {
        let recipe = Recipe { model, ..fixtures::recipe() };
        let space = space(&recipe, &host, Some(&rates), 16);
        let cost_model = CostModel::new(case(&recipe, &host, Some(&rates)), &space);
        let mut seen = [false; 14];
        for id in ids(&space) {
            let (time, causes) = (cost_model.time(id), cost_model.causes(id));
            let communication = causes.gradients
                + causes.weights
                + causes.tensor
                + causes.context
                + causes.expert
                + causes.tied
                + causes.figures
                + causes.replicas;
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * time.total();
            let what = space.candidate(id, 0.0);
            assert!(near(communication, time.communication), "{what}: {causes:?} and {time:?}");
            assert!(near(causes.total(), time.total()), "{what}: {causes:?} and {time:?}");
            assert!(causes.parts().iter().all(|(_, seconds)| *seconds >= 0.0), "{what}: {causes:?}");
            seen.iter_mut().zip(causes.parts()).for_each(|(seen, (_, seconds))| *seen |= seconds > 0.0);
        }
        let unseen: Vec<_> = cost_model
            .causes(ids(&space)[0])
            .parts()
            .into_iter()
            .zip(seen)
            .filter(|(_, seen)| !seen)
            .map(|((name, _), _)| name)
            .collect();
        assert!(unseen.iter().all(|name| ["experts", "tied embedding"].contains(name)), "{unseen:?}");
    }
}

#[test]
fn annealing_finds_the_exhaustive_optimum_of_small_spaces() {
    for (cores, batch) in [(2, 32), (4, 24), (6, 36), (8, 64)] {
        let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(cores), fixtures::rates(cores));
        let space = space(&recipe, &host, Some(&rates), batch);
        let cost_model = CostModel::new(case(&recipe, &host, Some(&rates)), &space);
        let exact = exhaustive::rank(&cost_model, 1).best[0];
        let found =
            (0..8).filter(|seed| anneal::rank(&cost_model, *seed, 1, 20_000).best[0].0 == exact.0).count();
        assert!(found >= 7, "{cores} cores, {} candidates: found by {found} of 8 seeds", space.len());
    }
}

#[test]
fn the_same_seed_anneals_the_same_way() {
    let (recipe, host) = (fixtures::recipe(), fixtures::host(6));
    let space = space(&recipe, &host, None, 48);
    let cost_model = CostModel::new(case(&recipe, &host, None), &space);
    let path = |seed| anneal::rank(&cost_model, seed, 20, 500).best;
    assert_eq!(path(3), path(3));
    assert_ne!(path(3), path(4), "another seed sees other candidates");
}

#[test]
fn nothing_that_fits_is_an_answer_and_not_an_error() {
    let recipe = fixtures::recipe();
    let host = HostFacts { memory_bytes: 1 << 20, ..fixtures::host(2) };
    let space = space(&recipe, &host, None, 8);
    let cost_model = CostModel::new(case(&recipe, &host, None), &space);
    for ranking in [exhaustive::rank(&cost_model, 3), anneal::rank(&cost_model, 0, 3, 50)] {
        assert!(ranking.best.is_empty() && ranking.nearest.is_some());
        assert_eq!(ranking.too_large, ranking.priced);
    }
}

#[test]
fn a_walked_pipeline_is_close_to_its_closed_form() {
    let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(4), fixtures::rates(4));
    let space = space(&recipe, &host, Some(&rates), 64);
    let cost_model = CostModel::new(case(&recipe, &host, Some(&rates)), &space);
    let mut deep = 0;
    for id in ids(&space) {
        let Feasibility::Fits(cost) = cost_model.feasibility(id) else { continue };
        let closed = cost.step_seconds;
        let walked = cost_model.time(id).total();
        deep += u32::from(space.options[id.option as usize].arrangement.layout.pipeline.get() > 1);
        assert!(
            // One micro-batch on uneven stages differs most: weight gradients overlap with waits of other
            // stages.
            (closed / walked - 1.0).abs() < 0.12,
            "{}: {closed} and {walked}",
            space.candidate(id, 0.0)
        );
    }
    assert!(deep > 100, "the space has pipelines");
}

/// Prints the time to price a candidate; asserts no limit.
#[test]
fn the_price_of_a_candidate_is_printed() {
    let (recipe, host) = (fixtures::recipe(), fixtures::host(48));
    let space = space(&recipe, &host, None, 960);
    let cost_model = CostModel::new(case(&recipe, &host, None), &space);
    let began = std::time::Instant::now();
    let ranking = exhaustive::rank(&cost_model, 20);
    let each = began.elapsed().as_secs_f64() / ranking.priced as f64;
    eprintln!("{} candidates, {:.0} ns each", ranking.priced, each * 1e9);
    assert_eq!(ranking.priced, space.len());
}
