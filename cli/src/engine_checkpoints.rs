//! Checkpoints of trials that a training engine trained: their list, and their conversion into checkpoints of
//! dtrain's own worker.

use crate::checkpoint_sources::{CheckpointSelector, TrialCheckpoints};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::checkpoint::TransferBar;
use crate::trials::plan_of_trial;
use dtrain_planner::{AttemptSpec, Plan, lower_for_engine};
use dtrain_protocol::checkpoint::ENGINE_FOLDER;
use dtrain_protocol::{AttemptId, StepId};
use dtrain_recipes::{Decoder, Model};
use dtrain_runner::checkpoints::{CheckpointInfo, CheckpointStore, EngineInventory, State, begin_with};
use dtrain_runner::ledger::{Checkpoint, TrialDetails};
use dtrain_runner::{TrialFolder, engine_environment, engine_package, files};
use dtrain_worker::pretrained::{ModelFolder, export_initial};
use rustix::fs::{FlockOperation, flock};
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Asks every store for the checkpoints of an engine; reports stores that do not answer.
pub(crate) fn inventory(
    context: &Context,
    stores: &mut [Box<dyn CheckpointStore + '_>],
) -> Result<EngineInventory, CommandError> {
    let inventory = EngineInventory::collect(stores).map_err(|reason| {
        CommandError::new(ExitReason::Infrastructure, "no host answers about its checkpoints").cause(reason)
    })?;
    for (holder, reason) in &inventory.away {
        context.out.say(&format!("{holder} cannot be reached, so its files are not included: {reason}"));
    }
    Ok(inventory)
}

/// Returns a checkpoint of an engine's trial as a checkpoint of dtrain's own worker with the weights alone, on
/// this machine. It is made once for each step.
pub(crate) fn converted(
    context: &Context,
    trial: &TrialDetails,
    wanted: CheckpointSelector,
) -> Result<Checkpoint, CommandError> {
    let mut kept = TrialCheckpoints::of_trial(context, trial.clone())?;
    let is_elsewhere = kept.is_elsewhere();
    let mut stores = kept.holders(context);
    let inventory = inventory(context, &mut stores)?;
    let found = select(&inventory.list(&stores), wanted, &trial.row.label)?;
    let own = context.home.trial(&trial.row.id);
    let place = own.path().join("converted").join(format!("{}.a{}", found.name, found.attempt));
    let failed = |what: &str, reason: String| {
        let message = format!("{} of {} cannot be {what}", found.name, trial.row.label);
        CommandError::new(ExitReason::Infrastructure, message).cause(reason)
    };
    let _lock = lock(&place).map_err(|error| failed("converted", error.to_string()))?;
    let source = if is_elsewhere {
        let copy = place.join("pulled");
        drop(fs::remove_dir_all(&copy));
        let mut transfer = TransferBar::new(&context.out, format!("copying step {}", found.step));
        let mut read = |done, total| transfer.set_done(done, total);
        let pulled = inventory.pull(&mut stores, found.step, &copy, &mut read);
        transfer.end();
        pulled.map_err(|reason| failed("copied", reason))?;
        copy
    } else {
        own.checkpoints().join(ENGINE_FOLDER).join(&found.name)
    };
    let conversion =
        Conversion { context, trial, plan: &plan_of_trial(trial)?, source: &source, place: &place };
    let folder = conversion.run().map_err(|error| failed("converted", error.to_string()));
    for temporary in ["pulled", "hugging-face", "initial", "python"] {
        drop(fs::remove_dir_all(place.join(temporary)));
    }
    Ok(Checkpoint {
        step: StepId(found.step),
        attempt: AttemptId(found.attempt),
        folder: folder?,
        at_ms: found.modified_ms,
        refused: None,
    })
}

/// Makes the folder of a conversion, and locks it against another conversion, which this one waits for.
fn lock(place: &Path) -> io::Result<File> {
    let parent = place.parent().ok_or(io::ErrorKind::InvalidInput)?;
    files::make_folder(parent)?;
    files::make_folder(place)?;
    let file = files::append(&place.join("lock"))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Returns a complete checkpoint of an engine's trial on this machine, as the engine wrote it.
pub(crate) fn complete(
    context: &Context,
    trial: &TrialDetails,
    wanted: CheckpointSelector,
) -> Result<Checkpoint, CommandError> {
    let mut kept = TrialCheckpoints::of_trial(context, trial.clone())?;
    let label = &trial.row.label;
    if kept.is_elsewhere() {
        let what = format!("the checkpoints of {label} are on its hosts, each of which has a part");
        return Err(CommandError::new(ExitReason::Usage, what).hint(format!(
            "`dtrain resume {label}` continues it there as it is; `dtrain run RECIPE --from {label}` begins another training with its weights"
        )));
    }
    let mut stores = kept.holders(context);
    let inventory = inventory(context, &mut stores)?;
    let found = select(&inventory.list(&stores), wanted, label)?;
    let folder = context.home.trial(&trial.row.id).checkpoints().join(ENGINE_FOLDER).join(&found.name);
    Ok(Checkpoint {
        step: StepId(found.step),
        attempt: AttemptId(found.attempt),
        folder,
        at_ms: found.modified_ms,
        refused: None,
    })
}

/// Returns the newest complete checkpoint that is wanted.
fn select(
    listed: &[CheckpointInfo],
    wanted: CheckpointSelector,
    label: &str,
) -> Result<CheckpointInfo, CommandError> {
    let complete = |one: &&CheckpointInfo| one.state == State::Committed;
    let mut newest = listed.iter().rev().filter(complete);
    if let Some(found) = newest.find(|one| wanted.includes(StepId(one.step))) {
        return Ok(found.clone());
    }
    let steps: Vec<String> = listed.iter().filter(complete).map(|one| one.step.to_string()).collect();
    let there = if steps.is_empty() { "none".to_owned() } else { steps.join(", ") };
    Err(CommandError::new(ExitReason::Usage, format!("{label} has no such complete checkpoint"))
        .cause(format!("its checkpoints: {there}"))
        .hint(format!("`dtrain checkpoint ls {label}` lists all")))
}

/// A conversion of the checkpoint in the folder `source`, with temporary files in the folder `place`.
struct Conversion<'a> {
    context: &'a Context,
    trial: &'a TrialDetails,
    plan: &'a Plan,
    source: &'a Path,
    place: &'a Path,
}

impl Conversion<'_> {
    /// Converts the checkpoint; returns the folder of the result.
    fn run(&self) -> Result<PathBuf, Box<dyn Error>> {
        let Model::Decoder(decoder) = &self.plan.recipe.model else { return Err("it is no decoder".into()) };
        let write = |partial: &Path| {
            let weights = self.place.join("hugging-face");
            self.export(decoder, &weights).map_err(|error| error.to_string())?;
            let folder = ModelFolder::open(&weights).map_err(|error| error.to_string())?;
            folder.write(decoder, partial).map_err(|error| error.to_string())
        };
        let point = begin_with(&self.trial.row.id, &TrialFolder::at(self.place), write)?;
        Ok(point.folder)
    }

    /// Writes the weights as a folder of Hugging Face transformers, by the program of the engine.
    fn export(&self, decoder: &Decoder, out: &Path) -> Result<(), Box<dyn Error>> {
        let (plan, recipe) = (self.plan, &self.plan.recipe);
        let environment =
            engine_environment::examine(&self.context.home, recipe.engine, recipe.cluster.python.as_deref())?;
        let package = self.place.join("python");
        engine_package::write(&package, [])?;
        let attempt = AttemptSpec {
            trial: self.trial.row.id.clone(),
            attempt: AttemptId(0),
            checkpoints: self.source.to_owned(),
            resume: None,
            spent_seconds: 0.0,
        };
        let assignments = lower_for_engine(plan, plan.best(), &attempt)?;
        let nothing = serde_json::json!({ "segments": [], "first": 0, "samples": 0 });
        let job = serde_json::json!({
            "assignment": assignments.first(),
            "train": nothing,
            "valid": nothing,
            "initial": self.initial(decoder, plan.seed)?,
            "keep": 1,
            "checkpoints": self.source,
        });
        let file = package.join("job.json");
        files::write(&file, &serde_json::to_vec(&job)?)?;
        drop(fs::remove_dir_all(out));
        let mut program = Command::new(environment.python);
        program.args(["-m", "dtrain_engines.export"]).arg(&file).arg(self.source).arg(out);
        program.env("PYTHONPATH", &package).env("PYTHONSAFEPATH", "1").stdin(Stdio::null());
        let output = program.output()?;
        if output.status.success() {
            return Ok(());
        }
        let printed = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(printed.lines().last().unwrap_or("the program of the engine said nothing").into())
    }

    /// Returns a folder with the configuration of the model, and its tokenizer if it is on this machine.
    fn initial(&self, decoder: &Decoder, seed: u64) -> Result<PathBuf, Box<dyn Error>> {
        let of_run = self.context.home.trial(&self.trial.row.id).path().join("command/engine/initial");
        if of_run.is_dir() {
            return Ok(of_run);
        }
        let written = self.place.join("initial");
        drop(fs::remove_dir_all(&written));
        export_initial(decoder, seed, &written)?;
        Ok(written)
    }
}
