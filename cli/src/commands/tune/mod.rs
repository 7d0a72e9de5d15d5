//! `dtrain tune`: a study of trials, whose best setting becomes the plan.
//!
//! For built-in models, a few layouts are measured first; then settings are tried in short complete trainings
//! with the fastest layout. A command is tried unchanged. The result may be confirmed with other seeds. All
//! state of a study is in the history: the same command resumes it after any stop.

mod confirm;
mod display;
mod insights;
mod layouts;
mod lr_range_test;
mod recipe;
mod report;
mod runner;
mod study_config;
mod tracked_trial;
mod trial;

use crate::args::TuneArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::{LoadedRecipe, load};
use crate::names::refuse_unusable;
use crate::output::shell_quoted;
use crate::plan_file::{PlanOrigin, StoredPlan};
use crate::render::number::counted;
use crate::slots::SlotPool;
use crate::trials::history_failure;
use crate::{engine_environments, rates, signals, slurm_job, trials, workdir};
use confirm::{Confirmation, PairedComparison};
use dtrain_planner::tune::{
    Asha, FinishReason, Hyperband, Median, Pruner, RecipeSearchSpace, Sampler, SearchSpace, Study,
    StudyEvent, StudySolver, Threshold, TrialValue, pinned_to_candidate,
};
use dtrain_recipes::{Goal, Model, PrunerKind, Recipe, SamplerKind};
use dtrain_runner::files;
use dtrain_runner::ledger::History;
use insights::StudyInsights;
use report::StudyReport;
use runner::Runner;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use study_config::StudyConfig;
use tracked_trial::{RunnerContext, quiet_context};

/// Minimum number of steps in a trial of a built-in model.
const STEPS_LEAST: u64 = 20;

/// Factor by which a trial is shorter than the whole training.
const SHORTER: u64 = 9;

/// Number of values tried by a grid search in a dimension with more values than that.
const GRID_LEVELS: u32 = 5;

/// Number of other trials that the median pruner needs before it prunes.
const MEDIAN_TRIALS: usize = 4;

/// Runs a study, and saves the plan of the best setting.
pub(crate) fn run(context: &Context, args: &TuneArgs) -> CommandResult {
    let begun = Instant::now();
    if let Some(name) = &args.study {
        refuse_unusable(name, "a study")?;
    }
    let loaded = load(context.out, &args.recipe.recipe, &args.recipe.layers, &flags(args))?;
    if let Some(exit) = slurm_job::submit_if_needed(context, &loaded.checked.recipe, false)? {
        return Ok(exit);
    }
    let recipe = &loaded.checked.recipe;
    workdir::check(context, recipe, &loaded.folder)?;
    engine_environments::require(context, recipe)?;
    let slots = SlotPool::of(recipe)?;
    recipe::check(args, &loaded)?;
    lr_range_test::check(args, recipe)?;
    let mut history = trials::open_history(context)?;
    let name = match &args.study {
        Some(name) => name.clone(),
        None => history.free_study_name(&recipe.name).map_err(|error| history_failure(&error))?,
    };
    let limit = recipe.tune.time.map(|time| Duration::from_secs_f64(time.0));
    let call = Invocation { again: resume_command(args, &name), deadline: limit.map(|limit| begun + limit) };
    let stored = history.study(&name).map_err(|error| history_failure(&error))?;
    let is_continued = stored.is_some();
    let kept = match stored {
        Some(json) => StudyConfig::read(json, &name, recipe, args.steps)?,
        None => match start_study(context, &mut history, &loaded, (args, &call), &slots, &name)? {
            Some(kept) => kept,
            None => return Ok(signals::stop_exit()),
        },
    };
    let kept = kept.with_trials(recipe.tune.trials);
    let named = context.out.paint.bold(&name);
    let so_far = if is_continued {
        let done = kept.done(&study_config::log(&history, &name)?);
        format!(", continuing: {done} of {} done", counted(recipe.tune.trials, "trial"))
    } else {
        String::new()
    };
    context.out.say(&format!("study {named}{so_far}; if interrupted, `{}` resumes it", call.again));
    let Some(ran) = search(context, &mut history, &loaded, (&kept, &name), &call)? else {
        return Ok(signals::stop_exit());
    };
    let confirmed = match recipe.tune.confirm {
        0 => None,
        _ => match confirm::confirm(context, &mut history, &loaded, &call, (&kept, &name), &ran.search)? {
            Confirmation::Done(confirmed) => Some(confirmed),
            Confirmation::Nothing(why) => {
                context.out.say(&format!("not confirmed: {why}"));
                None
            }
            Confirmation::Interrupted => return Ok(signals::stop_exit()),
        },
    };
    finish(context, &mut history, &loaded, args, &kept, (&ran, confirmed.as_ref()), &name)
}

/// Facts about this invocation of `dtrain tune`.
struct Invocation {
    /// Command that resumes the study.
    again: String,
    /// Time after which no trial starts; `None` without a limit.
    deadline: Option<Instant>,
}

/// Result of a completed search.
struct SearchResult {
    search: StudySolver,
    /// Recipe of all trials, restricted to the hosts that answered.
    settled: Recipe,
}

/// Runs the trials of a study to its end; `None` if the user stopped it.
fn search(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    (kept, name): (&StudyConfig, &str),
    call: &Invocation,
) -> Result<Option<SearchResult>, CommandError> {
    let recipe = &loaded.checked.recipe;
    let slots = SlotPool::of(recipe)?;
    let log = study_config::log(history, name)?;
    let search = StudySolver::new(kept.study.clone(), log.clone());
    let interrupts = signals::listen()?;
    let ground = RunnerContext {
        context,
        quiet: &quiet_context(context),
        loaded,
        kept,
        name,
        interrupts: std::sync::Arc::clone(&interrupts),
        deadline: call.deadline,
    };
    let (search, settled, failure) = std::thread::scope(|scope| {
        let mut runner = Runner::new(scope, ground, history, slots, &log);
        let search = search.run(&mut runner);
        runner.show.finish();
        (search, runner.pinned_to_candidate(), runner.failure.take())
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    if search.finish_reason() == Some(FinishReason::Stopped) && interrupts.count() > 0 {
        slurm_job::requeue_if_its_time_is_over(recipe)?;
        context.out.say(&format!("{name} is interrupted"));
        context.out.next(&call.again);
        return Ok(None);
    }
    Ok(Some(SearchResult { search, settled }))
}

/// Returns the command that resumes a study: as typed, with the study's name.
fn resume_command(args: &TuneArgs, name: &str) -> String {
    let typed = std::env::args_os().skip(1);
    let mut words: Vec<String> = typed.map(|one| shell_quoted(one.to_string_lossy())).collect();
    if args.study.is_none() {
        words.extend(["--study".to_owned(), shell_quoted(name)]);
    }
    format!("dtrain {}", words.join(" "))
}

/// Returns the recipe keys that the command line sets, with their values.
fn flags(args: &TuneArgs) -> Vec<(&'static str, String)> {
    let text = |value: &String| format!("{value:?}");
    let mut extra = Vec::new();
    extra.extend(args.trials.map(|trials| ("tune.trials", trials.to_string())));
    extra.extend(args.sampler.as_ref().map(|sampler| ("tune.sampler", text(sampler))));
    extra.extend(args.pruner.as_ref().map(|pruner| ("tune.pruner", text(pruner))));
    extra.extend(args.time.as_ref().map(|time| ("tune.time", text(time))));
    extra.extend(args.engine.as_ref().map(|engine| ("engine", text(engine))));
    extra.extend(args.slots.map(|slots| ("cluster.slots", slots.to_string())));
    extra.extend(args.confirm.map(|seeds| ("tune.confirm", seeds.to_string())));
    extra
}

/// Creates a study and measures layouts for it; `None` if the user stopped it.
fn start_study(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    (args, call): (&TuneArgs, &Invocation),
    slots: &SlotPool,
    name: &str,
) -> Result<Option<StudyConfig>, CommandError> {
    let recipe = &loaded.checked.recipe;
    let is_command = matches!(recipe.model, Model::Command(_));
    let (searched, base, (steps, batch), first) = if is_command {
        let searched = RecipeSearchSpace::of(recipe, None);
        let first = searched.given_values(recipe);
        (searched, recipe.clone(), (args.steps, None), first)
    } else {
        let plan = rates::plan_derived_recipe(context, history, loaded, &slots.on_hosts(0, recipe))?;
        let searched = RecipeSearchSpace::of(recipe, Some(&plan.learning_rate));
        refuse_nothing(recipe, searched.space())?;
        let whole = plan.best().run_length.steps.unwrap_or(0);
        let steps = args.steps.unwrap_or((whole / SHORTER).max(STEPS_LEAST));
        let Some(choice) = layouts::fastest_layout(context, history, loaded, &plan, args.layouts, name)?
        else {
            return Ok(None);
        };
        let settled = pinned_to_candidate(recipe, &choice.candidate);
        let searched = match args.range_test {
            false => searched,
            true => {
                match lr_range_test::lr_range_test(context, history, loaded, call, (&plan, &settled), name)? {
                    Some(found) => RecipeSearchSpace::of(recipe, Some(&found)),
                    None => return Ok(None),
                }
            }
        };
        let first = searched.planned_values(&plan);
        // Trials of all batch sizes train on the same number of samples.
        let batch = searched.has_batches().then_some(plan.batch.value);
        (searched, settled, (Some(steps), batch), first)
    };
    refuse_nothing(recipe, searched.space())?;
    let mut study = Study::new(searched.space().clone(), recipe.train.seed);
    study.sampler = sampler(recipe, searched.space());
    study.pruner = pruner(recipe, steps.or(recipe.objective.stop.steps), batch.unwrap_or(1));
    study.first.extend(first);
    let mut kept = StudyConfig::new(recipe, base, study, searched, steps);
    kept.samples = steps.zip(batch).map(|(steps, batch)| steps * batch);
    let learned = transferred_trials(history, &kept, args.from.as_deref())?;
    kept.prior_trials =
        learned.iter().filter(|event| matches!(event, StudyEvent::Ended { .. })).count() as u64;
    history.create_study(name, &kept.json()).map_err(|error| history_failure(&error))?;
    for (number, event) in (0..).zip(&learned) {
        let json = serde_json::to_value(event).expect("events have string keys only");
        history.record_study_event(name, number, &json).map_err(|error| history_failure(&error))?;
    }
    Ok(Some(kept))
}

fn refuse_nothing(recipe: &Recipe, space: &SearchSpace) -> Result<(), CommandError> {
    if !space.dimensions().is_empty() {
        return Ok(());
    }
    let is_command = matches!(recipe.model, Model::Command(_));
    let message = "nothing to search: the recipe pins every tunable key";
    Err(CommandError::new(ExitReason::Usage, message).hint(if is_command {
        "give a param a range, such as `lr = { log = [1e-4, 1e-1] }` below `[params]`"
    } else {
        "remove train.learning_rate, or set `learning_rate = { log = [1e-4, 1e-2] }`; for batch \
         `batch = { log = [8, 64] }`"
    }))
}

fn sampler(recipe: &Recipe, space: &SearchSpace) -> Sampler {
    match recipe.tune.sampler {
        SamplerKind::Auto => Sampler::Auto,
        SamplerKind::Grid => Sampler::Grid { levels: GRID_LEVELS },
        SamplerKind::Tpe => Sampler::Tpe,
        SamplerKind::CmaEs => Sampler::CmaEs,
        SamplerKind::Swarm => Sampler::Swarm,
        SamplerKind::Evolution => Sampler::Evolution,
        SamplerKind::Random => Sampler::Random,
        SamplerKind::Sobol => Sampler::Sobol,
        SamplerKind::Gaussian => Sampler::gaussian(space),
    }
}

/// Returns the pruner that a recipe asks for, for trials of `steps` steps, each of which counts as `unit`.
fn pruner(recipe: &Recipe, steps: Option<u64>, unit: u64) -> Pruner {
    let tune = &recipe.tune;
    let (eta, least) = (tune.eta, tune.min_steps.saturating_mul(unit));
    let most = steps.map_or(u64::MAX, |steps| steps.saturating_mul(unit));
    match tune.pruner {
        PrunerKind::None => Pruner::None,
        PrunerKind::Median => Pruner::Median(Median { startup_trials: MEDIAN_TRIALS, warmup: least }),
        PrunerKind::Asha => Pruner::Asha(Asha { eta, min_resource: least, max_resource: most }),
        PrunerKind::Hyperband => {
            Pruner::Hyperband(Hyperband { eta, min_resource: least, max_resource: most })
        }
        PrunerKind::Threshold => {
            let goal: Goal = recipe.objective.goal();
            let most = goal.cost(tune.threshold.unwrap_or(f64::INFINITY));
            Pruner::Threshold(Threshold { limit: most, warmup: least })
        }
    }
}

/// Converts the trials of another study that fit this search space into the first events of this one.
fn transferred_trials(
    history: &History,
    kept: &StudyConfig,
    from: Option<&str>,
) -> Result<Vec<StudyEvent>, CommandError> {
    let Some(from) = from else { return Ok(Vec::new()) };
    let other = StudyConfig::named(history, from)?;
    if other.base_recipe.objective.metric != kept.base_recipe.objective.metric {
        let metric = &other.base_recipe.objective.metric;
        return Err(CommandError::new(
            ExitReason::Usage,
            format!("the study {from} is about another metric, `{metric}`"),
        ));
    }
    let theirs = other.study.space.dimensions();
    let places: Option<Vec<usize>> = (kept.study.space.dimensions().iter())
        .map(|own| theirs.iter().position(|one| one.name == own.name))
        .collect();
    let Some(places) = places else {
        let message = format!("the study {from} does not search all that this one does");
        return Err(CommandError::new(ExitReason::Usage, message));
    };
    let search = StudySolver::new(other.study.clone(), study_config::log(history, from)?);
    let mut ended = search.ended();
    ended.retain_mut(|one| {
        let values: Vec<TrialValue> = places.iter().map(|place| one.values[*place].clone()).collect();
        one.values = values;
        kept.study.space.coordinates(&one.values).is_some()
    });
    Ok(StudyEvent::of(&ended))
}

/// Prints the result of a study, and saves the plan of the best setting.
fn finish(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    args: &TuneArgs,
    kept: &StudyConfig,
    (ran, confirmed): (&SearchResult, Option<&PairedComparison>),
    name: &str,
) -> CommandResult {
    let search = &ran.search;
    let Some(best) = confirmed.map(|confirmed| confirmed.chosen().clone()).or_else(|| search.recommend())
    else {
        return Err(CommandError::new(ExitReason::WorkerFailed, format!("no trial of {name} completed"))
            .hint("`dtrain history` shows how they ended"));
    };
    let found = kept.search_space.recipe_with(&ran.settled, &best.values);
    let inputs = rates::inputs(context, loaded)?;
    let plan = rates::plan_with_inputs(context, history, loaded, (&found, None), inputs.as_ref())?;
    let path = save_plan(context, args, name)?;
    let made_from = PlanOrigin::of(loaded, &args.recipe.layers, &flags(args), inputs);
    let stored = StoredPlan::of(plan, Some(made_from));
    stored.write(&path)?;
    let learned = StudyInsights::of(context, history, kept, (search, confirmed), &best, name)?;
    let told = StudyReport { kept, search, best: &best, confirmed, learned: &learned, stored: &stored, name };
    if let Some(file) = &args.recipe_out {
        recipe::write(file, loaded, &told)?;
        context.out.say(&format!("wrote {}", file.display()));
    }
    report::print_study(context, &told)?;
    context.out.next(&format!("dtrain run {}", shell_quoted(path.display())));
    Ok(ExitReason::Done)
}

/// Returns the path at which the plan of the best setting is saved.
fn save_plan(context: &Context, args: &TuneArgs, name: &str) -> Result<PathBuf, CommandError> {
    if let Some(path) = &args.out {
        return Ok(path.clone());
    }
    let folder = context.home.path().join("studies");
    let file = folder.join(format!("{name}.plan.json"));
    let is_own = files::make_folder(&folder).and_then(|()| files::check_own(&folder));
    is_own.and_then(|()| files::check_own(&file)).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot use {}", folder.display()))
            .cause(error.to_string())
    })?;
    Ok(file)
}
