//! Measures a few layouts before values are searched: all trials of a study have the fastest.

use crate::commands::run;
use crate::context::Context;
use crate::drive::{How, Task, follow};
use crate::failure::Failure;
use crate::load::Loaded;
use crate::render::number::seconds;
use crate::trials::ledger;
use crate::{rates, trials};
use dtrain_planner::tune::{settled, shortened};
use dtrain_planner::{Plan, Ranked};
use dtrain_protocol::TrialId;
use dtrain_runner::Verdict;
use dtrain_runner::driver::Outcome as Ending;
use dtrain_runner::ledger::History;

/// Steps of which the first few do not count.
const STEPS: u64 = 30;

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
            Measured::Step(time) => measured.push((time, choice)),
            Measured::Nothing => {}
            Measured::Stopped => return Ok(None),
        }
    }
    let Some((time, choice)) = measured.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Ok(Some(plan.best().clone()));
    };
    context.out.say(&format!("fastest: {}, {} a step", choice.candidate, seconds(time)));
    Ok(Some(choice.clone()))
}

enum Measured {
    /// Seconds of a step.
    Step(f64),
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
    let created = history.create_trial(&new).map_err(|error| ledger(&error))?;
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
    let is_alive = |id: &TrialId| trials::is_alive(context, id);
    let trial = history.trial(&created.id, &is_alive).map_err(|error| ledger(&error))?;
    Ok(match verdict {
        Verdict::Stopped => Measured::Stopped,
        Verdict::Completed(_) => trial.row.step_seconds.map_or(Measured::Nothing, Measured::Step),
        Verdict::Pruned | Verdict::OutOfMemory | Verdict::Diverged | Verdict::Failed(_) => Measured::Nothing,
    })
}
