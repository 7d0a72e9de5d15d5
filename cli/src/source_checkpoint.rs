//! A checkpoint of an earlier trial, from which a new trial starts.

use crate::args::ResumeArgs;
use crate::checkpoint_sources::CheckpointSelector;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::find_checkpoint;
use crate::load_recipe::{LoadedRecipe, merge_user_layers};
use crate::recipe_diff::{changed_keys, differences};
use crate::trials::history_failure;
use crate::{engine_checkpoints, networks, trials};
use dtrain_planner::{LearningRateChange, Plan, learning_rate_change};
use dtrain_protocol::input_manifest::{INPUTS, TOKENIZER};
use dtrain_protocol::{InputManifest, StepId};
use dtrain_recipes::{CheckContext, Document, Recipe, check};
use dtrain_runner::ledger::{Checkpoint, History, Parent, TrialDetails};
use std::collections::BTreeMap;

/// A checkpoint of an earlier trial, from which a new trial starts, with that trial and its plan.
pub(crate) struct SourceCheckpoint {
    pub(crate) trial: TrialDetails,
    pub(crate) plan: Plan,
    pub(crate) checkpoint: Checkpoint,
}

impl SourceCheckpoint {
    /// Finds the checkpoint that the user typed: `TRIAL` (its newest one) or `TRIAL@STEP`.
    pub(crate) fn find(context: &Context, history: &History, typed: &str) -> Result<Self, CommandError> {
        let (name, step) = split_step(typed)?;
        let trial = trials::trial(context, history, name)?;
        trials::refuse_imported(&trial)?;
        let checkpoint = find_checkpoint::find_intact(context, &trial, CheckpointSelector::of(step))?;
        let plan = trials::plan_of_trial(&trial)?;
        Ok(Self { trial, plan, checkpoint })
    }

    /// Finds the checkpoint that the user typed, with the whole state of the training: for a trial of a training
    /// engine, the engine's own checkpoint.
    pub(crate) fn find_state(
        context: &Context,
        history: &History,
        typed: &str,
    ) -> Result<Self, CommandError> {
        let (name, step) = split_step(typed)?;
        let trial = trials::trial(context, history, name)?;
        if !trial.is_of_engine() {
            return Self::find(context, history, typed);
        }
        trials::refuse_imported(&trial)?;
        let checkpoint = engine_checkpoints::complete(context, &trial, CheckpointSelector::of(step))?;
        let plan = trials::plan_of_trial(&trial)?;
        Ok(Self { trial, plan, checkpoint })
    }

    /// Returns the tokenizer in the checkpoint as JSON; `None` without one.
    pub(crate) fn tokenizer(&self) -> Option<Vec<u8>> {
        std::fs::read(self.checkpoint.folder.join(TOKENIZER)).ok()
    }

    /// Returns the manifest of the data on which the checkpoint was trained; `None` if an older version of
    /// dtrain wrote it.
    pub(crate) fn inputs(&self) -> Option<InputManifest> {
        serde_json::from_slice(&std::fs::read(self.checkpoint.folder.join(INPUTS)).ok()?).ok()
    }

    pub(crate) fn label(&self) -> &str {
        &self.trial.row.label
    }

    pub(crate) fn parent(
        &self,
        weights_only: bool,
        changes: Vec<String>,
        inputs: Option<InputManifest>,
    ) -> Parent {
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

    /// Returns how the learning-rate schedule changes if `plan` continues from this checkpoint; `None` if it
    /// does not.
    pub(crate) fn rate_change(
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

    /// Returns the parent of a trial that starts from the weights alone; `Err` if the recipe has another
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

    /// Returns the settings with which the trial was trained, including those that the planner chose.
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
        // Where the recipe left it open, the one that was chosen goes on.
        if let Some(engine) = settings.get_mut("engine") {
            *engine = format!("{:?}", self.plan.recipe.engine.name());
        }
        Ok(settings)
    }

    /// Loads the trial's recipe again with the user's overrides.
    pub(crate) fn reload(&self, args: &ResumeArgs) -> Result<(LoadedRecipe, Vec<String>), CommandError> {
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

/// Splits `TRIAL` or `TRIAL@STEP` into name and step.
fn split_step(typed: &str) -> Result<(&str, Option<StepId>), CommandError> {
    let Some((name, step)) = typed.rsplit_once('@') else { return Ok((typed, None)) };
    let step = step.parse().map_err(|_| {
        CommandError::new(ExitReason::Usage, format!("`{step}` is not the number of a step"))
            .hint("write TRIAL@STEP, such as `last@200`")
    })?;
    Ok((name, Some(StepId(step))))
}
