//! Confirms a study's result: trains the best setting and a baseline with the same seeds, and compares them
//! in pairs.
//!
//! The confirming trials form a study `STUDY-confirm`, so that they are recorded, shown and resumed like any
//! other.

use super::study_config::{StudyConfig, dimension_title};
use super::{Invocation, SearchResult, search};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::LoadedRecipe;
use crate::render::number::counted;
use crate::trials::history_failure;
use dtrain_planner::tune::{
    PairedTest, Recommendation, Study, StudySolver, StudyState, TrialOutcome, TrialPhase, TrialValue,
};
use dtrain_recipes::Recipe;
use dtrain_runner::ledger::History;
use serde::Serialize;

/// Outcome of the confirming trials.
pub(super) enum Confirmation {
    /// The recommended setting and its baseline were both trained.
    Done(PairedComparison),
    /// Nothing was trained, for the given reason.
    Nothing(&'static str),
    /// The user stopped the confirming trials.
    Interrupted,
}

/// Comparison of the recommended setting with its baseline.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PairedComparison {
    /// Name of the study that the confirming trials form.
    pub(super) study: String,
    /// The recommended setting.
    pub(super) recommended: Recommendation,
    pub(super) baseline: Recommendation,
    /// Kind of baseline that was trained.
    pub(super) baseline_is: Baseline,
    /// Paired test with `recommended` first and `baseline` second.
    pub(super) comparison: PairedTest,
}

/// Kind of baseline with which the recommended setting is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Baseline {
    /// The untuned settings, as `dtrain run` would use them.
    Untuned,
    /// The second best setting of the study.
    Second,
}

impl PairedComparison {
    /// Returns the setting to use after the comparison.
    pub(super) fn chosen(&self) -> &Recommendation {
        if self.comparison.prefers_first() { &self.recommended } else { &self.baseline }
    }
}

/// Trains the recommended setting and its baseline, each with `tune.confirm` seeds.
pub(super) fn confirm(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    call: &Invocation,
    (kept, name): (&StudyConfig, &str),
    found: &StudySolver,
) -> Result<Confirmation, CommandError> {
    let recipe = &loaded.checked.recipe;
    let Some((best, other, against)) = candidates(found) else {
        return Ok(Confirmation::Nothing("only one setting has a result"));
    };
    let (kept, confirming) = study(history, recipe, kept, name, (&best, &other))?;
    let words = |one: &Recommendation| -> String {
        let named = kept.study.space.dimensions().iter().zip(&one.values);
        let words = named.map(|(dimension, value)| format!("{} {value}", dimension_title(&dimension.name)));
        words.collect::<Vec<_>>().join(", ")
    };
    context.out.say(&format!(
        "confirming with {} each: {} against {} ({})",
        counted(u64::from(recipe.tune.confirm), "seed"),
        words(&best),
        words(&other),
        against.as_str()
    ));
    let Some(SearchResult { search, .. }) = search(context, history, loaded, (&kept, &confirming), call)?
    else {
        return Ok(Confirmation::Interrupted);
    };
    let pairs = pairs(search.study(), search.study_state());
    if pairs.is_empty() {
        return Ok(Confirmation::Nothing("no pair of trials was completed"));
    }
    let comparison = PairedTest::of(&pairs);
    Ok(Confirmation::Done(PairedComparison {
        study: confirming,
        recommended: best,
        baseline: other,
        baseline_is: against,
        comparison,
    }))
}

impl Baseline {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Untuned => "untuned",
            Self::Second => "second best",
        }
    }
}

/// Returns the recommended trial, and as baseline the study's first trial, or the second best if these are
/// the same.
fn candidates(search: &StudySolver) -> Option<(Recommendation, Recommendation, Baseline)> {
    let mut ranked = search.study().ranked(search.study_state()).into_iter();
    let best = ranked.next()?;
    let rest: Vec<Recommendation> = ranked.collect();
    let untuned = search.study().first.first().filter(|values| **values != best.values);
    match untuned.and_then(|values| rest.iter().find(|one| one.values == *values)) {
        Some(other) => Some((best, other.clone(), Baseline::Untuned)),
        None => rest.into_iter().next().map(|other| (best, other, Baseline::Second)),
    }
}

/// Opens or creates the study of the confirming trials, which depend only on the two settings and the number
/// of seeds.
fn study(
    history: &mut History,
    recipe: &Recipe,
    kept: &StudyConfig,
    name: &str,
    settings: (&Recommendation, &Recommendation),
) -> Result<(StudyConfig, String), CommandError> {
    let Some((searched, seed)) = kept.search_space.with_seed(&kept.base_recipe) else {
        return Err(CommandError::new(ExitReason::Usage, "tune.confirm needs a seed that can be varied")
            .hint("add a fixed param, such as `seed = 1` below `[params]`, and pass it to the program as `{params.seed}`, or pass it `{train.seed}`"));
    };
    let with = |one: &Recommendation, seed: i64| [one.values.as_slice(), &[TrialValue::Whole(seed)]].concat();
    let seeds = seed..seed + i64::from(recipe.tune.confirm);
    let first = seeds.flat_map(|seed| [with(settings.0, seed), with(settings.1, seed)]).collect();
    let study = Study { first, ..Study::new(searched.space().clone(), recipe.train.seed) };
    let own = StudyConfig::new(recipe, kept.base_recipe.clone(), study, searched, kept.steps);
    let own = own.of_length(kept).with_trials(2 * u64::from(recipe.tune.confirm));
    let names =
        std::iter::once(format!("{name}-confirm")).chain((2..).map(|n| format!("{name}-confirm-{n}")));
    for name in names {
        match history.study(&name).map_err(|error| history_failure(&error))? {
            None => {
                history.create_study(&name, &own.json()).map_err(|error| history_failure(&error))?;
                return Ok((own, name));
            }
            Some(json) => {
                let begun = StudyConfig::read(json, &name, recipe, kept.steps)?;
                // The same settings, perhaps with another number of seeds.
                if begun.study.first.get(..2) == own.study.first.get(..2) {
                    return Ok((own, name));
                }
            }
        }
    }
    unreachable!("names do not end")
}

/// Returns the outcomes of the confirming trials in pairs of equal seed: recommended setting, then baseline.
fn pairs(study: &Study, study_state: &StudyState) -> Vec<(TrialOutcome, TrialOutcome)> {
    let of = |values: &Vec<TrialValue>| {
        // A trial lost to a host failure is repeated under another number.
        let newest = study_state.trials().iter().rev().find(|seen| seen.values == *values)?;
        match &newest.status {
            TrialPhase::Ended(outcome) => Some(outcome.clone()),
            TrialPhase::Running | TrialPhase::Paused => None,
        }
    };
    study.first.chunks_exact(2).filter_map(|pair| Some((of(&pair[0])?, of(&pair[1])?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_planner::tune::{Dimension, Scale, SearchSpace, StudyEvent, TrialResult};

    fn search(first: f64, costs: &[(f64, f64)]) -> StudySolver {
        let space = SearchSpace::new(vec![Dimension::new("x", Scale::Uniform { low: 0.0, high: 1.0 })]);
        let study = Study { first: vec![vec![TrialValue::Real(first)]], ..Study::new(space, 1) };
        let ended: Vec<TrialResult> = costs
            .iter()
            .map(|(x, cost)| TrialResult {
                values: vec![TrialValue::Real(*x)],
                outcome: TrialOutcome::done(*cost),
            })
            .collect();
        StudySolver::new(study, StudyEvent::of(&ended))
    }

    #[test]
    fn the_best_is_compared_with_the_untuned_or_with_the_second_best() {
        let (best, other, against) =
            candidates(&search(0.5, &[(0.5, 2.0), (0.2, 1.0), (0.8, 3.0)])).expect("three");
        assert_eq!((best.trial, other.trial, against), (1, 0, Baseline::Untuned));
        let (best, other, against) =
            candidates(&search(0.5, &[(0.5, 1.0), (0.2, 3.0), (0.8, 2.0)])).expect("three");
        assert_eq!((best.trial, other.trial, against), (0, 2, Baseline::Second));
        assert!(candidates(&search(0.5, &[(0.5, 1.0)])).is_none(), "nothing to compare with");
    }

    #[test]
    fn trials_are_paired_by_their_seeds() {
        let value = |x: f64, seed| vec![TrialValue::Real(x), TrialValue::Whole(seed)];
        let space = SearchSpace::new(vec![
            Dimension::new("x", Scale::Uniform { low: 0.0, high: 1.0 }),
            Dimension::new("train.seed", Scale::Integers { low: 2, high: 900 }),
        ]);
        let first = vec![value(0.2, 2), value(0.5, 2), value(0.2, 3), value(0.5, 3)];
        let study = Study { first, ..Study::new(space, 1) };
        // In the order in which they ended; the last one never did.
        let ended = [(0.5, 2, 4.0), (0.2, 2, 1.0), (0.2, 3, 2.0)]
            .map(|(x, seed, cost)| TrialResult { values: value(x, seed), outcome: TrialOutcome::done(cost) });
        let study_state = StudyState::of(&study, &StudyEvent::of(&ended));
        assert_eq!(pairs(&study, &study_state), [(TrialOutcome::done(1.0), TrialOutcome::done(4.0))]);
    }
}
