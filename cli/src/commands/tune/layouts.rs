//! Measures a few layouts before values are searched: all trials of a study have the fastest.

use crate::commands::run;
use crate::context::Context;
use crate::drive::{How, Task, follow};
use crate::failure::Failure;
use crate::load::Loaded;
use crate::rates;
use crate::render::number::{counted, seconds};
use crate::trials::{self, ledger};
use dtrain_planner::tune::{settled, shortened};
use dtrain_planner::{Plan, Ranked};
use dtrain_runner::Verdict;
use dtrain_runner::driver::Outcome as Ending;
use dtrain_runner::ledger::History;

/// Steps of a measurement.
const STEPS: u64 = 30;

/// The first of them do not count: caches and threads are not warm.
const WARM: usize = 5;

/// The fastest of the first `count` choices of a plan, as measured; the plan's own where none is to be measured, or none ran
/// to its end. `None` when the user stopped it.
pub(super) fn fastest(
    context: &Context,
    history: &mut History,
    loaded: &Loaded,
    plan: &Plan,
    count: usize,
    name: &str,
) -> Result<Option<Ranked>, Failure> {
    let choices = &plan.choices[..count.min(plan.choices.len())];
    if choices.len() < 2 {
        return Ok(Some(plan.best().clone()));
    }
    let mut measured = Vec::new();
    for (number, choice) in choices.iter().enumerate() {
        context.out.say(&format!("layout {} of {}: {}", number + 1, choices.len(), choice.candidate));
        match step_seconds(context, history, loaded, choice, name)? {
            Measured::Step(time) => {
                let (low, high) = (seconds(time.low), seconds(time.high));
                context.out.say(&format!("{} a step, half of them {low} to {high}", seconds(time.median)));
                measured.push((time, choice));
            }
            Measured::Nothing => {}
            Measured::Stopped => return Ok(None),
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

/// Seconds of a step: the median and the quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
struct StepTime {
    low: f64,
    median: f64,
    high: f64,
}

impl StepTime {
    /// Of the steps of a trial after the first [`WARM`]; `None` of too few.
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

enum Measured {
    /// How long its steps took.
    Step(StepTime),
    /// It did not run to its end.
    Nothing,
    /// The user wanted no more.
    Stopped,
}

fn step_seconds(
    context: &Context,
    history: &mut History,
    loaded: &Loaded,
    choice: &Ranked,
    name: &str,
) -> Result<Measured, Failure> {
    let recipe = shortened(&settled(&loaded.checked.recipe, &choice.candidate), STEPS);
    let plan = rates::plan_of(context, history, loaded, &recipe)?;
    let mut new = run::new_trial(&plan, run::sources(loaded), &loaded.folder, crate::audit::recipe(loaded));
    new.study = Some(name.to_owned());
    let created = trials::waiting(context, || history.create_trial(&new)).map_err(|error| ledger(&error))?;
    run::keep_plan(context, &created.id, &plan)?;
    let task = Task {
        trial: &created.id,
        label: &created.label,
        plan: &plan,
        how: How::Start,
        detach: false,
        sample: 0,
    };
    let Ending::Ended { verdict, .. } = follow(context, history, &task)? else {
        return Ok(Measured::Stopped);
    };
    let steps = history.curve(&created.id, "step_seconds").map_err(|error| ledger(&error))?;
    let steps: Vec<f64> = steps.into_iter().map(|sample| sample.value).collect();
    Ok(match verdict {
        Verdict::Stopped => Measured::Stopped,
        Verdict::Completed(_) => StepTime::of(&steps).map_or(Measured::Nothing, Measured::Step),
        Verdict::Pruned | Verdict::OutOfMemory | Verdict::Diverged | Verdict::Failed(_) => Measured::Nothing,
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
