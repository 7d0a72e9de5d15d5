//! `dtrain run`: plans a recipe, records a trial, and trains.

use crate::args::RunArgs;
use crate::begin_trial::{NewRun, record_and_launch, value_sources};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::continue_trial::resume_or_attach;
use crate::exit_code::ExitReason;
use crate::load_recipe::{LoadedRecipe, load, load_without_running};
use crate::plan_file::SavedPlan;
use crate::pretrained::{WeightsFolder, download, hub_model};
use crate::run_mode::RunMode;
use crate::source_checkpoint::SourceCheckpoint;
use crate::trials::history_failure;
use crate::{audit, hosts, rates, slurm_job, this_host, trials, workdir};
use dtrain_planner::emit::{ConfigFormat, emit};
use dtrain_planner::engine::{Engine as _, FSDP_PROGRAM};
use dtrain_planner::{Plan, rates_key};
use dtrain_recipes::{HubModel, LauncherKind, Recipe};
use dtrain_runner::ledger::History;
use std::collections::BTreeMap;
use std::path::Path;

/// Default length of the text that is sampled after training, in tokens.
const SAMPLE_TOKENS: u32 = 120;

/// Plans unless a plan is given, records the trial, and trains.
pub(crate) fn run(context: &Context, args: &RunArgs) -> CommandResult {
    let from = args.from.as_deref().map(|from| with_commit(context, from)).transpose()?;
    let what = match SavedPlan::read(Path::new(&args.target))? {
        Some(saved) => RunTarget::Plan(Box::new(saved)),
        None => RunTarget::Recipe(Box::new(load_run_recipe(context, args, from.as_deref())?)),
    };
    let recipe = match &what {
        RunTarget::Plan(saved) => &saved.plan.recipe,
        RunTarget::Recipe(loaded) => &loaded.checked.recipe,
    };
    if let RunTarget::Recipe(loaded) = &what {
        workdir::check(context, recipe, &loaded.folder)?;
    }
    if let RunTarget::Plan(saved) = &what {
        refuse_other_engine(&saved.plan, &args.target)?;
    }
    if let Some(exit) = slurm_job::submit_if_needed(context, recipe, args.detach)? {
        return Ok(exit);
    }
    if let Some(trial) = slurm_job::trial_of_requeued_job(context, recipe) {
        return resume_or_attach(context, &trial, RunMode::Resume, false);
    }
    let mut history = trials::open_history(context)?;
    let beginning = match &from {
        Some(from) => Some(InitialWeights::find(context, &history, from)?),
        None => what.weights(context)?.map(InitialWeights::Folder),
    };
    let (plan, sources, folder, recipe) = match what {
        RunTarget::Plan(saved) => {
            refuse_layers(args, &saved)?;
            refuse_stale(context, &history, &saved, args.stale_ok)?;
            let plan = saved.plan;
            let folder = plan.data_root.clone();
            (plan, BTreeMap::new(), folder, "saved plan".to_owned())
        }
        RunTarget::Recipe(mut loaded) => {
            loaded.tokenizer = match &beginning {
                Some(InitialWeights::Trial(origin)) => origin.tokenizer(),
                Some(InitialWeights::Folder(weights)) => {
                    weights.check(&loaded.checked.recipe)?;
                    weights.tokenizer()?
                }
                None => None,
            };
            let plan = rates::plan(context, &mut history, &loaded)?;
            let sources = value_sources(&loaded);
            let recipe = audit::recipe_owner(&loaded);
            (plan, sources, loaded.folder, recipe)
        }
    };
    let (parent, weights) = match beginning {
        Some(InitialWeights::Trial(origin)) => (Some(origin.weights_for(&plan.recipe)?), None),
        Some(InitialWeights::Folder(weights)) => {
            weights.check(&plan.recipe)?;
            (None, Some(weights))
        }
        None => (None, None),
    };
    let sample = if args.no_sample { 0 } else { args.sample.unwrap_or(SAMPLE_TOKENS) };
    let begin = NewRun {
        plan: &plan,
        sources,
        folder: &folder,
        recipe,
        parent,
        weights,
        detach: args.detach,
        sample,
    };
    record_and_launch(context, &mut history, begin)
}

/// Source of a trial's initial weights.
enum InitialWeights {
    /// A checkpoint of an earlier trial.
    Trial(Box<SourceCheckpoint>),
    /// A model folder of Hugging Face transformers.
    Folder(WeightsFolder),
}

impl InitialWeights {
    /// Finds the model folder or trial that the user typed.
    fn find(context: &Context, history: &History, typed: &str) -> Result<Self, CommandError> {
        match WeightsFolder::find(context.out, typed)? {
            Some(weights) => Ok(Self::Folder(weights)),
            None => Ok(Self::Trial(Box::new(Self::trial(context, history, typed)?))),
        }
    }

    /// Finds the checkpoint of the trial that the user typed; the error for another name suggests the Hugging
    /// Face Hub.
    fn trial(context: &Context, history: &History, typed: &str) -> Result<SourceCheckpoint, CommandError> {
        let name = typed.split('@').next().unwrap_or(typed);
        match trials::find(history, name) {
            Err(failure) if failure.exit() == ExitReason::Usage => Err(failure.hint(format!(
                "to begin with a model of the Hugging Face Hub, {}",
                download(Path::new(typed))
            ))),
            _ => SourceCheckpoint::find(context, history, typed),
        }
    }
}

/// Recipe or saved plan that the user wants to train.
enum RunTarget {
    Plan(Box<SavedPlan>),
    Recipe(Box<LoadedRecipe>),
}

impl RunTarget {
    /// Returns the pretrained weights from which the recipe starts; `None` if it names none.
    fn weights(&self, context: &Context) -> Result<Option<WeightsFolder>, CommandError> {
        let of = |recipe: &Recipe, root: &Path| WeightsFolder::of_recipe(context.out, recipe, root);
        match self {
            Self::Plan(saved) => of(&saved.plan.recipe, &saved.plan.data_root),
            Self::Recipe(loaded) => of(&loaded.checked.recipe, &loaded.folder),
        }
    }
}

/// Adds its commit to a model of the Hub that the user typed, so that a branch is resolved once. Returns any
/// other text as it is.
fn with_commit(context: &Context, typed: &str) -> Result<String, CommandError> {
    if hub_model(typed)?.is_none() {
        return Ok(typed.to_owned());
    }
    let weights = WeightsFolder::find(context.out, typed)?;
    Ok(weights.map_or_else(|| typed.to_owned(), |weights| weights.source()))
}

/// Loads the recipe; `from` is `--from`, in which a model of the Hub has its commit.
fn load_run_recipe(
    context: &Context,
    args: &RunArgs,
    from: Option<&str>,
) -> Result<LoadedRecipe, CommandError> {
    let mut extra = Vec::new();
    extra.extend(args.name.as_ref().map(|name| ("name", format!("{name:?}"))));
    extra.extend(args.ranks.map(|ranks| ("cluster.ranks", ranks.to_string())));
    extra.extend(args.engine.as_ref().map(|engine| ("engine", format!("{engine:?}"))));
    if let Some(from) = from {
        let recipe = load_without_running(&args.target, &args.layers, &extra)?.checked.recipe;
        if recipe.train.from.is_some() {
            note_moved_branch(context, &recipe, args.from.as_deref(), from);
            // The flag takes precedence over the key.
            let source = WeightsFolder::find(context.out, from)?.map(|weights| weights.source());
            extra.push(("train.from", format!("{:?}", source.as_deref().unwrap_or("none"))));
        }
    }
    load(context.out, &args.target, &args.layers, &extra)
}

/// Says which commit is used if `--from` names a branch of the model that the recipe pins to another commit.
fn note_moved_branch(context: &Context, recipe: &Recipe, typed: Option<&str>, from: &str) {
    let typed = typed.and_then(HubModel::typed).and_then(Result::ok);
    let (Some(typed), Some(pinned), Ok(used)) = (typed, recipe.train.hub_model(), HubModel::parse(from))
    else {
        return;
    };
    if typed.commit().is_none() && pinned.is_model_of(&used) && pinned.commit() != used.commit() {
        context.out.say(&format!(
            "{}: {} has moved past the commit of the recipe: training begins with {used}, and not with {pinned}; leave \
             --from out to begin with that",
            context.out.paint.yellow("note"),
            typed.revision()
        ));
    }
}

/// Refuses settings on the command line for a saved plan, which runs unchanged.
fn refuse_layers(args: &RunArgs, saved: &SavedPlan) -> Result<(), CommandError> {
    if let Some(variable) = saved.other_variables().first() {
        let what = format!("the environment variable {variable} applies to recipes, not to saved plans");
        return Err(CommandError::new(ExitReason::Usage, what)
            .hint(format!("unset {variable}, or make a new plan with it")));
    }
    let layers = &args.layers;
    if layers.set.is_empty()
        && layers.cluster.is_none()
        && args.name.is_none()
        && args.ranks.is_none()
        && args.engine.is_none()
    {
        return Ok(());
    }
    Err(CommandError::new(
        ExitReason::Usage,
        "--set, --cluster, --name, --ranks and --engine apply to recipes, not to saved plans",
    )
    .hint("run the recipe with them, or make a new plan"))
}

/// Refuses a plan made for another engine, and says how to start that engine.
fn refuse_other_engine(plan: &Plan, file: &str) -> Result<(), CommandError> {
    let Some(engine) = &plan.engine else { return Ok(()) };
    let on = &plan.host.name;
    let message = format!(
        "{file} is a plan for {engine} on {on}, and `dtrain run` trains with dtrain's own worker on the hosts of the recipe"
    );
    let reads = |format: &ConfigFormat| format.engine().is_some_and(|one| one.name() == engine);
    let format = ConfigFormat::ALL.into_iter().find(reads);
    let start = format.and_then(|format| Some((format.word(), emit(plan, format).ok()?.command("FOLDER"))));
    let failure = CommandError::new(ExitReason::Usage, message);
    Err(match start {
        Some((format, start)) => failure.hint(format!(
            "write it as files with `dtrain plan RECIPE --on \"{on}\" --emit {format} --emit-to FOLDER` and the flags it \
             was planned with, and start it there with `{start}`"
        )),
        // Its version does not tell an older plan of this name, for Hugging Face's Trainer, from one of today.
        None if engine == FSDP_PROGRAM.name() => failure.hint(
            "`dtrain run RECIPE --engine fsdp` plans for the hosts of the recipe, and trains there; if an older dtrain made \
             this plan, it is for Hugging Face's Trainer: plan again with `--emit hf-trainer`",
        ),
        None => failure.hint("`dtrain plan RECIPE` plans for the hosts of the recipe"),
    })
}

/// Refuses a plan that is out of date; with `--stale-ok`, prints the changes instead.
fn refuse_stale(
    context: &Context,
    history: &History,
    saved: &SavedPlan,
    is_allowed: bool,
) -> Result<(), CommandError> {
    let mut changes = saved.changes(context);
    changes.extend(host_changes(context, history, &saved.plan)?);
    if changes.is_empty() {
        return Ok(());
    }
    if is_allowed {
        let warning = context.out.paint.yellow("warning");
        context.out.say(&format!("{warning}: the plan is stale: {}", changes.join("; ")));
        return Ok(());
    }
    let failure =
        CommandError::new(ExitReason::StalePlan, "the plan is stale: something it depends on has changed");
    let failure = changes.into_iter().fold(failure, CommandError::cause);
    Err(failure.hint("plan again, or run it anyway with --stale-ok"))
}

/// Describes what has changed since the plan was made: hosts, program version and measured rates.
fn host_changes(context: &Context, history: &History, plan: &Plan) -> Result<Vec<String>, CommandError> {
    let host = match plan.recipe.cluster.launcher {
        LauncherKind::Local => this_host::facts(),
        // Hosts of a data-sheet plan were never measured.
        LauncherKind::Ssh | LauncherKind::Slurm if plan.is_estimated() => {
            hosts::facts(&mut hosts::connect_to_plan(context, &plan.recipe)?)?
        }
        // Changes of other hosts are found when they are connected.
        LauncherKind::Ssh | LauncherKind::Slurm => return Ok(Vec::new()),
    };
    let known =
        history.rates(&host, &rates_key(&plan.recipe, &host)).map_err(|error| history_failure(&error))?;
    Ok(plan.drift(&host, known.as_ref(), this_host::PROGRAM).iter().map(ToString::to_string).collect())
}
