//! Learning-rate range test: narrows the searched range with trials of a few steps each.
//!
//! Its trials form a study `STUDY-range`, so that they are recorded, shown and resumed like any other.

use super::study_config::StudyConfig;
use super::{Invocation, SearchResult, search};
use crate::args::TuneArgs;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::LoadedRecipe;
use crate::render::number::{counted, plain};
use crate::trials::history_failure;
use dtrain_planner::tune::learning_rate_range::learning_rate_range;
use dtrain_planner::tune::{RecipeSearchSpace, Study, StudyState, TrialOutcome, TrialPhase};
use dtrain_planner::{Decision, Plan};
use dtrain_recipes::{Model, Recipe, Tunable};
use dtrain_runner::ledger::History;

/// Number of training steps of each trial.
const STEPS: u64 = 20;

/// Number of learning rates tried on either side of the planned one.
const BESIDE: i32 = 4;

/// Ratio of neighboring learning rates: half a decade.
const RATIO: f64 = 3.162_277_660_168_379_5;

/// Refuses the range test for a recipe with a fixed learning rate.
pub(super) fn check(args: &TuneArgs, recipe: &Recipe) -> Result<(), CommandError> {
    if !args.range_test {
        return Ok(());
    }
    let refuse =
        |message: &str, hint: &str| Err(CommandError::new(ExitReason::Usage, message).hint(hint.to_owned()));
    if matches!(recipe.model, Model::Command(_)) {
        return refuse(
            "--range-test: dtrain does not know which param of a command is its learning rate",
            "give the param a wide range, such as `lr = { log = [1e-5, 1e-1] }`",
        );
    }
    match recipe.train.learning_rate {
        Tunable::Auto => Ok(()),
        _ => refuse(
            "--range-test: the recipe says which learning rates are searched",
            "remove train.learning_rate, or leave out --range-test",
        ),
    }
}

/// Returns the range of learning rates worth searching; the planned range if the test is inconclusive. `None`
/// if the user stopped it.
pub(super) fn lr_range_test(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    call: &Invocation,
    (plan, settled): (&Plan, &Recipe),
    name: &str,
) -> Result<Option<Decision<f64>>, CommandError> {
    let planned = &plan.learning_rate;
    let rates: Vec<f64> = (-BESIDE..=BESIDE).map(|step| planned.value * RATIO.powi(step)).collect();
    let (low, high) = (rates[0], rates[rates.len() - 1]);
    let mut open = settled.clone();
    // All other settings have their planned values.
    open.train.batch = Tunable::Pinned(dtrain_recipes::Samples(plan.batch.value));
    open.train.warmup = Tunable::Auto;
    open.train.precision = Tunable::Pinned(plan.best().candidate.arrangement.precision);
    let searched = RecipeSearchSpace::of(&open, Some(&Decision { low, high, ..planned.clone() }));
    let Some(rate) = searched.space().dimensions().first() else { return Ok(Some(planned.clone())) };
    let first: Vec<_> = rates.iter().filter_map(|one| Some(vec![rate.nearest(*one)?])).collect();
    let trials = u64::try_from(first.len()).unwrap_or(0);
    let study = Study { first, ..Study::new(searched.space().clone(), settled.train.seed) };
    let kept =
        StudyConfig::new(&loaded.checked.recipe, open, study, searched, Some(STEPS)).with_trials(trials);
    let own = format!("{name}-range");
    match history.study(&own).map_err(|error| history_failure(&error))? {
        Some(json) => drop(StudyConfig::read(json, &own, &loaded.checked.recipe, Some(STEPS))?),
        None => history.create_study(&own, &kept.json()).map_err(|error| history_failure(&error))?,
    }
    context.out.say(&format!(
        "range test: {} from {} to {}, {STEPS} steps each",
        counted(trials, "learning rate"),
        plain(low),
        plain(high)
    ));
    let Some(SearchResult { search, .. }) = search(context, history, loaded, (&kept, &own), call)? else {
        return Ok(None);
    };
    let found = learning_rate_range(&costs(search.study_state()));
    let (low, high) = found.unwrap_or((planned.low, planned.high));
    context.out.say(&match found {
        Some(_) => {
            format!("range test: the loss falls from {} to {}; these are searched", plain(low), plain(high))
        }
        None => format!(
            "range test: no learning rate learns anything in {STEPS} steps; the plan's range is searched"
        ),
    });
    let value = planned.value.clamp(low, high);
    Ok(Some(Decision { value, low, high, reason: planned.reason.clone() }))
}

/// Returns the tried learning rates in ascending order, each with its cost; `None` for failed trials.
fn costs(study_state: &StudyState) -> Vec<(f64, Option<f64>)> {
    let over = study_state.trials().iter().filter_map(|seen| match &seen.status {
        TrialPhase::Ended(TrialOutcome::Done { value }) => Some((seen.values[0].number()?, Some(*value))),
        TrialPhase::Ended(_) if !seen.is_lost() => Some((seen.values[0].number()?, None)),
        TrialPhase::Ended(_) | TrialPhase::Running | TrialPhase::Paused => None,
    });
    let mut costs: Vec<(f64, Option<f64>)> = over.collect();
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    costs
}
