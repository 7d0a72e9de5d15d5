//! Forked trials, which start from a checkpoint of another trial: `resume` with changed settings or data,
//! `run --from`.

use crate::args::ResumeArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::resume;
use crate::commands::run::{self, NewRun};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::find_checkpoint::{self, CheckpointSelector};
use crate::load_recipe::{LoadedRecipe, merge_user_layers};
use crate::recipe_diff::{changed_keys, differences};
use crate::trials::history_failure;
use crate::{networks, rates, slurm_job, trials};
use dtrain_planner::{LearningRateChange, Plan, learning_rate_change};
use dtrain_protocol::input_manifest::{INPUTS, TOKENIZER};
use dtrain_protocol::{InputManifest, StepId};
use dtrain_recipes::{CheckContext, Document, Recipe, check};
use dtrain_runner::ledger::{Checkpoint, History, Parent, TrialDetails, TrialStatus};
use std::collections::BTreeMap;
use std::mem::discriminant;

/// A checkpoint that a new trial starts from.
pub(crate) struct SourceCheckpoint {
    trial: TrialDetails,
    plan: Plan,
    checkpoint: Checkpoint,
}

impl SourceCheckpoint {
    /// Finds the checkpoint that the user typed: `TRIAL` (its newest) or `TRIAL@STEP`.
    pub(crate) fn find(context: &Context, history: &History, typed: &str) -> Result<Self, CommandError> {
        let (name, step) = split_step(typed)?;
        let trial = trials::trial(context, history, name)?;
        trials::refuse_imported(&trial)?;
        let checkpoint = find_checkpoint::find_intact(context, &trial, CheckpointSelector::of(step))?;
        let plan = trials::plan_of_trial(&trial)?;
        Ok(Self { trial, plan, checkpoint })
    }

    /// Returns the checkpoint's tokenizer as JSON.
    pub(crate) fn tokenizer(&self) -> Option<Vec<u8>> {
        std::fs::read(self.checkpoint.folder.join(TOKENIZER)).ok()
    }

    /// Returns the data that the checkpoint was trained on; `None` if an older version of dtrain wrote it.
    fn inputs(&self) -> Option<InputManifest> {
        serde_json::from_slice(&std::fs::read(self.checkpoint.folder.join(INPUTS)).ok()?).ok()
    }

    fn label(&self) -> &str {
        &self.trial.row.label
    }

    fn parent(&self, weights_only: bool, changes: Vec<String>, inputs: Option<InputManifest>) -> Parent {
        Parent {
            trial: self.trial.row.id.clone(),
            label: self.label().to_owned(),
            step: self.checkpoint.step,
            folder: self.checkpoint.folder.clone(),
            weights_only,
            changes,
            inputs,
        }
    }

    /// Returns the change of the learning rate schedule when `plan` continues from this checkpoint.
    fn rate_change(
        &self,
        history: &History,
        plan: &Plan,
    ) -> Result<Option<LearningRateChange>, CommandError> {
        let done = self.checkpoint.step.0;
        let rates =
            history.curve(&self.trial.row.id, "learning_rate").map_err(|error| history_failure(&error))?;
        let applied = rates.into_iter().find(|sample| sample.step == done).map(|sample| sample.value);
        Ok(learning_rate_change(&self.plan, plan, done, applied))
    }

    /// Returns the parent of a trial that starts from the weights alone; fails if the recipe has another
    /// model.
    pub(crate) fn weights_for(&self, recipe: &Recipe) -> Result<Parent, CommandError> {
        let there = &self.plan.recipe.model;
        // Adapters are initialized anew on weights that have none.
        if recipe.model != *there && recipe.model.base() != *there {
            let what =
                format!("the model is not that of {}, whose weights it would begin with", self.label());
            let failure = differences("model", there, &recipe.model)
                .into_iter()
                .fold(CommandError::new(ExitReason::Usage, what), CommandError::cause);
            return Err(failure.hint("give the recipe the model of that trial"));
        }
        Ok(self.parent(true, Vec::new(), None))
    }

    /// Returns the settings that the trial was trained with, including those that the planner chose.
    fn settings(&self) -> Result<BTreeMap<String, String>, CommandError> {
        let mut settings = self.plan.settings.clone();
        if settings.is_empty() {
            let what =
                format!("the settings of {} were not recorded: an older dtrain planned it", self.label());
            return Err(CommandError::new(ExitReason::Usage, what)
                .hint(format!("`dtrain resume {0}` continues it as it is; `dtrain run RECIPE --from {0}` begins another training with its weights", self.label())));
        }
        let best = &self.plan.best().candidate;
        settings.insert("train.batch".into(), best.split.global().to_string());
        settings.insert("train.learning_rate".into(), format!("{:?}", best.learning_rate));
        Ok(settings)
    }

    /// Loads the recipe of the trial with the user's overrides.
    fn reload(&self, args: &ResumeArgs) -> Result<(LoadedRecipe, Vec<String>), CommandError> {
        let before = self.settings()?;
        let name = format!("settings of {}", self.label());
        let folder = self.plan.data_root.clone();
        let checking = CheckContext { folder: folder.clone(), name: self.plan.recipe.name.clone() };
        let document = merge_user_layers(Document::from_settings(&name, &before)?, &args.layers)?;
        let mut checked = check(&document, &checking)?;
        networks::outline_custom_network(&mut checked)?;
        let changes = changed_keys(&before, &checked.settings());
        let tokenizer = self.tokenizer();
        let project = folder.clone();
        Ok((LoadedRecipe { name, checked, folder, project, tokenizer }, changes))
    }
}

/// Splits `TRIAL` or `TRIAL@STEP`.
fn split_step(typed: &str) -> Result<(&str, Option<StepId>), CommandError> {
    let Some((name, step)) = typed.rsplit_once('@') else { return Ok((typed, None)) };
    let step = step.parse().map_err(|_| {
        CommandError::new(ExitReason::Usage, format!("`{step}` is not the number of a step"))
            .hint("write TRIAL@STEP, such as `last@200`")
    })?;
    Ok((name, Some(StepId(step))))
}

/// Continues a trial with other settings, from an older checkpoint, or with changed data, as a new trial.
pub(crate) fn resume_as_fork(context: &Context, args: &ResumeArgs) -> CommandResult {
    drop(trials::read_history(context)?);
    let mut history = trials::open_history(context)?;
    let origin = SourceCheckpoint::find(context, &history, &args.trial.trial)?;
    if origin.trial.row.status == TrialStatus::Running {
        let label = origin.label();
        return Err(CommandError::new(ExitReason::Usage, format!("{label} is running"))
            .hint(format!("`dtrain stop {label}` saves a checkpoint and stops it")));
    }
    let (loaded, mut changes) = origin.reload(args)?;
    let recipe = &loaded.checked.recipe;
    refuse_other_training(&origin, recipe, args.accept_data)?;
    if let Some(exit) = slurm_job::submit_if_needed(context, recipe, args.detach)? {
        return Ok(exit);
    }
    if let Some(trial) = slurm_job::trial_of_requeued_job(context, recipe) {
        return resume::resume_or_attach(context, &trial, crate::run_mode::RunMode::Resume, false);
    }
    let inputs = accepted_data_change(context, &origin, &loaded, args.accept_data, &mut changes)?;
    let plan = rates::plan(context, &mut history, &loaded)?;
    changes.extend(origin.rate_change(&history, &plan)?.map(|change| change.to_string()));
    let parent = origin.parent(false, changes, inputs);
    let sources = run::value_sources(&loaded);
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
    run::record_and_launch(context, &mut history, begin)
}

/// Refuses to continue with another model, optimizer or sample order: the saved state would not fit.
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

/// Returns the current data if it differs from the checkpoint's and the user accepts the change.
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
