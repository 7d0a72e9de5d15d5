//! Start of a new trial: records it with its plan and its source, and launches it.

use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::kernel_gpus::unused_gpu;
use crate::load_recipe::LoadedRecipe;
use crate::plan_file::StoredPlan;
use crate::pretrained::WeightsFolder;
use crate::render::plan::short;
use crate::run_mode::{RunMode, TrialRun};
use crate::run_trial::run_to_end;
use crate::trials::history_failure;
use crate::{audit, engine_environments, initial_checkpoint, limits, slurm_job, trials, workdir};
use dtrain_planner::Plan;
use dtrain_planner::training::checkpoint_interval;
use dtrain_recipes::{Bytes, ConfigLayer, Devices, LauncherKind, Model};
use dtrain_runner::files;
use dtrain_runner::ledger::{History, NewTrial, Parent, ValueSource};
use dtrain_runner::provenance::Provenance;
use std::collections::BTreeMap;
use std::path::Path;

/// A new trial, not yet recorded or launched.
pub(crate) struct NewRun<'a> {
    pub(crate) plan: &'a Plan,
    /// Source of each value in the recipe, by key.
    pub(crate) sources: BTreeMap<String, ValueSource>,
    /// Folder whose git revision the trial records.
    pub(crate) folder: &'a Path,
    /// Owner of the recipe, for the audit log: the user (`own files`) or packages.
    pub(crate) recipe: String,
    /// Checkpoint of another trial that this one starts from; `None` for other initial weights.
    pub(crate) parent: Option<Parent>,
    /// Folder of pretrained weights that the trial starts from; `None` for other initial weights.
    pub(crate) weights: Option<WeightsFolder>,
    pub(crate) detach: bool,
    /// Length of the text that is sampled after training, in tokens.
    pub(crate) sample: u32,
}

/// Records a new trial, launches it, and supervises it to its end.
pub(crate) fn record_and_launch(
    context: &Context,
    history: &mut History,
    begin: NewRun<'_>,
) -> CommandResult {
    let NewRun { plan, sources, folder, recipe, parent, weights, detach, sample } = begin;
    context.out.say(short(plan, context.out.paint).trim_end());
    warn_of_unused_gpu(context, plan);
    refuse_without_room(context, plan)?;
    let environments = engine_environments::require(context, &plan.recipe)?;
    let mut new = NewTrial { parent, ..new_trial(plan, sources, folder, recipe) };
    new.provenance.environment.extend(engine_environments::provenance(&environments));
    if let Some(weights) = &weights {
        weights.note(&mut new.provenance)?;
    }
    workdir::note(context, plan, &mut new.provenance)?;
    let created = trials::wait_for_history(context, || history.create_trial(&new))
        .map_err(|error| history_failure(&error))?;
    write_plan_file(context, &created.id, plan)?;
    slurm_job::record_job_trial(context, &plan.recipe, &created.id)?;
    context.out.say(&format!("trial {} ({})", context.out.paint.bold(&created.label), created.id));
    if let Some(parent) = &new.parent {
        initial_checkpoint::copy_source_checkpoint(context, history, &created.id, parent)?;
        print_source_checkpoint(context, parent);
    }
    if let Some(weights) = &weights {
        initial_checkpoint::import_weights(weights, context, history, &created.id, &plan.recipe)?;
        context.out.say(&format!("it begins with the weights in {}", weights.path().display()));
    }
    let task =
        TrialRun { trial: &created.id, label: &created.label, plan, how: RunMode::Start, detach, sample };
    run_to_end(context, history, &task)
}

fn print_source_checkpoint(context: &Context, parent: &Parent) {
    let Parent { label, step, weights_only, changes, .. } = parent;
    let how = if *weights_only { "begins with the weights of" } else { "continues" };
    context.out.say(&format!("it {how} {label} at step {step}"));
    changes.iter().for_each(|change| context.out.say(&format!("  {change}")));
}

/// Refuses to train if a checkpoint cannot be saved: a file would exceed the file size limit, or the disk of
/// the state folder has no room for one checkpoint.
fn refuse_without_room(context: &Context, plan: &Plan) -> Result<(), CommandError> {
    /// Number of bytes kept free beside a rank's checkpoint, for the history.
    const RESERVE: u64 = 16 << 20;
    let recipe = &plan.recipe;
    if recipe.cluster.launcher != LauncherKind::Local || matches!(recipe.model, Model::Command(_)) {
        return Ok(());
    }
    let state = checkpoint_interval::state_bytes(recipe);
    limits::refuse_large_file(Bytes(state / u64::from(plan.best().candidate.arrangement.layout.world())))?;
    let path = context.home.path();
    let Ok(disk) = rustix::fs::statvfs(path) else { return Ok(()) };
    let free = Bytes(disk.f_bavail.saturating_mul(disk.f_frsize));
    let needed = Bytes(state.saturating_add(RESERVE));
    if free >= needed {
        return Ok(());
    }
    let message = format!("a checkpoint needs {needed}, and {} has {free} free", path.display());
    Err(CommandError::new(ExitReason::Preflight, message)
        .hint("free some space there, or name another folder with --state FOLDER"))
}

/// Returns the sources of the values that do not come from the recipe itself, by key.
pub(crate) fn value_sources(loaded: &LoadedRecipe) -> BTreeMap<String, ValueSource> {
    let source = |layer: ConfigLayer| match layer {
        ConfigLayer::Default => ValueSource::Default,
        ConfigLayer::Environment | ConfigLayer::Assignment | ConfigLayer::Settings | ConfigLayer::Cluster => {
            ValueSource::Setting
        }
        ConfigLayer::Extended | ConfigLayer::Recipe => ValueSource::Recipe,
    };
    loaded.checked.resolved.iter().map(|value| (value.path.clone(), source(value.origin.layer()))).collect()
}

pub(crate) fn new_trial(
    plan: &Plan,
    sources: BTreeMap<String, ValueSource>,
    folder: &Path,
    recipe: String,
) -> NewTrial {
    let features = [("cuda", cfg!(feature = "cuda")), ("wgpu", cfg!(feature = "wgpu"))];
    let features: Vec<_> = features.iter().filter(|(_, is_built)| *is_built).map(|(name, _)| *name).collect();
    let mut provenance = Provenance::collect(folder, &features);
    provenance.environment.insert(audit::RECIPE.to_owned(), recipe);
    NewTrial { sources, ..NewTrial::of(plan, plan.best(), provenance) }
}

/// Writes the plan beside the trial's checkpoints, for users and other programs.
pub(crate) fn write_plan_file(
    context: &Context,
    trial: &dtrain_protocol::TrialId,
    plan: &Plan,
) -> Result<(), CommandError> {
    let folder = context.home.trial(trial);
    let stored = StoredPlan::of(plan.clone(), None);
    let text = crate::output::document("plan", &stored, true)?;
    folder.create().and_then(|()| files::write(&folder.plan(), text.as_bytes())).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot write {}", folder.plan().display()))
            .cause(error.to_string())
            .hint("`dtrain doctor` checks the state folder")
    })
}

/// Warns about a GPU that stays idle because this build has no backend for it.
fn warn_of_unused_gpu(context: &Context, plan: &Plan) {
    if plan.recipe.cluster.devices == Devices::Cpu {
        return;
    }
    if let Some(gpu) = unused_gpu() {
        context.out.say(&format!(
            "{}: this machine has {gpu}, but this build has no backend for it; rebuild with `{}`",
            context.out.paint.yellow("note"),
            gpu.build()
        ));
    }
}
