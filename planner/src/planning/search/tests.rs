use super::*;
use crate::choice::front::front;
use crate::layout::space::{Abilities, Place, Space};
use crate::price::judge::{Case, Verdict};
use crate::rates::calibrate::Factors;
use crate::sample;
use dtrain_protocol::{Arrangement, HostFacts, Rates};
use dtrain_recipes::{Model, Recipe};
use proptest::prelude::*;
use std::num::NonZeroU64;

fn everything(_: &Arrangement, _: &Model) -> Option<String> {
    None
}

fn case<'a>(recipe: &'a Recipe, host: &'a HostFacts, rates: Option<&'a Rates>) -> Case<'a> {
    Case {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host,
        engine: None,
        rates,
        factors: Factors::default(),
    }
}

fn space(recipe: &Recipe, host: &HostFacts, rates: Option<&Rates>, batch: u64) -> Space {
    let abilities = Abilities { worker: everything, engine: None };
    Space::of(recipe, host, rates, NonZeroU64::new(batch).expect("positive"), &abilities)
}

fn places(space: &Space) -> Vec<Place> {
    space.places().collect()
}

/// The fastest that fits, without argmin.
fn brute(judge: &Judge<'_>) -> Option<(f64, Place)> {
    let priced = places(judge.space()).into_iter().filter_map(|place| match judge.verdict(place) {
        Verdict::Fits(cost) => Some((cost.step_seconds, place)),
        Verdict::TooMuch(_) => None,
    });
    priced.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn exhaustive_finds_what_brute_force_finds(cores in 1u32..9, batch in 1u64..65, gib in 1u64..4, measured: bool) {
        let recipe = sample::recipe();
        let host = HostFacts { memory_bytes: gib << 28, ..sample::host(cores) };
        let rates = measured.then(|| sample::rates(cores));
        let space = space(&recipe, &host, rates.as_ref(), batch);
        let judge = Judge::new(case(&recipe, &host, rates.as_ref()), &space);
        let ranking = exhaustive::rank(&judge, 5);
        prop_assert_eq!(ranking.best.first().copied(), brute(&judge));
        prop_assert_eq!(ranking.priced, space.len());
        prop_assert!(ranking.best.len() <= 5);
        prop_assert!(ranking.best.windows(2).all(|w| w[0].0 <= w[1].0));
        let fitting = places(&space).into_iter().filter_map(|place| match judge.verdict(place) {
            Verdict::Fits(cost) => Some((cost, place)),
            Verdict::TooMuch(_) => None,
        });
        prop_assert_eq!(ranking.front.into_points(), front(fitting));
    }
}

#[test]
fn every_value_of_every_axis_has_its_champion() {
    let (recipe, host, rates) = (sample::recipe(), sample::host(4), sample::rates(4));
    let space = space(&recipe, &host, Some(&rates), 16);
    let judge = Judge::new(case(&recipe, &host, Some(&rates)), &space);
    let ranking = exhaustive::rank(&judge, 1);
    let best_with = |axis: &str, value: &str| {
        let mut with = places(&space);
        with.retain(|place| ranking.values(*place).any(|own| own == (axis, value)));
        let seconds = |place: &Place| match judge.verdict(*place) {
            Verdict::Fits(cost) => cost.step_seconds,
            Verdict::TooMuch(_) => f64::INFINITY,
        };
        with.into_iter()
            .map(|place| (seconds(&place), place))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
    };
    let champions: Vec<_> =
        ranking.champions().map(|(axis, value, place)| (axis, value.to_string(), place)).collect();
    for (axis, value) in [
        ("ranks", "4 ranks × 1 thread"),
        ("tensor", "2"),
        ("zero", "3"),
        ("recompute", "full"),
        ("micro-batch", "8"),
        ("pipeline", "4"),
    ] {
        let found = champions.iter().find(|(a, v, _)| (*a, v.as_str()) == (axis, value)).map(|found| found.2);
        assert_eq!(found, best_with(axis, value).map(|(_, place)| place), "{axis} {value}");
    }
}

#[test]
fn the_causes_of_a_step_are_the_parts_of_its_time() {
    let (host, rates) = (sample::host(4), sample::rates(4));
    for model in [sample::llama(), sample::experts()] {
        let recipe = Recipe { model, ..sample::recipe() };
        let space = space(&recipe, &host, Some(&rates), 16);
        let judge = Judge::new(case(&recipe, &host, Some(&rates)), &space);
        let mut seen = [false; 14];
        for place in places(&space) {
            let (time, causes) = (judge.time(place), judge.causes(place));
            let communication = causes.gradients
                + causes.weights
                + causes.tensor
                + causes.context
                + causes.expert
                + causes.tied
                + causes.figures
                + causes.replicas;
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * time.total();
            let what = space.candidate(place, 0.0);
            assert!(near(communication, time.communication), "{what}: {causes:?} and {time:?}");
            assert!(near(causes.total(), time.total()), "{what}: {causes:?} and {time:?}");
            assert!(causes.parts().iter().all(|(_, seconds)| *seconds >= 0.0), "{what}: {causes:?}");
            seen.iter_mut().zip(causes.parts()).for_each(|(seen, (_, seconds))| *seen |= seconds > 0.0);
        }
        let unseen: Vec<_> = judge
            .causes(places(&space)[0])
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
        let (recipe, host, rates) = (sample::recipe(), sample::host(cores), sample::rates(cores));
        let space = space(&recipe, &host, Some(&rates), batch);
        let judge = Judge::new(case(&recipe, &host, Some(&rates)), &space);
        let exact = exhaustive::rank(&judge, 1).best[0];
        let found = (0..8).filter(|seed| anneal::rank(&judge, *seed, 1, 20_000).best[0].0 == exact.0).count();
        assert!(found >= 7, "{cores} cores, {} candidates: found by {found} of 8 seeds", space.len());
    }
}

#[test]
fn the_same_seed_anneals_the_same_way() {
    let (recipe, host) = (sample::recipe(), sample::host(6));
    let space = space(&recipe, &host, None, 48);
    let judge = Judge::new(case(&recipe, &host, None), &space);
    let path = |seed| anneal::rank(&judge, seed, 20, 500).best;
    assert_eq!(path(3), path(3));
    assert_ne!(path(3), path(4), "another seed sees other candidates");
}

#[test]
fn nothing_that_fits_is_an_answer_and_not_an_error() {
    let recipe = sample::recipe();
    let host = HostFacts { memory_bytes: 1 << 20, ..sample::host(2) };
    let space = space(&recipe, &host, None, 8);
    let judge = Judge::new(case(&recipe, &host, None), &space);
    for ranking in [exhaustive::rank(&judge, 3), anneal::rank(&judge, 0, 3, 50)] {
        assert!(ranking.best.is_empty() && ranking.nearest.is_some());
        assert_eq!(ranking.too_large, ranking.priced);
    }
}

#[test]
fn a_walked_pipeline_is_close_to_its_closed_form() {
    let (recipe, host, rates) = (sample::recipe(), sample::host(4), sample::rates(4));
    let space = space(&recipe, &host, Some(&rates), 64);
    let judge = Judge::new(case(&recipe, &host, Some(&rates)), &space);
    let mut deep = 0;
    for place in places(&space) {
        let Verdict::Fits(cost) = judge.verdict(place) else { continue };
        let closed = cost.step_seconds;
        let walked = judge.time(place).total();
        deep += u32::from(space.ways[place.way as usize].arrangement.layout.pipeline.get() > 1);
        assert!(
            // One micro-batch on uneven stages parts most: gradients of weights run beside what others wait for.
            (closed / walked - 1.0).abs() < 0.12,
            "{}: {closed} and {walked}",
            space.candidate(place, 0.0)
        );
    }
    assert!(deep > 100, "the space has pipelines");
}

/// Prints how long a candidate takes; says nothing about how long it may take.
#[test]
fn the_price_of_a_candidate_is_printed() {
    let (recipe, host) = (sample::recipe(), sample::host(48));
    let space = space(&recipe, &host, None, 960);
    let judge = Judge::new(case(&recipe, &host, None), &space);
    let began = std::time::Instant::now();
    let ranking = exhaustive::rank(&judge, 20);
    let each = began.elapsed().as_secs_f64() / ranking.priced as f64;
    eprintln!("{} candidates, {:.0} ns each", ranking.priced, each * 1e9);
    assert_eq!(ranking.priced, space.len());
}
