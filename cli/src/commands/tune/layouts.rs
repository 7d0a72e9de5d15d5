//! Measurement of a few layouts before the search; all trials of a study then use the fastest.

use crate::begin_trial::{new_trial, value_sources, write_plan_file};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::load_recipe::LoadedRecipe;
use crate::render::number::{counted, seconds};
use crate::run_mode::{RunMode, TrialRun};
use crate::run_trial::run_with_progress;
use crate::trials::{self, history_failure};
use crate::{rates, workdir};
use dtrain_planner::tune::{limited_to_steps, pinned_to_candidate};
use dtrain_planner::{Plan, RankedCandidate};
use dtrain_runner::Verdict;
use dtrain_runner::driver::DriveOutcome;
use dtrain_runner::ledger::History;

/// Number of training steps that are measured per layout.
const STEPS: u64 = 30;

/// Number of steps at the beginning that do not count.
const WARM: usize = 5;

/// Returns the fastest of the first `count` layouts of a plan, by measurement; the planner's choice if
/// `count` is too small or no measurement ran to its end. `None` if the user stopped it.
pub(super) fn fastest_layout(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    plan: &Plan,
    count: usize,
    name: &str,
) -> Result<Option<RankedCandidate>, CommandError> {
    let choices = &plan.choices[..count.min(plan.choices.len())];
    if choices.len() < 2 {
        return Ok(Some(plan.best().clone()));
    }
    let mut measured = Vec::new();
    for (number, choice) in choices.iter().enumerate() {
        context.out.say(&format!("layout {} of {}: {}", number + 1, choices.len(), choice.candidate));
        match step_seconds(context, history, loaded, choice, name)? {
            StepMeasurement::Step(time) => {
                let (low, high) = (seconds(time.low), seconds(time.high));
                context.out.say(&format!("{} a step, half of them {low} to {high}", seconds(time.median)));
                measured.push((time, choice));
            }
            StepMeasurement::Nothing => {}
            StepMeasurement::Stopped => return Ok(None),
        }
    }
    measured.sort_by(|a, b| a.0.median.total_cmp(&b.0.median));
    let Some((time, choice)) = measured.first() else { return Ok(Some(plan.best().clone())) };
    let alike = measured[1..].iter().filter(|(other, _)| other.low < time.high).count();
    let alike = match alike {
        0 => String::new(),
        _ => format!("; not distinguishable from {}", counted(u64::try_from(alike).unwrap_or(0), "other")),
    };
    context.out.say(&format!("fastest: {}, {} a step{alike}", choice.candidate, seconds(time.median)));
    Ok(Some((*choice).clone()))
}

/// Measured seconds per step: lower quartile, median and upper quartile.
#[derive(Clone, Copy, Debug, PartialEq)]
struct StepTime {
    low: f64,
    median: f64,
    high: f64,
}

impl StepTime {
    /// Computes median and quartiles of the steps after the first [`WARM`]; `None` for too few steps.
    fn of(steps: &[f64]) -> Option<Self> {
        let mut sorted = steps.get(WARM..)?.to_vec();
        if sorted.is_empty() {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let at = |quarter: usize| sorted[(sorted.len() - 1) * quarter / 4];
        Some(Self { low: at(1), median: at(2), high: at(3) })
    }
}

enum StepMeasurement {
    /// The layout ran; the time that a step took.
    Step(StepTime),
    /// The training failed before its last step.
    Nothing,
    /// The user stopped the measurement.
    Stopped,
}

fn step_seconds(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    choice: &RankedCandidate,
    name: &str,
) -> Result<StepMeasurement, CommandError> {
    let recipe = limited_to_steps(&pinned_to_candidate(&loaded.checked.recipe, &choice.candidate), STEPS);
    let plan = rates::plan_derived_recipe(context, history, loaded, &recipe)?;
    let mut new = new_trial(&plan, value_sources(loaded), &loaded.folder, crate::audit::recipe_owner(loaded));
    new.study = Some(name.to_owned());
    workdir::note(context, &plan, &mut new.provenance)?;
    let created = trials::wait_for_history(context, || history.create_trial(&new))
        .map_err(|error| history_failure(&error))?;
    write_plan_file(context, &created.id, &plan)?;
    let task = TrialRun {
        trial: &created.id,
        label: &created.label,
        plan: &plan,
        how: RunMode::Start,
        detach: false,
        sample: 0,
    };
    let DriveOutcome::Ended { verdict, .. } = run_with_progress(context, history, &task)? else {
        return Ok(StepMeasurement::Stopped);
    };
    let steps = history.curve(&created.id, "step_seconds").map_err(|error| history_failure(&error))?;
    let steps: Vec<f64> = steps.into_iter().map(|sample| sample.value).collect();
    Ok(match verdict {
        Verdict::Stopped => StepMeasurement::Stopped,
        Verdict::Completed(_) => StepTime::of(&steps).map_or(StepMeasurement::Nothing, StepMeasurement::Step),
        Verdict::Pruned | Verdict::OutOfMemory | Verdict::Diverged | Verdict::Failed(_) => {
            StepMeasurement::Nothing
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_steps_do_not_count() {
        let steps: Vec<f64> = [9.0; WARM].into_iter().chain([1.0, 2.0, 3.0, 4.0, 5.0]).collect();
        assert_eq!(StepTime::of(&steps), Some(StepTime { low: 2.0, median: 3.0, high: 4.0 }));
        assert_eq!(StepTime::of(&steps[..WARM]), None);
        assert_eq!(StepTime::of(&steps[..2]), None);
    }
}
