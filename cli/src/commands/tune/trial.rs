//! One trial of a study, supervised in its own thread.

use super::study_config::{StudyConfig, outcome_of_verdict};
use crate::begin_trial::{new_trial, value_sources, write_plan_file};
use crate::color::ColorMode;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::initial_checkpoint::{import_weights, import_weights_again};
use crate::load_recipe::LoadedRecipe;
use crate::pretrained::WeightsFolder;
use crate::run_mode::{RunMode, TrialRun};
use crate::run_trial::run_quietly;
use crate::slots::HostShare;
use crate::trials::history_failure;
use crate::{audit, rates, trials, unreported_metrics, workdir};
use dtrain_planner::Plan;
use dtrain_planner::tune::{TrialFailure, TrialOutcome, TrialValue};
use dtrain_protocol::{Event, Rank, StampedEvent, TrialId};
use dtrain_recipes::{Metric, Recipe};
use dtrain_runner::driver::DriveOutcome;
use dtrain_runner::ledger::{History, StudyTrialRow, TrialStatus, ValueSource};
use dtrain_runner::machine::Blame;
use dtrain_runner::reporters::Reporters;
use dtrain_runner::{ControllerStatus, Interrupts, Observer, TrialEvent, Verdict};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Message from a trial's thread to the runner.
pub(super) enum TrialMessage {
    /// The trial was recorded under this label.
    Begun(String),
    /// Progress of the trial ([`StudyConfig::progress`]), and the metric as measured at that point.
    Report(u64, f64),
    /// A host of the trial failed, for this reason.
    Trouble(String),
    /// The trial failed, for this reason.
    Failed(String),
    /// The trial's thread is finished.
    Over(Result<TrialEnd, CommandError>),
}

/// Result of a trial's thread.
pub(super) enum TrialEnd {
    /// The trial ended with an outcome for the study.
    Ended(TrialOutcome),
    /// The trial was stopped and can be resumed.
    Stopped,
}

/// Input of a trial's thread.
pub(super) struct TrialJob<'a> {
    pub(super) context: &'a Context,
    pub(super) loaded: &'a LoadedRecipe,
    pub(super) kept: &'a StudyConfig,
    /// Name of the trial's study.
    pub(super) name: &'a str,
    pub(super) number: u64,
    pub(super) values: Vec<TrialValue>,
    /// Source of the proposed values, recorded in the history.
    pub(super) source: serde_json::Value,
    /// Recipe with the proposed values, restricted to the hosts of the trial's slot.
    pub(super) recipe: Recipe,
    /// Share of a host's cores and memory that the trial gets.
    pub(super) share: HostShare,
    pub(super) interrupts: Arc<Interrupts>,
    pub(super) say: Sender<(u64, TrialMessage)>,
}

/// A trial that is recorded and ready to run.
struct RecordedTrial {
    id: TrialId,
    label: String,
    plan: Plan,
    how: RunMode,
}

impl TrialJob<'_> {
    /// Runs the trial to its end, and sends the result to the runner.
    pub(super) fn run(self) {
        let over = self.drive();
        self.send(TrialMessage::Over(over));
    }

    fn send(&self, message: TrialMessage) {
        // The receiver is gone if the study ended with an error.
        drop(self.say.send((self.number, message)));
    }

    fn drive(&self) -> Result<TrialEnd, CommandError> {
        let mut history = trials::open_history(self.context)?;
        let recorded = match self.find_recorded(&mut history)? {
            Some(recorded) => recorded,
            None => match self.create(&mut history)? {
                Ok(created) => created,
                Err(outcome) => return Ok(TrialEnd::Ended(outcome)),
            },
        };
        self.send(TrialMessage::Begun(recorded.label.clone()));
        let metric = &self.kept.base_recipe.objective.metric;
        // Reports that were recorded while the study was not running.
        let known = history.curve(&recorded.id, metric.name()).map_err(|error| history_failure(&error))?;
        let RecordedTrial { id, label, plan, how } = &recorded;
        let batch = plan.batch.value;
        for sample in known {
            self.send(TrialMessage::Report(self.kept.progress(sample.step, batch), sample.value));
        }
        let task = TrialRun { trial: id, label, plan, how: *how, detach: false, sample: 0 };
        let is_script = plan.recipe.runs_foreign_program();
        let mut listener =
            TrialListener { job: self, metric, batch, is_script, reporters: Reporters::default() };
        let interrupts = Arc::clone(&self.interrupts);
        let ending = run_quietly(self.context, &mut history, &task, &mut listener, interrupts)?;
        let DriveOutcome::Ended { verdict, .. } = ending else { return Ok(TrialEnd::Stopped) };
        if let Verdict::Failed(failure) = &verdict {
            self.send(TrialMessage::Failed(failure.to_string()));
        }
        let trial = history
            .trial(id, &|id: &TrialId| trials::activity(self.context, id))
            .map_err(|error| history_failure(&error))?;
        let outcome = outcome_of_verdict(&verdict, &trial);
        if matches!(outcome, Some(TrialOutcome::Failed { reason: TrialFailure::Unmeasured }))
            && let Some(failure) =
                unreported_metrics::unreported_failure(self.context, &plan.recipe, &trial, true)
        {
            self.send(TrialMessage::Failed(failure.with_causes()));
        }
        Ok(outcome.map_or(TrialEnd::Stopped, TrialEnd::Ended))
    }

    /// Finds the trial of this number in the history, if it was recorded before.
    fn find_recorded(&self, history: &mut History) -> Result<Option<RecordedTrial>, CommandError> {
        let tried = history.study_trials(self.name).map_err(|error| history_failure(&error))?;
        let begun = tried.into_iter().find(|tried| tried.number == self.number).and_then(|tried| tried.trial);
        let Some(id) = begun else { return Ok(None) };
        let trial = history
            .trial(&id, &|id: &TrialId| trials::activity(self.context, id))
            .map_err(|error| history_failure(&error))?;
        let how = if trial.row.status == TrialStatus::Created { RunMode::Start } else { RunMode::Resume };
        let plan = trials::plan_of_trial(&trial)?;
        if trial.checkpoints.is_empty() {
            import_weights_again(self.context, history, &trial, &plan.recipe)?;
        }
        Ok(Some(RecordedTrial { id, label: trial.row.label.clone(), plan, how }))
    }

    /// Plans a trial and records it; the inner `Err` is its outcome if it cannot be planned.
    fn create(&self, history: &mut History) -> Result<Result<RecordedTrial, TrialOutcome>, CommandError> {
        let tried = |trial: Option<TrialId>, rejection: Option<String>| {
            let json = json!({ "values": self.values, "source": self.source });
            StudyTrialRow { number: self.number, json, trial, rejection }
        };
        let plan = match rates::plan_derived_recipe(self.context, history, self.loaded, &self.recipe) {
            Ok(plan) => plan,
            Err(failure) if failure.exit() == ExitReason::NothingFits => {
                let refused = tried(None, Some(failure.render(ColorMode::plain())));
                history.record_study_trial(self.name, &refused).map_err(|error| history_failure(&error))?;
                return Ok(Err(TrialOutcome::Failed { reason: TrialFailure::Rejected }));
            }
            Err(failure) => return Err(failure),
        };
        let plan = self.share.limited(Plan { settings: self.settings(&plan), ..plan });
        let recipe = audit::recipe_owner(self.loaded);
        let mut new = new_trial(&plan, value_sources(self.loaded), &self.loaded.folder, recipe);
        new.study = Some(self.name.to_owned());
        new.sources.extend(self.kept.search_space.param_names().map(|path| (path, ValueSource::Search)));
        let weights = WeightsFolder::of_recipe(self.context.out, &plan.recipe, &plan.data_root)?;
        if let Some(weights) = &weights {
            weights.note(&mut new.provenance)?;
        }
        workdir::note(self.context, &plan, &mut new.provenance)?;
        let created = trials::wait_for_history(self.context, || history.create_trial(&new))
            .map_err(|error| history_failure(&error))?;
        history
            .record_study_trial(self.name, &tried(Some(created.id.clone()), None))
            .map_err(|error| history_failure(&error))?;
        write_plan_file(self.context, &created.id, &plan)?;
        if let Some(weights) = &weights {
            import_weights(weights, self.context, history, &created.id, &plan.recipe)?;
        }
        Ok(Ok(RecordedTrial { id: created.id, label: created.label, plan, how: RunMode::Start }))
    }

    /// Returns the settings to record: those of the study's recipe, the proposed values, and the trial's
    /// length.
    fn settings(&self, plan: &Plan) -> BTreeMap<String, String> {
        let mut settings = plan.settings.clone();
        if self.kept.steps.is_some() {
            settings.retain(|path, _| !path.starts_with("objective.stop"));
        }
        let stop = &plan.recipe.objective.stop;
        if let Some(steps) = stop.steps {
            settings.insert("objective.stop.steps".into(), steps.to_string());
        }
        if let Some(samples) = stop.samples.filter(|_| self.kept.samples.is_some()) {
            settings.insert("objective.stop.samples".into(), samples.0.to_string());
        }
        settings.extend(self.kept.search_space.settings(&self.values));
        settings
    }
}

/// Observer that converts a trial's events to messages for the runner.
struct TrialListener<'a, 'b> {
    job: &'a TrialJob<'b>,
    metric: &'a Metric,
    /// Number of samples per step.
    batch: u64,
    is_script: bool,
    /// Selects the ranks whose metrics count, if a script trains.
    reporters: Reporters,
}

impl TrialListener<'_, '_> {
    /// Returns step and value of the objective's metric in an event; `None` if it has none.
    fn measured(&mut self, said: &StampedEvent) -> Option<(u64, f64)> {
        let step = match &said.event {
            Event::Step(figures) => figures.step,
            Event::Validated { step, .. } | Event::Metrics { step, .. } => *step,
            _ => return None,
        };
        let mut results = self.reporters.results(said).into_iter();
        results.find(|(name, _)| name == self.metric.name()).map(|(_, value)| (step.0, value))
    }
}

impl Observer for TrialListener<'_, '_> {
    fn observe(&mut self, seen: &TrialEvent) {
        match seen {
            TrialEvent::Event(said) if self.is_script || said.rank == Rank(0) => {
                if let Some((step, value)) = self.measured(said) {
                    let at = self.job.kept.progress(step, self.batch);
                    self.job.send(TrialMessage::Report(at, value));
                }
            }
            TrialEvent::Status(
                ControllerStatus::Unreachable { reason, .. } | ControllerStatus::HostLost { reason, .. },
            ) => {
                self.job.send(TrialMessage::Trouble(reason.clone()));
            }
            TrialEvent::Status(ControllerStatus::Backoff { blame: Blame::Machines, failure, .. }) => {
                self.job.send(TrialMessage::Trouble(failure.to_string()));
            }
            TrialEvent::Event(_) | TrialEvent::Status(_) | TrialEvent::Record(_) => {}
        }
    }
}

/// Records in the history that a stopped trial was pruned.
pub(super) fn record_pruned(
    context: &Context,
    history: &mut History,
    study: &str,
    number: u64,
) -> Result<(), CommandError> {
    let tried = history.study_trials(study).map_err(|error| history_failure(&error))?;
    let Some(id) = tried.into_iter().find(|tried| tried.number == number).and_then(|tried| tried.trial)
    else {
        return Ok(());
    };
    let activity = |id: &TrialId| trials::activity(context, id);
    let trial = history.trial(&id, &activity).map_err(|error| history_failure(&error))?;
    if trial.verdict == Some(Verdict::Stopped) {
        history.end_as_pruned(&id).map_err(|error| history_failure(&error))?;
    }
    Ok(())
}
