//! One trial of a study, driven in a thread of its own.

use super::kept::{Kept, of_verdict};
use super::slots::Share;
use crate::commands::{resume, run};
use crate::context::Context;
use crate::drive::{How, Task, drive_quietly};
use crate::failure::{Exit, Failure};
use crate::load::Loaded;
use crate::output::Paint;
use crate::pretrained::{Weights, take_in_again};
use crate::trials::{self, ledger};
use crate::{audit, rates, unreported};
use dtrain_planner::Plan;
use dtrain_planner::tune::{Failure as Why, Outcome, Value};
use dtrain_protocol::{Event, Rank, Stamped, TrialId};
use dtrain_recipes::{Metric, Model, Recipe};
use dtrain_runner::driver::Outcome as Ending;
use dtrain_runner::ledger::{History, Source, Status as TrialStatus, Tried};
use dtrain_runner::machine::Blame;
use dtrain_runner::reporters::Reporters;
use dtrain_runner::{Interrupts, Observer, Seen, Status, Verdict};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// What a trial says.
pub(super) enum Message {
    /// It is recorded under this label.
    Begun(String),
    /// How far it is ([`Kept::progress`]), and the metric then, as it was measured.
    Report(u64, f64),
    /// A machine failed, and what of it.
    Trouble(String),
    /// It failed, and why.
    Failed(String),
    /// It is over.
    Over(Result<Over, Failure>),
}

/// How a trial is over.
pub(super) enum Over {
    /// It has an outcome.
    Ended(Outcome),
    /// It was stopped and can go on.
    Stopped,
}

/// What the thread of a trial is given.
pub(super) struct Job<'a> {
    pub(super) context: &'a Context,
    pub(super) loaded: &'a Loaded,
    pub(super) kept: &'a Kept,
    /// Of the study.
    pub(super) name: &'a str,
    pub(super) number: u64,
    pub(super) values: Vec<Value>,
    /// Why it is tried, for the history.
    pub(super) source: serde_json::Value,
    /// The recipe of its slot, with its values.
    pub(super) recipe: Recipe,
    /// What of its host it may use.
    pub(super) share: Share,
    pub(super) interrupts: Arc<Interrupts>,
    pub(super) say: Sender<(u64, Message)>,
}

/// A trial of the history that can be driven.
struct Recorded {
    id: TrialId,
    label: String,
    plan: Plan,
    how: How,
}

impl Job<'_> {
    /// Drives the trial to its end, and says how it went.
    pub(super) fn run(self) {
        let over = self.drive();
        self.tell(Message::Over(over));
    }

    fn tell(&self, message: Message) {
        // Whoever listened is gone when the study ends by a failure of its own.
        drop(self.say.send((self.number, message)));
    }

    fn drive(&self) -> Result<Over, Failure> {
        let mut history = trials::open_history(self.context)?;
        let recorded = match self.recorded(&mut history)? {
            Some(recorded) => recorded,
            None => match self.create(&mut history)? {
                Ok(created) => created,
                Err(outcome) => return Ok(Over::Ended(outcome)),
            },
        };
        self.tell(Message::Begun(recorded.label.clone()));
        let metric = &self.kept.settled.objective.metric;
        // What was measured while nobody listened.
        let known = history.curve(&recorded.id, metric.name()).map_err(|error| ledger(&error))?;
        let Recorded { id, label, plan, how } = &recorded;
        let batch = plan.batch.value;
        for sample in known {
            self.tell(Message::Report(self.kept.progress(sample.step, batch), sample.value));
        }
        let task = Task { trial: id, label, plan, how: *how, detach: false, sample: 0 };
        let is_script = matches!(plan.recipe.model, Model::Command(_));
        let mut listener = Listener { job: self, metric, batch, is_script, reporters: Reporters::default() };
        let interrupts = Arc::clone(&self.interrupts);
        let ending = drive_quietly(self.context, &mut history, &task, &mut listener, interrupts)?;
        let Ending::Ended { verdict, .. } = ending else { return Ok(Over::Stopped) };
        if let Verdict::Failed(failure) = &verdict {
            self.tell(Message::Failed(failure.to_string()));
        }
        let trial = history
            .trial(id, &|id: &TrialId| trials::is_alive(self.context, id))
            .map_err(|error| ledger(&error))?;
        let outcome = of_verdict(&verdict, &trial);
        if matches!(outcome, Some(Outcome::Failed { why: Why::Unmeasured }))
            && let Some(failure) = unreported::failure(self.context, &plan.recipe, &trial, true)
        {
            self.tell(Message::Failed(failure.words()));
        }
        Ok(outcome.map_or(Over::Stopped, Over::Ended))
    }

    /// The trial of this number, where it was recorded before.
    fn recorded(&self, history: &mut History) -> Result<Option<Recorded>, Failure> {
        let tried = history.tried(self.name).map_err(|error| ledger(&error))?;
        let begun = tried.into_iter().find(|tried| tried.number == self.number).and_then(|tried| tried.trial);
        let Some(id) = begun else { return Ok(None) };
        let trial = history
            .trial(&id, &|id: &TrialId| trials::is_alive(self.context, id))
            .map_err(|error| ledger(&error))?;
        let how = if trial.row.status == TrialStatus::Created { How::Start } else { How::Resume };
        let plan = resume::plan(&trial)?;
        if trial.checkpoints.is_empty() {
            take_in_again(self.context, history, &trial, &plan.recipe)?;
        }
        Ok(Some(Recorded { id, label: trial.row.label.clone(), plan, how }))
    }

    /// Plans and records a new trial; an outcome where it cannot be planned.
    fn create(&self, history: &mut History) -> Result<Result<Recorded, Outcome>, Failure> {
        let tried = |trial: Option<TrialId>, refused: Option<String>| {
            let json = json!({ "values": self.values, "source": self.source });
            Tried { number: self.number, json, trial, refused }
        };
        let plan = match rates::plan_of(self.context, history, self.loaded, &self.recipe) {
            Ok(plan) => plan,
            Err(failure) if failure.exit() == Exit::NothingFits => {
                let refused = tried(None, Some(failure.render(Paint::plain())));
                history.keep_tried(self.name, &refused).map_err(|error| ledger(&error))?;
                return Ok(Err(Outcome::Failed { why: Why::Rejected }));
            }
            Err(failure) => return Err(failure),
        };
        let plan = self.share.limited(Plan { settings: self.settings(&plan), ..plan });
        let recipe = audit::recipe(self.loaded);
        let mut new = run::new_trial(&plan, run::sources(self.loaded), &self.loaded.folder, recipe);
        new.study = Some(self.name.to_owned());
        new.sources.extend(self.kept.searched.recorded().map(|path| (path, Source::Search)));
        let weights = Weights::of_recipe(&plan.recipe, &plan.data_root)?;
        if let Some(weights) = &weights {
            weights.note(&mut new.provenance)?;
        }
        let created =
            trials::waiting(self.context, || history.create_trial(&new)).map_err(|error| ledger(&error))?;
        history
            .keep_tried(self.name, &tried(Some(created.id.clone()), None))
            .map_err(|error| ledger(&error))?;
        run::keep_plan(self.context, &created.id, &plan)?;
        if let Some(weights) = &weights {
            weights.take_in(self.context, history, &created.id, &plan.recipe)?;
        }
        Ok(Ok(Recorded { id: created.id, label: created.label, plan, how: How::Start }))
    }

    /// The settings of the study's recipe, with the proposed values and the length of a trial.
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
        settings.extend(self.kept.searched.settings(&self.values));
        settings
    }
}

/// Listens to one trial.
struct Listener<'a, 'b> {
    job: &'a Job<'b>,
    metric: &'a Metric,
    /// Samples of a step.
    batch: u64,
    is_script: bool,
    /// Whose figures count where it is one.
    reporters: Reporters,
}

impl Listener<'_, '_> {
    /// The metric of an event, and after how many steps.
    fn measured(&mut self, said: &Stamped) -> Option<(u64, f64)> {
        let step = match &said.event {
            Event::Step(figures) => figures.step,
            Event::Validated { step, .. } | Event::Metrics { step, .. } => *step,
            _ => return None,
        };
        let mut results = self.reporters.results(said).into_iter();
        results.find(|(name, _)| name == self.metric.name()).map(|(_, value)| (step.0, value))
    }
}

impl Observer for Listener<'_, '_> {
    fn observe(&mut self, seen: &Seen) {
        match seen {
            Seen::Event(said) if self.is_script || said.rank == Rank(0) => {
                if let Some((step, value)) = self.measured(said) {
                    let at = self.job.kept.progress(step, self.batch);
                    self.job.tell(Message::Report(at, value));
                }
            }
            Seen::Status(Status::Away { reason, .. } | Status::HostLost { reason, .. }) => {
                self.job.tell(Message::Trouble(reason.clone()));
            }
            Seen::Status(Status::Waiting { blame: Blame::Machines, failure, .. }) => {
                self.job.tell(Message::Trouble(failure.to_string()));
            }
            Seen::Event(_) | Seen::Status(_) | Seen::Fact(_) => {}
        }
    }
}

/// Ends a trial that was stopped as pruned.
pub(super) fn prune(
    context: &Context,
    history: &mut History,
    study: &str,
    number: u64,
) -> Result<(), Failure> {
    let tried = history.tried(study).map_err(|error| ledger(&error))?;
    let Some(id) = tried.into_iter().find(|tried| tried.number == number).and_then(|tried| tried.trial)
    else {
        return Ok(());
    };
    let is_alive = |id: &TrialId| trials::is_alive(context, id);
    let trial = history.trial(&id, &is_alive).map_err(|error| ledger(&error))?;
    if trial.verdict == Some(Verdict::Stopped) {
        history.end_as_pruned(&id).map_err(|error| ledger(&error))?;
    }
    Ok(())
}
