//! `dtrain tune`: a study of short trials, whose winner becomes the plan.
//!
//! First a few layouts are measured, then what is searched is tried in short complete trainings with the fastest of
//! them. Everything a study knows is in the history: the command that began it goes on with it after any stop.

mod kept;
mod layouts;
mod report;
mod short;

use crate::args::TuneArgs;
use crate::commands::plan::{Stored, write};
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::load::{Loaded, load};
use crate::output::word;
use crate::trials::ledger;
use crate::{job, rates, trials};
use dtrain_planner::tune::{Finish, Search, Searched, Study, StudyEvent, settled};
use dtrain_recipes::Model;
use dtrain_runner::ledger::History;
use kept::{Kept, ended};
use short::Runner;
use std::path::PathBuf;

/// Shortest trial in steps.
const STEPS_LEAST: u64 = 20;

/// How much shorter than the whole training a trial is.
const SHORTER: u64 = 9;

/// Searches what the recipe leaves open, and saves the plan of what was found.
pub(crate) fn run(context: &Context, args: &TuneArgs) -> Outcome {
    let loaded = load(&args.recipe.recipe, &args.recipe.layers, &[])?;
    if let Model::Command(_) = loaded.checked.recipe.model {
        let message = "model.kind = \"command\": dtrain tune searches models of dtrain only";
        return Err(Failure::new(Exit::Usage, message)
            .hint("run it once for each setting, such as `dtrain run RECIPE --set params.lr=0.01`"));
    }
    if let Some(exit) = job::sent(context, &loaded.checked.recipe, false)? {
        return Ok(exit);
    }
    let mut history = trials::open_history(context)?;
    let recipe = &loaded.checked.recipe;
    let name = match &args.study {
        Some(name) => name.clone(),
        None => history.free_study_name(&recipe.name).map_err(|error| ledger(&error))?,
    };
    let again = format!("dtrain tune {} --study {name}", loaded.name);
    let named = context.out.paint.bold(&name);
    context.out.say(&format!("study {named}; if interrupted, `{again}` resumes it"));
    let kept = match history.study(&name).map_err(|error| ledger(&error))? {
        Some(json) => Kept::read(json, &name, recipe, args.steps)?,
        None => match begin(context, &mut history, &loaded, args, &name)? {
            Some(kept) => kept,
            None => return Ok(Exit::Interrupted),
        },
    };
    let before = ended(context, &history, &name)?;
    let study = Study { trials: Some(args.trials), ..kept.study.clone() };
    let search = Search::new(study, StudyEvent::of(&before));
    let mut runner = Runner {
        context,
        history: &mut history,
        loaded: &loaded,
        kept: &kept,
        name: &name,
        budget: args.trials,
        lost: 0,
        failure: None,
        ended: None,
    };
    let search = search.run(&mut runner);
    if let Some(failure) = runner.failure.take() {
        return Err(failure.hint(format!("`{again}` resumes the study")));
    }
    if search.finish() == Some(Finish::Stopped) {
        context.out.next(&again);
        return Ok(Exit::Interrupted);
    }
    finish(context, &mut history, &loaded, args, &kept, &search, &name)
}

/// Plans, measures a few layouts, and writes down what is searched; `None` when the user stopped it.
fn begin(
    context: &Context,
    history: &mut History,
    loaded: &Loaded,
    args: &TuneArgs,
    name: &str,
) -> Result<Option<Kept>, Failure> {
    let recipe = &loaded.checked.recipe;
    let plan = rates::plan(context, history, loaded)?;
    let searched = Searched::of(recipe, Some(&plan.learning_rate));
    if searched.space().dimensions().is_empty() {
        return Err(Failure::new(Exit::Usage, "nothing to search: the recipe pins every tunable key").hint(
            "remove train.learning_rate, or set `learning_rate = { log = [1e-4, 1e-2] }`; for batch \
             and warm-up set `{ choices = [..] }` or `{ log = [..] }`",
        ));
    }
    let steps = args.steps.unwrap_or_else(|| (plan.best().pace.schedule_steps / SHORTER).max(STEPS_LEAST));
    let Some(choice) = layouts::fastest(context, history, loaded, &plan, args.layouts, name)? else {
        return Ok(None);
    };
    let mut study = Study::new(searched.space().clone(), recipe.train.seed);
    study.first.extend(searched.planned(&plan));
    let kept = Kept::new(recipe, settled(recipe, &choice.candidate), study, searched, steps);
    history.create_study(name, &kept.json()).map_err(|error| ledger(&error))?;
    Ok(Some(kept))
}

/// Tells what was found, and saves its plan.
fn finish(
    context: &Context,
    history: &mut History,
    loaded: &Loaded,
    args: &TuneArgs,
    kept: &Kept,
    search: &Search,
    name: &str,
) -> Outcome {
    let Some(best) = search.recommend() else {
        return Err(Failure::new(Exit::WorkerFailed, format!("no trial of {name} completed"))
            .hint("`dtrain history` shows how they ended"));
    };
    let found = kept.searched.pinned(&kept.settled, &best.values);
    let plan = rates::plan_of(context, history, loaded, &found)?;
    let path = saved(context, args, name)?;
    let stored = Stored { digest: plan.digest(), plan };
    write(&path, &stored)?;
    report::tell(context, kept, search, &best, &stored, name)?;
    context.out.next(&format!("dtrain run {}", word(path.display())));
    Ok(Exit::Done)
}

/// Where the winner's plan goes.
fn saved(context: &Context, args: &TuneArgs, name: &str) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.out {
        return Ok(path.clone());
    }
    let folder = context.home.path().join("studies");
    std::fs::create_dir_all(&folder).map_err(|error| {
        Failure::new(Exit::Infrastructure, format!("cannot make {}", folder.display()))
            .cause(error.to_string())
    })?;
    Ok(folder.join(format!("{name}.plan.json")))
}
