//! Runs the trials that a study proposes.

use super::kept::{Kept, of_verdict};
use crate::commands::{resume, run};
use crate::context::Context;
use crate::drive::{How, Task, follow};
use crate::failure::{Exit, Failure};
use crate::load::Loaded;
use crate::render::number::counted;
use crate::trials::ledger;
use crate::{rates, trials};
use dtrain_planner::Plan;
use dtrain_planner::tune::{
    Failure as Why, Judgement, Outcome, Proposal, Source as Origin, StudyEvent, Trials, Value, shortened,
};
use dtrain_protocol::TrialId;
use dtrain_recipes::Recipe;
use dtrain_runner::driver::Outcome as Ending;
use dtrain_runner::ledger::{History, Source, Status, Tried};
use serde_json::json;
use std::collections::BTreeMap;

/// Trials in a row that the machines may lose before the study stops: something is wrong with them.
const LOST_MOST: u32 = 3;

/// Runs trials, one after the other, and writes each down before it begins.
pub(super) struct Runner<'a> {
    pub(super) context: &'a Context,
    pub(super) history: &'a mut History,
    pub(super) loaded: &'a Loaded,
    pub(super) kept: &'a Kept,
    /// Of the study.
    pub(super) name: &'a str,
    /// Trials in all.
    pub(super) budget: u64,
    /// Trials in a row that the machines lost.
    pub(super) lost: u32,
    /// Why the study cannot go on.
    pub(super) failure: Option<Failure>,
    /// How the trial ended that was launched last.
    pub(super) ended: Option<StudyEvent>,
}

impl Runner<'_> {
    /// Runs a trial; `None` when the user stopped it.
    fn trial(&mut self, proposal: &Proposal) -> Result<Option<Outcome>, Failure> {
        self.announce(proposal);
        let (id, label, plan, how) = match self.unfinished(proposal)? {
            Some(unfinished) => unfinished,
            None => match self.create(proposal)? {
                Ok(created) => created,
                Err(outcome) => return Ok(Some(outcome)),
            },
        };
        let task = Task { trial: &id, label: &label, plan: &plan, how, detach: false, sample: 0 };
        let ending = follow(self.context, self.history, &task)?;
        let Ending::Ended { verdict, .. } = ending else { return Ok(None) };
        let is_alive = |id: &TrialId| trials::is_alive(self.context, id);
        let trial = self.history.trial(&id, &is_alive).map_err(|error| ledger(&error))?;
        let outcome = of_verdict(&verdict, &trial);
        self.count_lost(outcome.as_ref(), &label)?;
        Ok(outcome)
    }

    fn announce(&self, proposal: &Proposal) {
        let dimensions = self.kept.study.space.dimensions();
        let pairs = dimensions.iter().zip(&proposal.values);
        let values: Vec<String> =
            pairs.map(|(dimension, value)| format!("{} {value}", dimension.name)).collect();
        let why = match proposal.source {
            Origin::Given => "the plan's value".to_owned(),
            Origin::Random => "random".to_owned(),
            Origin::Sobol => "space-filling".to_owned(),
            Origin::Grid => "grid".to_owned(),
            Origin::Model { improvement } => format!("expected improvement {improvement:.4}"),
            Origin::Tpe { .. } => "like the best trials".to_owned(),
            Origin::CmaEs { .. } => "CMA-ES".to_owned(),
            Origin::Swarm { particle } => format!("particle {particle}"),
            Origin::Mutated { parent } => format!("trial {} with one change", parent + 1),
        };
        self.context.out.say(&format!(
            "trial {} of {}: {} ({why})",
            proposal.trial + 1,
            self.budget,
            values.join(", ")
        ));
    }

    /// A trial of this number that was begun and did not end.
    fn unfinished(&self, proposal: &Proposal) -> Result<Option<(TrialId, String, Plan, How)>, Failure> {
        let tried = self.history.tried(self.name).map_err(|error| ledger(&error))?;
        let begun =
            tried.into_iter().find(|tried| tried.number == proposal.trial).and_then(|tried| tried.trial);
        let Some(id) = begun else { return Ok(None) };
        let is_alive = |id: &TrialId| trials::is_alive(self.context, id);
        let trial = self.history.trial(&id, &is_alive).map_err(|error| ledger(&error))?;
        let how = if trial.row.status == Status::Created { How::Start } else { How::Resume };
        Ok(Some((id, trial.row.label.clone(), resume::plan(&trial)?, how)))
    }

    /// Plans and writes down a new trial; an outcome where it cannot be planned.
    fn create(
        &mut self,
        proposal: &Proposal,
    ) -> Result<Result<(TrialId, String, Plan, How), Outcome>, Failure> {
        let recipe: Recipe =
            shortened(&self.kept.searched.pinned(&self.kept.settled, &proposal.values), self.kept.steps);
        let json = json!({ "values": proposal.values, "source": proposal.source });
        let number = proposal.trial;
        let plan = match rates::plan_of(self.context, self.history, self.loaded, &recipe) {
            Ok(plan) => plan,
            Err(failure) if failure.exit() == Exit::NothingFits => {
                let refused = Some(failure.render(crate::output::Paint::plain()));
                self.keep(&Tried { number, json, trial: None, refused })?;
                return Ok(Err(Outcome::Failed { why: Why::Rejected }));
            }
            Err(failure) => return Err(failure),
        };
        let settings = self.settings(&plan, proposal);
        let plan = Plan { settings, ..plan };
        let recipe = crate::audit::recipe(self.loaded);
        let mut new = run::new_trial(&plan, run::sources(self.loaded), &self.loaded.folder, recipe);
        new.study = Some(self.name.to_owned());
        for dimension in self.kept.study.space.dimensions() {
            new.sources.insert(dimension.name.clone(), Source::Search);
        }
        let created = self.history.create_trial(&new).map_err(|error| ledger(&error))?;
        self.keep(&Tried { number, json, trial: Some(created.id.clone()), refused: None })?;
        run::keep_plan(self.context, &created.id, &plan)?;
        Ok(Ok((created.id, created.label, plan, How::Start)))
    }

    /// The settings of the study's recipe, with the proposed values and the length of a trial.
    fn settings(&self, plan: &Plan, proposal: &Proposal) -> BTreeMap<String, String> {
        let mut settings = plan.settings.clone();
        settings.retain(|path, _| !path.starts_with("objective.stop"));
        if let Some(steps) = plan.recipe.objective.stop.steps {
            settings.insert("objective.stop.steps".into(), steps.to_string());
        }
        let dimensions = self.kept.study.space.dimensions().iter().zip(&proposal.values);
        settings.extend(dimensions.filter(|(_, value)| **value != Value::Inactive).map(
            |(dimension, value)| {
                let value = match value {
                    Value::Whole(steps) if dimension.name == "train.warmup" => format!("\"{steps} steps\""),
                    Value::Whole(count) => count.to_string(),
                    Value::Real(number) => format!("{number:?}"),
                    Value::Word(word) => format!("{word:?}"),
                    Value::Flag(_) | Value::Inactive => value.to_string(),
                };
                (dimension.name.clone(), value)
            },
        ));
        settings
    }

    fn keep(&mut self, tried: &Tried) -> Result<(), Failure> {
        self.history.keep_tried(self.name, tried).map_err(|error| ledger(&error))
    }

    /// Stops the study when the machines lose one trial after the other.
    fn count_lost(&mut self, outcome: Option<&Outcome>, label: &str) -> Result<(), Failure> {
        let is_lost = matches!(outcome, Some(Outcome::Failed { why: Why::Lost }));
        self.lost = if is_lost { self.lost + 1 } else { 0 };
        if self.lost < LOST_MOST {
            return Ok(());
        }
        let many = counted(LOST_MOST.into(), "trial");
        Err(Failure::new(Exit::Infrastructure, format!("{many} failed in a row"))
            .cause(format!("`dtrain logs {label}` shows the logs of the last one")))
    }
}

/// Trials run one after the other, each to its end when it is launched.
impl Trials for Runner<'_> {
    fn slots(&self) -> usize {
        1
    }

    fn launch(&mut self, proposal: &Proposal) {
        let outcome = self.trial(proposal).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            None
        });
        self.ended = outcome.map(|outcome| StudyEvent::Ended { trial: proposal.trial, outcome });
    }

    fn resume(&mut self, _: u64, _: Option<u64>) {}

    fn take_up(&mut self, _: u64) {}

    fn stop(&mut self, _: u64, _: Judgement) {}

    fn next_event(&mut self) -> Option<StudyEvent> {
        self.ended.take()
    }
}
