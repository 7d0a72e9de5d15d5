//! Compares every sampler with random search, and checks the properties that all have in common.

use super::runs::Runs;
use super::toys::{self, Toy};
use crate::tune::outcome::median;
use crate::tune::{
    Dimension, ProposalSource, Sampler, Scale, SearchSpace, SlotAction, Study, StudyEvent, StudySolver,
    TrialOutcome, TrialResult, TrialValue,
};
use dtrain_protocol::shuffle::splitmix64;
use proptest::prelude::*;
use std::cell::Cell;

const LEARNING: [Sampler; 5] =
    [Sampler::Auto, Sampler::Tpe, Sampler::CmaEs, Sampler::Swarm, Sampler::Evolution];

const ALL: [Sampler; 8] = [
    Sampler::Auto,
    Sampler::Grid { levels: 3 },
    Sampler::Random,
    Sampler::Sobol,
    Sampler::Tpe,
    Sampler::CmaEs,
    Sampler::Swarm,
    Sampler::Evolution,
];

/// Returns the lowest cost of a study.
fn lowest(sampler: Sampler, toy: Toy, trials: u64, slots: usize) -> f64 {
    let study = Study { sampler, trials: Some(trials), ..Study::new((toy.space)(), toy.seed) };
    let search = StudySolver::new(study, Vec::new()).run(Runs::new(toy, slots));
    search.ended().iter().filter_map(TrialResult::value).fold(f64::INFINITY, f64::min)
}

#[test]
fn every_sampler_that_learns_beats_chance() {
    let quiet = |seed| Toy { noise: 0.0, ..toys::recipe(seed) };
    for slots in [1, 4] {
        let middle = |sampler| {
            let found = (0..11).map(|seed| lowest(sampler, quiet(seed), 50, slots));
            median(found.collect()).expect("seeds") - 2.0
        };
        let chance = middle(Sampler::Random);
        for sampler in LEARNING {
            let found = middle(sampler);
            assert!(found < 0.6 * chance, "{sampler:?} with {slots} slots: {found}, by chance {chance}");
        }
    }
}

/// Returns a space with an optimizer that has a setting of its own for each kind, and one more below that.
fn conditional() -> SearchSpace {
    let word = |word: &str| TrialValue::Word(word.into());
    let names = Scale::Names(["sgd", "adam"].map(word).to_vec());
    let flags = Scale::Names([false, true].map(TrialValue::Flag).to_vec());
    let on = |k: usize, value: TrialValue| vec![(k, vec![value])];
    let unit = Scale::Uniform { low: 0.0, high: 1.0 };
    SearchSpace::new(vec![
        Dimension::new("optimizer", names),
        Dimension { when: on(0, word("sgd")), ..Dimension::new("momentum", unit.clone()) },
        Dimension { when: on(0, word("adam")), ..Dimension::new("beta", unit) },
        Dimension { when: on(0, word("sgd")), ..Dimension::new("nesterov", flags) },
        Dimension {
            when: on(3, TrialValue::Flag(true)),
            ..Dimension::new("depth", Scale::Integers { low: -3, high: 40 })
        },
    ])
}

/// A cost that is lowest with Adam and a beta of 0.8, far from the middle, where inactive dimensions are put.
fn cost(values: &[TrialValue]) -> f64 {
    match (values[1].number(), values[2].number()) {
        (None, Some(beta)) => (beta - 0.8).powi(2),
        (Some(momentum), None) => 0.3 + (momentum - 0.2).powi(2),
        other => panic!("one of the two exists: {other:?}"),
    }
}

#[test]
fn what_exists_only_sometimes_is_searched_where_it_does() {
    for sampler in [Sampler::Auto, Sampler::Tpe, Sampler::Gaussian { start: 10 }, Sampler::Evolution] {
        let study = Study { sampler, ..Study::new(conditional(), 3) };
        let mut log = Vec::new();
        for _ in 0..40 {
            let SlotAction::Launch(proposal) = study.next(&log) else {
                panic!("a continuum is never exhausted")
            };
            assert!(
                conditional().coordinates(&proposal.values).is_some(),
                "{sampler:?}: {:?}",
                proposal.values
            );
            log.push(proposal.launched());
            let outcome = TrialOutcome::done(cost(&proposal.values));
            log.push(StudyEvent::Ended { trial: proposal.trial, outcome });
        }
        let best = study.recommend(&log).expect("forty ended");
        assert!(best.measured < 2e-3, "{sampler:?}: {best:?}");
    }
}

#[test]
fn most_of_the_space_may_be_conditional_and_then_tpe_is_asked() {
    let study = Study::new(conditional(), 1);
    let mut log = Vec::new();
    for trial in 0..12 {
        let SlotAction::Launch(proposal) = study.next(&log) else { panic!("a continuum is never exhausted") };
        assert_eq!(matches!(proposal.source, ProposalSource::Tpe { .. }), trial >= 10, "{proposal:?}");
        log.push(proposal.launched());
        log.push(StudyEvent::Ended { trial, outcome: TrialOutcome::done(cost(&proposal.values)) });
    }
}

/// Returns the origins of the proposals of a study with the default sampler, and the first values.
fn sources(trials: u64, cost: fn(f64, u64) -> f64) -> (Vec<ProposalSource>, Vec<TrialValue>) {
    let unit = Scale::Uniform { low: 0.0, high: 1.0 };
    let study =
        Study::new(SearchSpace::new(vec![Dimension::new("x", unit.clone()), Dimension::new("y", unit)]), 4);
    let (mut log, mut proposals) = (Vec::new(), Vec::new());
    for trial in 0..trials {
        let SlotAction::Launch(proposal) = study.next(&log) else { panic!("a continuum is never exhausted") };
        let [x, y] = [0, 1].map(|k| proposal.values[k].number().expect("it is a number"));
        let outcome = TrialOutcome::done(cost((x - 0.3).powi(2) + (y - 0.8).powi(2), trial));
        log.extend([proposal.launched(), StudyEvent::Ended { trial, outcome }]);
        proposals.push(proposal);
    }
    (proposals.iter().map(|one| one.source).collect(), proposals[0].values.clone())
}

#[test]
fn the_usual_sampler_begins_at_the_center_and_asks_tpe_where_there_is_noise() {
    let (noisy, first) =
        sources(21, |cost, trial| cost + if splitmix64(5, trial).is_multiple_of(2) { 1.0 } else { 0.0 });
    assert_eq!(first, [0.5, 0.5].map(TrialValue::Real));
    let is_tpe = |source: &ProposalSource| matches!(source, ProposalSource::Tpe { .. });
    assert!(noisy.iter().any(is_tpe), "{noisy:?}");
    assert!(noisy.iter().filter(|source| is_tpe(source)).count() <= 3, "at 12, 16 and 20");
    let (exact, _) = sources(21, |cost, _| cost);
    // A dozen trials may not be enough to tell that there is no noise.
    assert!(!exact[13..].iter().any(is_tpe), "{exact:?}");
    assert!(matches!(exact[20], ProposalSource::Model { .. }), "{exact:?}");
}

#[test]
fn a_grid_is_all_combinations_with_its_ends() {
    let space = SearchSpace::new(vec![
        Dimension::new("x", Scale::Uniform { low: -1.0, high: 1.0 }),
        Dimension::new("n", Scale::Integers { low: 0, high: 1 }),
    ]);
    let study = Study { sampler: Sampler::Grid { levels: 3 }, ..Study::new(space, 0) };
    let mut log = Vec::new();
    let mut found = Vec::new();
    while let SlotAction::Launch(proposal) = study.next(&log) {
        log.push(proposal.launched());
        log.push(StudyEvent::Ended { trial: proposal.trial, outcome: TrialOutcome::done(0.0) });
        found.push((proposal.values[0].number().expect("x"), proposal.values[1].number().expect("n")));
    }
    assert_eq!(found, [(-1.0, 0.0), (-1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Every proposal is allowed, in the space and untried; and the number of draws is bounded.
    #[test]
    fn constraints_hold_before_a_trial_exists(
        sampler in prop::sample::select(&ALL[..]),
        seed in any::<u64>(),
        most in 0.0f64..1.0,
        trials in 1u64..24,
    ) {
        let study = Study { sampler, ..Study::new(conditional(), seed) };
        let asked = Cell::new(0u32);
        let allowed = |values: &[TrialValue]| {
            asked.set(asked.get() + 1);
            values[1].number().or(values[2].number()).is_some_and(|number| number <= most)
        };
        let mut log = Vec::new();
        let mut tried: Vec<Vec<TrialValue>> = Vec::new();
        for trial in 0..trials {
            asked.set(0);
            let next = study.next_allowed(&log, &allowed);
            prop_assert!(asked.get() < 20_000, "{} draws", asked.get());
            let proposal = match next {
                SlotAction::Launch(proposal) => proposal,
                other => {
                    prop_assert!(matches!(other, SlotAction::Finished(_)));
                    break;
                }
            };
            prop_assert!(allowed(&proposal.values) && study.space.coordinates(&proposal.values).is_some());
            prop_assert!(!tried.contains(&proposal.values), "{:?} again", proposal.values);
            tried.push(proposal.values.clone());
            log.push(proposal.launched());
            log.push(StudyEvent::Ended { trial, outcome: TrialOutcome::done(cost(&proposal.values)) });
        }
    }
}

#[test]
fn a_space_in_which_nothing_is_allowed_is_exhausted() {
    for sampler in ALL {
        let study = Study { sampler, ..Study::new(conditional(), 5) };
        assert!(matches!(study.next_allowed(&[], &|_| false), SlotAction::Finished(_)), "{sampler:?}");
    }
}

/// The time of a proposal is measured by the bench `tuner`.
#[test]
fn a_thousand_trials_are_each_proposed_once_and_ended() {
    for sampler in [Sampler::Tpe, Sampler::CmaEs, Sampler::Swarm, Sampler::Evolution] {
        let toy = toys::recipe(1);
        let study = Study { sampler, trials: Some(1000), ..Study::new((toy.space)(), toy.seed) };
        let mut runs = Runs::new(toy, 4);
        let search = StudySolver::new(study, Vec::new()).run(&mut runs);
        let proposed: Vec<u64> = runs.proposed.iter().map(|proposal| proposal.trial).collect();
        assert_eq!(proposed, (0..1000).collect::<Vec<_>>(), "{sampler:?}");
        assert_eq!(search.ended().len(), 1000, "{sampler:?}");
    }
}
