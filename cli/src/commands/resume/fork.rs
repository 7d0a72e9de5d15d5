//! Forked trials: `resume` with changed settings or data starts a new trial from a checkpoint of the old one.

use crate::args::ResumeArgs;
use crate::begin_trial::{NewRun, record_and_launch, value_sources};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::continue_trial::resume_or_attach;
use crate::exit_code::ExitReason;
use crate::load_recipe::LoadedRecipe;
use crate::source_checkpoint::SourceCheckpoint;
use crate::{rates, slurm_job, trials};
use dtrain_protocol::InputManifest;
use dtrain_recipes::{LauncherKind, Recipe};
use std::mem::discriminant;

/// Continues a trial as a new trial: with other settings, from an older checkpoint, or with changed data.
pub(super) fn resume_as_fork(context: &Context, args: &ResumeArgs) -> CommandResult {
    drop(trials::read_history(context)?);
    let mut history = trials::open_history(context)?;
    let origin = SourceCheckpoint::find_state(context, &history, &args.trial.trial)?;
    if origin.trial.row.status.is_live() {
        let label = origin.label();
        return Err(CommandError::new(ExitReason::Usage, format!("{label} is running"))
            .hint(format!("`dtrain stop {label}` saves a checkpoint and stops it")));
    }
    let (loaded, mut changes) = origin.reload(args)?;
    let recipe = &loaded.checked.recipe;
    refuse_other_training(&origin, recipe, args.accept_data)?;
    if origin.trial.is_of_engine() && recipe.cluster.launcher == LauncherKind::Ssh {
        let label = origin.label();
        let what = format!(
            "the checkpoint of {label} is on this machine, and its engine would look for it on the hosts"
        );
        return Err(CommandError::new(ExitReason::Usage, what).hint(format!(
            "`dtrain run RECIPE --from {label}` begins another training there with its weights"
        )));
    }
    if let Some(exit) = slurm_job::submit_if_needed(context, recipe, args.detach)? {
        return Ok(exit);
    }
    if let Some(trial) = slurm_job::trial_of_requeued_job(context, recipe) {
        return resume_or_attach(context, &trial, crate::run_mode::RunMode::Resume, false);
    }
    let inputs = accepted_data_change(context, &origin, &loaded, args.accept_data, &mut changes)?;
    let plan = rates::plan(context, &mut history, &loaded)?;
    changes.extend(origin.rate_change(&history, &plan)?.map(|change| change.to_string()));
    let parent = origin.parent(false, changes, inputs);
    let sources = value_sources(&loaded);
    let begin = NewRun {
        plan: &plan,
        sources,
        folder: &loaded.folder,
        recipe: crate::audit::recipe_owner(&loaded),
        parent: Some(parent),
        detach: args.detach,
        weights: None,
        sample: 0,
    };
    record_and_launch(context, &mut history, begin)
}

/// Refuses another model, optimizer or sample order, to which the saved state would not fit.
fn refuse_other_training(
    origin: &SourceCheckpoint,
    recipe: &Recipe,
    accept_data: bool,
) -> Result<(), CommandError> {
    let (then, label) = (&origin.plan.recipe, origin.label());
    let batch = origin.plan.best().candidate.split.global();
    let is_batch =
        matches!(&recipe.train.batch, dtrain_recipes::Tunable::Pinned(samples) if samples.0 == batch);
    let format = |recipe: &Recipe| recipe.data.as_ref().map(|data| data.format.clone());
    let differs = [
        ("engine", then.engine != recipe.engine),
        ("model", then.model != recipe.model),
        ("train.batch", !is_batch),
        ("train.seed", then.train.seed != recipe.train.seed),
        (
            "train.optimizer.kind",
            discriminant(&then.train.optimizer.kind) != discriminant(&recipe.train.optimizer.kind),
        ),
        ("data", format(then) != format(recipe)),
        ("sync", then.sync != recipe.sync),
    ];
    if let Some((key, _)) = differs.iter().find(|(_, differs)| *differs) {
        let what = format!("{label} cannot continue with another `{key}`");
        return Err(CommandError::new(ExitReason::Usage, what)
            .hint(format!("`dtrain run RECIPE --from {label}` begins another training with its weights")));
    }
    if then.data != recipe.data && !accept_data {
        return Err(CommandError::new(ExitReason::Usage, format!("{label} was trained on other data"))
            .hint("--accept-data continues with the new data"));
    }
    let (step, last) = (origin.checkpoint.step, recipe.objective.stop.steps);
    if let Some(last) = last.filter(|last| *last <= step.0) {
        let what = format!("{label} is at step {step}, and `objective.stop.steps` is {last}");
        return Err(CommandError::new(ExitReason::Usage, what)
            .hint(format!("train longer, such as with `--set objective.stop.steps={}`", 2 * step.0)));
    }
    Ok(())
}

/// Returns the current data if they differ from the checkpoint's and the user accepts the change; `None` if
/// they do not differ.
fn accepted_data_change(
    context: &Context,
    origin: &SourceCheckpoint,
    loaded: &LoadedRecipe,
    accept_data: bool,
    changes: &mut Vec<String>,
) -> Result<Option<InputManifest>, CommandError> {
    let Some(then) = origin.inputs() else { return Ok(None) };
    let Some(now) = rates::inputs(context, loaded)? else { return Ok(None) };
    let found = then.differences(&now);
    if found.is_empty() {
        return Ok(None);
    }
    if !accept_data {
        let what = format!("the data of {} has changed", origin.label());
        let failure = found.into_iter().fold(CommandError::new(ExitReason::Usage, what), CommandError::cause);
        return Err(failure.hint("restore the data, or continue with it as it is now with --accept-data"));
    }
    changes.extend(found.into_iter().map(|difference| format!("data: {difference}")));
    Ok(Some(now))
}
