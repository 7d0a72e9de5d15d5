//! Compares a Gaussian process with random search at equal numbers of trials. Seeds are fixed, so a result is
//! reproducible.

use super::toys::{self, Toy};
use crate::tune::outcome::median;
use crate::tune::{Sampler, SearchSpace, Study, StudySolver};

const SEEDS: u64 = 11;

fn modelled(space: SearchSpace, seed: u64) -> Study {
    Study { sampler: Sampler::gaussian(&space), ..Study::new(space, seed) }
}

fn random(space: SearchSpace, seed: u64) -> Study {
    Study { sampler: Sampler::Random, ..Study::new(space, seed) }
}

/// Returns the true cost of the values that a study recommends.
fn recommended(toy: &Toy, search: &StudySolver) -> f64 {
    let found = search.recommend().expect("some trials ran to their end");
    toy.truth_of(&found.values)
}

/// Returns the true cost of the trial with the lowest measurement, the choice without a model.
fn luckiest(toy: &Toy, search: &StudySolver) -> f64 {
    let ended = search.ended();
    let done = ended.iter().filter_map(|trial| Some((trial.value()?, trial)));
    let best = done.min_by(|a, b| a.0.total_cmp(&b.0)).expect("some trials ran to their end");
    toy.truth_of(&best.1.values)
}

/// Medians over the seeds of a model study and of a random one: true cost found, and failed trials.
struct Compared {
    modelled: f64,
    random: f64,
    failures_modelled: f64,
    failures_random: f64,
}

fn compare(toy: fn(u64) -> Toy, budget: u64) -> Compared {
    let middle =
        |of: &dyn Fn(Toy) -> f64| median((0..SEEDS).map(|seed| of(toy(seed))).collect()).expect("seeds");
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let failures = |study: fn(SearchSpace, u64) -> Study| {
        middle(&|toy| Toy::failures(&toy.searched(study, budget).ended()) as f64)
    };
    Compared {
        modelled: middle(&|toy| recommended(&toy, &toy.searched(modelled, budget))),
        random: middle(&|toy| luckiest(&toy, &toy.searched(random, budget))),
        failures_modelled: failures(modelled),
        failures_random: failures(random),
    }
}

#[test]
fn a_learning_rate_is_found_in_a_dozen_trials_of_which_few_diverge() {
    let Compared { modelled, random, failures_modelled, failures_random } = compare(toys::learning_rate, 12);
    assert!(modelled < 2.003, "{modelled}: within a factor of 1.3 of the best rate");
    assert!(modelled - 2.0 < 0.5 * (random - 2.0), "by model {modelled}, by chance {random}");
    assert!(failures_modelled <= failures_random, "{failures_modelled} of 12, by chance {failures_random}");
}

#[test]
fn branin_is_found_in_thirty_trials() {
    let Compared { modelled, random, .. } = compare(toys::branin, 30);
    assert!(modelled < 0.41, "{modelled} of 0.397887");
    assert!(random > 0.6, "chance is not what finds it: {random}");
}

#[test]
fn four_values_of_a_recipe_are_found_with_few_failures() {
    let Compared { modelled, random, failures_modelled, failures_random } = compare(toys::recipe, 30);
    assert!(modelled < 2.02, "{modelled}");
    assert!(modelled - 2.0 < 0.4 * (random - 2.0), "by model {modelled}, by chance {random}");
    assert!(
        failures_modelled < 0.7 * failures_random,
        "{failures_modelled} of 30, by chance {failures_random}"
    );
}

#[test]
fn failures_become_rare_once_the_region_is_known() {
    let rate = |ended: &[crate::tune::TrialResult]| Toy::failures(ended);
    let counts = (0..SEEDS).map(|seed| {
        let search = toys::recipe(seed).searched(modelled, 40);
        (rate(&search.ended()[..20]), rate(&search.ended()[20..]))
    });
    let (early, late) = counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    assert!(late * 3 < early, "{early} in the first half of the trials, {late} in the second");
}

#[test]
fn the_luckiest_trial_is_not_recommended_for_its_luck() {
    // Trials all over a bowl, and noise as large as the bowl is deep: the lowest measurement is mostly luck.
    let noisy = |seed| Toy { noise: 0.3, ..toys::learning_rate(seed) };
    let spread = |space, seed| Study { sampler: Sampler::Sobol, ..Study::new(space, seed) };
    let searches: Vec<(Toy, StudySolver)> =
        (0..SEEDS).map(|seed| (noisy(seed), noisy(seed).searched(spread, 24))).collect();
    let middle = |of: fn(&Toy, &StudySolver) -> f64| {
        median(searches.iter().map(|(toy, search)| of(toy, search)).collect()).expect("seeds")
    };
    let (recommended, luckiest) = (middle(recommended), middle(luckiest));
    assert!(recommended - 2.0 < 0.7 * (luckiest - 2.0), "by model {recommended}, by luck {luckiest}");
    let holds = searches.iter().filter(|(toy, search)| {
        let found = search.recommend().expect("some ended");
        (found.low..=found.high).contains(&toy.truth_of(&found.values))
    });
    let holds = holds.count();
    // Fewer than 90 %: luck favors what looks best among many, even where luck is discounted.
    assert!(holds >= 7, "the interval held the truth in {holds} of {SEEDS} studies");
}
