//! Trials that begin with a checkpoint of another trial: `resume` with other settings or other data, and `run --from`.

use crate::args::ResumeArgs;
use crate::commands::resume;
use crate::commands::run::{self, Begin};
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::intact::{self, Wanted};
use crate::load::{Loaded, layered};
use crate::trials::ledger;
use crate::{job, networks, rates, trials};
use dtrain_planner::{Plan, RateChange, rate_change};
use dtrain_protocol::inputs::{INPUTS, TOKENIZER};
use dtrain_protocol::{Inputs, ResumePoint, StepId, TrialId};
use dtrain_recipes::{CheckContext, Document, Recipe, check};
use dtrain_runner::checkpoints::{self, Adoption};
use dtrain_runner::ledger::{Checkpoint, History, Parent, Status, Trial};
use dtrain_runner::{Fact, Ledger, News};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::path::Path;

/// A checkpoint that another trial can begin with.
pub(crate) struct Origin {
    trial: Trial,
    plan: Plan,
    checkpoint: Checkpoint,
}

impl Origin {
    /// The checkpoint that the user typed: `TRIAL`, its newest, or `TRIAL@STEP`.
    pub(crate) fn find(context: &Context, history: &History, typed: &str) -> Result<Self, Failure> {
        let (name, step) = named_step(typed)?;
        let trial = trials::trial(context, history, name)?;
        trials::refuse_imported(&trial)?;
        let checkpoint = intact::checkpoint(context, &trial, Wanted::of(step))?;
        let plan = resume::plan(&trial)?;
        Ok(Self { trial, plan, checkpoint })
    }

    /// The tokenizer of the checkpoint, as JSON.
    pub(crate) fn tokenizer(&self) -> Option<Vec<u8>> {
        std::fs::read(self.checkpoint.folder.join(TOKENIZER)).ok()
    }

    /// The data that the checkpoint was trained on; `None` where an older program wrote it.
    fn inputs(&self) -> Option<Inputs> {
        serde_json::from_slice(&std::fs::read(self.checkpoint.folder.join(INPUTS)).ok()?).ok()
    }

    fn label(&self) -> &str {
        &self.trial.row.label
    }

    fn parent(&self, weights_only: bool, changes: Vec<String>, inputs: Option<Inputs>) -> Parent {
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

    /// How the learning rate changes where `plan` continues it.
    fn rate_change(&self, history: &History, plan: &Plan) -> Result<Option<RateChange>, Failure> {
        let done = self.checkpoint.step.0;
        let rates = history.curve(&self.trial.row.id, "learning_rate").map_err(|error| ledger(&error))?;
        let applied = rates.into_iter().find(|sample| sample.step == done).map(|sample| sample.value);
        Ok(rate_change(&self.plan, plan, done, applied))
    }

    /// The parent of a trial that begins with the weights alone, if its recipe has the same model.
    pub(crate) fn weights_for(&self, recipe: &Recipe) -> Result<Parent, Failure> {
        let there = &self.plan.recipe.model;
        // Adapters begin anew at weights that have none.
        if recipe.model != *there && recipe.model.base() != *there {
            let what =
                format!("the model is not that of {}, whose weights it would begin with", self.label());
            let failure = differences("model", there, &recipe.model)
                .into_iter()
                .fold(Failure::new(Exit::Usage, what), Failure::cause);
            return Err(failure.hint("give the recipe the model of that trial"));
        }
        Ok(self.parent(true, Vec::new(), None))
    }

    /// The settings that the trial was trained with: what the planner decided counts as said.
    fn settings(&self) -> Result<BTreeMap<String, String>, Failure> {
        let mut settings = self.plan.settings.clone();
        if settings.is_empty() {
            let what =
                format!("the settings of {} were not recorded: an older dtrain planned it", self.label());
            return Err(Failure::new(Exit::Usage, what)
                .hint(format!("`dtrain resume {0}` continues it as it is; `dtrain run RECIPE --from {0}` begins another training with its weights", self.label())));
        }
        let best = &self.plan.best().candidate;
        settings.insert("train.batch".into(), best.split.global().to_string());
        settings.insert("train.learning_rate".into(), format!("{:?}", best.learning_rate));
        Ok(settings)
    }

    /// The recipe of the trial under the layers that the user gave.
    fn reload(&self, args: &ResumeArgs) -> Result<(Loaded, Vec<String>), Failure> {
        let before = self.settings()?;
        let name = format!("settings of {}", self.label());
        let folder = self.plan.data_root.clone();
        let checking = CheckContext { folder: folder.clone(), name: self.plan.recipe.name.clone() };
        let document = layered(Document::of_settings(&name, &before)?, &args.layers)?;
        let mut checked = check(&document, &checking)?;
        networks::describe(&mut checked)?;
        let changes = changes(&before, &checked.settings());
        let tokenizer = self.tokenizer();
        let project = folder.clone();
        Ok((Loaded { name, checked, folder, project, tokenizer }, changes))
    }
}

/// `TRIAL` or `TRIAL@STEP`.
fn named_step(typed: &str) -> Result<(&str, Option<StepId>), Failure> {
    let Some((name, step)) = typed.rsplit_once('@') else { return Ok((typed, None)) };
    let step = step.parse().map_err(|_| {
        Failure::new(Exit::Usage, format!("`{step}` is not the number of a step"))
            .hint("write TRIAL@STEP, such as `last@200`")
    })?;
    Ok((name, Some(StepId(step))))
}

/// Continues a trial with other settings, from an older checkpoint, or with data that has changed: as a trial of its own.
pub(crate) fn resume(context: &Context, args: &ResumeArgs) -> Outcome {
    drop(trials::read_history(context)?);
    let mut history = trials::open_history(context)?;
    let origin = Origin::find(context, &history, &args.trial.trial)?;
    if origin.trial.row.status == Status::Running {
        let label = origin.label();
        return Err(Failure::new(Exit::Usage, format!("{label} is running"))
            .hint(format!("`dtrain stop {label}` saves a checkpoint and stops it")));
    }
    let (loaded, mut changes) = origin.reload(args)?;
    let recipe = &loaded.checked.recipe;
    refuse_other_training(&origin, recipe, args.accept_data)?;
    if let Some(exit) = job::sent(context, recipe, args.detach)? {
        return Ok(exit);
    }
    if let Some(trial) = job::again(context, recipe) {
        return resume::take_up(context, &trial, crate::drive::How::Resume, false);
    }
    let inputs = accepted(context, &origin, &loaded, args.accept_data, &mut changes)?;
    let plan = rates::plan(context, &mut history, &loaded)?;
    changes.extend(origin.rate_change(&history, &plan)?.map(|change| change.to_string()));
    let parent = origin.parent(false, changes, inputs);
    let sources = run::sources(&loaded);
    let begin = Begin {
        plan: &plan,
        sources,
        folder: &loaded.folder,
        recipe: crate::audit::recipe(&loaded),
        parent: Some(parent),
        detach: args.detach,
        weights: None,
        sample: 0,
    };
    run::begin(context, &mut history, begin)
}

/// Training continues only where it is the same training: the state of another model, optimizer or order of samples means nothing.
fn refuse_other_training(origin: &Origin, recipe: &Recipe, accept_data: bool) -> Result<(), Failure> {
    let (then, label) = (&origin.plan.recipe, origin.label());
    let batch = origin.plan.best().candidate.split.global();
    let is_batch =
        matches!(&recipe.train.batch, dtrain_recipes::Choice::Pinned(samples) if samples.0 == batch);
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
        return Err(Failure::new(Exit::Usage, what)
            .hint(format!("`dtrain run RECIPE --from {label}` begins another training with its weights")));
    }
    if then.data != recipe.data && !accept_data {
        return Err(Failure::new(Exit::Usage, format!("{label} was trained on other data"))
            .hint("--accept-data continues with the new data"));
    }
    let (step, last) = (origin.checkpoint.step, recipe.objective.stop.steps);
    if let Some(last) = last.filter(|last| *last <= step.0) {
        let what = format!("{label} is at step {step}, and `objective.stop.steps` is {last}");
        return Err(Failure::new(Exit::Usage, what)
            .hint(format!("train longer, such as with `--set objective.stop.steps={}`", 2 * step.0)));
    }
    Ok(())
}

/// The data as it is now, where it differs from that of the checkpoint and the user accepts that.
fn accepted(
    context: &Context,
    origin: &Origin,
    loaded: &Loaded,
    accept_data: bool,
    changes: &mut Vec<String>,
) -> Result<Option<Inputs>, Failure> {
    let Some(then) = origin.inputs() else { return Ok(None) };
    let Some(now) = rates::inputs(context, loaded)? else { return Ok(None) };
    let found = then.differences(&now);
    if found.is_empty() {
        return Ok(None);
    }
    if !accept_data {
        let what = format!("the data of {} has changed", origin.label());
        let failure = found.into_iter().fold(Failure::new(Exit::Usage, what), Failure::cause);
        return Err(failure.hint("restore the data, or continue with it as it is now with --accept-data"));
    }
    changes.extend(found.into_iter().map(|difference| format!("data: {difference}")));
    Ok(Some(now))
}

/// Puts the checkpoint of its parent into the folder of a trial, and records it as the first one.
pub(crate) fn adopt(
    context: &Context,
    history: &mut History,
    trial: &TrialId,
    parent: &Parent,
) -> Result<(), Failure> {
    let what = if parent.weights_only {
        Adoption::Weights
    } else {
        Adoption::State { inputs: parent.inputs.clone() }
    };
    let point =
        checkpoints::adopt(&parent.folder, trial, &context.home.trial(trial), &what).map_err(|reason| {
            Failure::new(Exit::Infrastructure, format!("cannot take over the checkpoint of {}", parent.label))
                .cause(reason)
                .hint("`dtrain checkpoint verify` reads all of it")
        })?;
    record(history, trial, point)
}

/// Takes the checkpoint of its parent over again for a trial that has no other to continue from: it ended before it was taken over, or
/// what was taken over is damaged.
pub(crate) fn adopt_again(
    context: &Context,
    history: &mut History,
    trial: &Trial,
    parent: &Parent,
) -> Result<(), Failure> {
    let damage = |folder: &Path| checkpoints::verify_checksums(folder, &mut |_, _| ()).err();
    let (id, label) = (&trial.row.id, &trial.row.label);
    let mut news = News::default();
    for saved in trial.checkpoints.iter().filter(|saved| saved.refused.is_none()) {
        let reason = if saved.attempt == checkpoints::ADOPTED { damage(&saved.folder) } else { None };
        let Some(reason) = reason else { return Ok(()) };
        let what = format!("the checkpoint at step {} that {label} begins with is damaged", saved.step);
        context.out.say(&format!("{what} ({reason}); taking it over from {} again", parent.label));
        let folder = saved.folder.clone();
        news.facts.push(Fact::CheckpointRefused { step: saved.step, folder, reason });
    }
    history.keep(id, &news).map_err(|error| ledger(&error))?;
    if damage(&parent.folder).is_none() {
        return adopt(context, history, id, parent);
    }
    let wanted = Wanted::UpTo(parent.step);
    let origin = history.trial(&parent.trial, &|id| trials::is_alive(context, id));
    let found = intact::checkpoint(context, &origin.map_err(|error| ledger(&error))?, wanted)?;
    let parent = Parent { step: found.step, folder: found.folder, ..parent.clone() };
    adopt(context, history, id, &parent)
}

/// Records the checkpoint that a trial begins with.
pub(crate) fn record(history: &mut History, trial: &TrialId, point: ResumePoint) -> Result<(), Failure> {
    let fact =
        Fact::CheckpointDurable { attempt: checkpoints::ADOPTED, step: point.step, folder: point.folder };
    let news = News { facts: vec![fact], ..News::default() };
    history.keep(trial, &news).map_err(|error| ledger(&error))
}

/// Which settings differ, as `KEY = VALUE (was VALUE)`.
fn changes(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differs = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let value = |settings: &BTreeMap<String, String>, key| {
        settings.get(key).map_or_else(|| "its default".to_owned(), String::clone)
    };
    differs.map(|key| format!("{key} = {} (was {})", value(after, key), value(before, key))).collect()
}

/// Which values of two parts of recipes differ.
pub(crate) fn differences<T: serde::Serialize>(path: &str, then: &T, now: &T) -> Vec<String> {
    let flat = |part: &T| -> BTreeMap<String, String> {
        let json = serde_json::to_value(part).unwrap_or_default();
        let params = dtrain_runner::ledger::flatten(path, &json, dtrain_runner::ledger::Source::Recipe);
        params.into_iter().map(|param| (param.path, param.value.to_string())).collect()
    };
    changes(&flat(then), &flat(now))
}
