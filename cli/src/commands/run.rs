//! `dtrain run`.

use crate::args::RunArgs;
use crate::child::Origin;
use crate::commands::{doctor, resume};
use crate::context::Context;
use crate::drive::{How, Task, drive};
use crate::failure::{Exit, Failure, Outcome};
use crate::load::{Loaded, describe, load};
use crate::plan_file::{Saved, Stored};
use crate::pretrained::{Weights, download};
use crate::render::plan::short;
use crate::trials::ledger;
use crate::{audit, child, hosts, job, limits, rates, trials};
use dtrain_planner::engine::emit::{Format, emit};
use dtrain_planner::planning::saving;
use dtrain_planner::{Plan, rates_key};
use dtrain_recipes::{Bytes, Devices, Launcher, Layer, Model};
use dtrain_runner::files;
use dtrain_runner::ledger::{History, NewTrial, Parent, Source};
use dtrain_runner::provenance::Provenance;
use std::collections::BTreeMap;
use std::path::Path;

/// Tokens of the sample at the end, unless told otherwise.
const SAMPLE_TOKENS: u32 = 120;

/// Plans where needed, records the trial, and trains.
pub(crate) fn run(context: &Context, args: &RunArgs) -> Outcome {
    let what = match Saved::read(Path::new(&args.target))? {
        Some(saved) => What::Plan(Box::new(saved)),
        None => What::Recipe(Box::new(loaded(args)?)),
    };
    let recipe = match &what {
        What::Plan(saved) => &saved.plan.recipe,
        What::Recipe(loaded) => &loaded.checked.recipe,
    };
    if let What::Plan(saved) = &what {
        refuse_other_engine(&saved.plan, &args.target)?;
    }
    if let Some(exit) = job::sent(context, recipe, args.detach)? {
        return Ok(exit);
    }
    if let Some(trial) = job::again(context, recipe) {
        return resume::take_up(context, &trial, How::Resume, false);
    }
    let mut history = trials::open_history(context)?;
    let beginning = match &args.from {
        Some(from) => Some(Beginning::find(context, &history, from)?),
        None => what.weights()?.map(Beginning::Folder),
    };
    let (plan, sources, folder, recipe) = match what {
        What::Plan(saved) => {
            refuse_layers(args, &saved)?;
            refuse_stale(context, &history, &saved, args.stale_ok)?;
            let plan = saved.plan;
            let folder = plan.data_root.clone();
            (plan, BTreeMap::new(), folder, "saved plan".to_owned())
        }
        What::Recipe(mut loaded) => {
            loaded.tokenizer = match &beginning {
                Some(Beginning::Trial(origin)) => origin.tokenizer(),
                Some(Beginning::Folder(weights)) => {
                    weights.check(&loaded.checked.recipe)?;
                    weights.tokenizer()?
                }
                None => None,
            };
            let plan = rates::plan(context, &mut history, &loaded)?;
            let sources = sources(&loaded);
            let recipe = audit::recipe(&loaded);
            (plan, sources, loaded.folder, recipe)
        }
    };
    let (parent, weights) = match beginning {
        Some(Beginning::Trial(origin)) => (Some(origin.weights_for(&plan.recipe)?), None),
        Some(Beginning::Folder(weights)) => {
            weights.check(&plan.recipe)?;
            (None, Some(weights))
        }
        None => (None, None),
    };
    let sample = if args.no_sample { 0 } else { args.sample.unwrap_or(SAMPLE_TOKENS) };
    let begin =
        Begin { plan: &plan, sources, folder: &folder, recipe, parent, weights, detach: args.detach, sample };
    self::begin(context, &mut history, begin)
}

/// A trial that is to be recorded and launched.
pub(crate) struct Begin<'a> {
    pub(crate) plan: &'a Plan,
    /// Who said the values of the recipe.
    pub(crate) sources: BTreeMap<String, Source>,
    /// The folder whose git revision is recorded.
    pub(crate) folder: &'a Path,
    /// Whose recipe it is, for the audit log.
    pub(crate) recipe: String,
    /// The checkpoint it begins with.
    pub(crate) parent: Option<Parent>,
    /// The folder of transformers whose weights it begins with.
    pub(crate) weights: Option<Weights>,
    pub(crate) detach: bool,
    /// Tokens of the sample at the end.
    pub(crate) sample: u32,
}

/// Records a trial, and drives it to its end.
pub(crate) fn begin(context: &Context, history: &mut History, begin: Begin<'_>) -> Outcome {
    let Begin { plan, sources, folder, recipe, parent, weights, detach, sample } = begin;
    context.out.say(short(plan, context.out.paint).trim_end());
    mention_gpu(context, plan);
    refuse_without_room(context, plan)?;
    let mut new = NewTrial { parent, ..new_trial(plan, sources, folder, recipe) };
    if let Some(weights) = &weights {
        weights.note(&mut new.provenance)?;
    }
    let created = trials::waiting(context, || history.create_trial(&new)).map_err(|error| ledger(&error))?;
    keep_plan(context, &created.id, plan)?;
    job::remember(context, &plan.recipe, &created.id)?;
    context.out.say(&format!("trial {} ({})", context.out.paint.bold(&created.label), created.id));
    if let Some(parent) = &new.parent {
        child::adopt(context, history, &created.id, parent)?;
        say_parent(context, parent);
    }
    if let Some(weights) = &weights {
        weights.take_in(context, history, &created.id, &plan.recipe)?;
        context.out.say(&format!("it begins with the weights in {}", weights.path().display()));
    }
    let task = Task { trial: &created.id, label: &created.label, plan, how: How::Start, detach, sample };
    drive(context, history, &task)
}

fn say_parent(context: &Context, parent: &Parent) {
    let Parent { label, step, weights_only, changes, .. } = parent;
    let how = if *weights_only { "begins with the weights of" } else { "continues" };
    context.out.say(&format!("it {how} {label} at step {step}"));
    changes.iter().for_each(|change| context.out.say(&format!("  {change}")));
}

/// Where the weights come from that a training begins with.
enum Beginning {
    /// A checkpoint of another trial.
    Trial(Box<Origin>),
    /// A folder of transformers.
    Folder(Weights),
}

impl Beginning {
    /// What the user typed: a folder, or a trial.
    fn find(context: &Context, history: &History, typed: &str) -> Result<Self, Failure> {
        match Weights::find(typed)? {
            Some(weights) => Ok(Self::Folder(weights)),
            None => Ok(Self::Trial(Box::new(Self::trial(context, history, typed)?))),
        }
    }

    /// The checkpoint of a trial; what is neither a trial nor a folder may be a model of the Hugging Face Hub.
    fn trial(context: &Context, history: &History, typed: &str) -> Result<Origin, Failure> {
        let name = typed.split('@').next().unwrap_or(typed);
        match trials::find(history, name) {
            Err(failure) if failure.exit() == Exit::Usage => Err(failure.hint(format!(
                "to begin with a model of the Hugging Face Hub, {}",
                download(Path::new(typed))
            ))),
            _ => Origin::find(context, history, typed),
        }
    }
}

/// What is to be trained.
enum What {
    Plan(Box<Saved>),
    Recipe(Box<Loaded>),
}

impl What {
    /// The weights that its recipe begins with.
    fn weights(&self) -> Result<Option<Weights>, Failure> {
        match self {
            Self::Plan(saved) => Weights::of_recipe(&saved.plan.recipe, &saved.plan.data_root),
            Self::Recipe(loaded) => Weights::of_recipe(&loaded.checked.recipe, &loaded.folder),
        }
    }
}

fn loaded(args: &RunArgs) -> Result<Loaded, Failure> {
    let mut extra = Vec::new();
    extra.extend(args.name.as_ref().map(|name| ("name", format!("{name:?}"))));
    extra.extend(args.ranks.map(|ranks| ("cluster.ranks", ranks.to_string())));
    if let Some(from) = &args.from
        && describe(&args.target, &args.layers, &extra)?.checked.recipe.train.from.is_some()
    {
        // The flag counts more than the key.
        let folder = Weights::find(from)?.map(|weights| weights.path().display().to_string());
        extra.push(("train.from", format!("{:?}", folder.as_deref().unwrap_or("none"))));
    }
    load(&args.target, &args.layers, &extra)
}

/// A saved plan is carried out as it is.
fn refuse_layers(args: &RunArgs, saved: &Saved) -> Result<(), Failure> {
    if let Some(variable) = saved.other_variables().first() {
        let what = format!("the environment variable {variable} applies to recipes, not to saved plans");
        return Err(
            Failure::new(Exit::Usage, what).hint(format!("unset {variable}, or make a new plan with it"))
        );
    }
    let layers = &args.layers;
    if layers.set.is_empty() && layers.cluster.is_none() && args.name.is_none() && args.ranks.is_none() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Usage,
        "--set, --cluster, --name and --ranks apply to recipes, not to saved plans",
    )
    .hint("run the recipe with them, or make a new plan"))
}

/// Refuses a plan for an engine that is not started here, and says how it is.
fn refuse_other_engine(plan: &Plan, file: &str) -> Result<(), Failure> {
    let Some(engine) = &plan.engine else { return Ok(()) };
    let on = &plan.host.name;
    let message = format!(
        "{file} is a plan for {engine} on {on}, and `dtrain run` trains with dtrain's own worker on the hosts of the recipe"
    );
    let reads = |format: &Format| format.engine().is_some_and(|one| one.name() == engine);
    let format = Format::ALL.into_iter().find(reads);
    let start = format.and_then(|format| Some((format.word(), emit(plan, format).ok()?.command("FOLDER"))));
    let failure = Failure::new(Exit::Usage, message);
    Err(match start {
        Some((format, start)) => failure.hint(format!(
            "write it as files with `dtrain plan RECIPE --on \"{on}\" --emit {format} --emit-to FOLDER` and the flags it \
             was planned with, and start it there with `{start}`"
        )),
        None => failure.hint("`dtrain plan RECIPE` plans for the hosts of the recipe"),
    })
}

/// Refuses a plan that something has changed for since it was made; where it is allowed, says what.
fn refuse_stale(
    context: &Context,
    history: &History,
    saved: &Saved,
    is_allowed: bool,
) -> Result<(), Failure> {
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
    let failure = Failure::new(Exit::StalePlan, "the plan is stale: something it depends on has changed");
    let failure = changes.into_iter().fold(failure, Failure::cause);
    Err(failure.hint("plan again, or run it anyway with --stale-ok"))
}

/// What has changed of the hosts, the program and what was measured, in words.
fn host_changes(context: &Context, history: &History, plan: &Plan) -> Result<Vec<String>, Failure> {
    let host = match plan.recipe.cluster.launcher {
        Launcher::Local => rates::host(),
        // Nobody has seen the hosts of a data sheet.
        Launcher::Ssh | Launcher::Slurm if plan.is_estimated() => {
            hosts::facts(&mut hosts::of(context, &plan.recipe)?)?
        }
        // What became of other hosts is seen when they are reached.
        Launcher::Ssh | Launcher::Slurm => return Ok(Vec::new()),
    };
    let known = history.rates(&host, &rates_key(&plan.recipe, &host)).map_err(|error| ledger(&error))?;
    Ok(plan.stale(&host, known.as_ref(), rates::PROGRAM).iter().map(ToString::to_string).collect())
}

/// Refuses to train what could never be saved: a file of a checkpoint would be larger than files may be, or the disk of the state
/// folder has no room for one checkpoint.
fn refuse_without_room(context: &Context, plan: &Plan) -> Result<(), Failure> {
    /// Bytes that stay free beside what a rank writes, so that the history has room.
    const RESERVE: u64 = 16 << 20;
    let recipe = &plan.recipe;
    if recipe.cluster.launcher != Launcher::Local || matches!(recipe.model, Model::Command(_)) {
        return Ok(());
    }
    let state = saving::state_bytes(recipe);
    limits::refuse_large_file(Bytes(state / u64::from(plan.best().candidate.arrangement.layout.world())))?;
    let path = context.home.path();
    let Ok(disk) = rustix::fs::statvfs(path) else { return Ok(()) };
    let free = Bytes(disk.f_bavail.saturating_mul(disk.f_frsize));
    let needed = Bytes(state.saturating_add(RESERVE));
    if free >= needed {
        return Ok(());
    }
    let message = format!("a checkpoint needs {needed}, and {} has {free} free", path.display());
    Err(Failure::new(Exit::Preflight, message)
        .hint("free some space there, or name another folder with --state FOLDER"))
}

/// Who said the values that were not in the recipe itself.
pub(crate) fn sources(loaded: &Loaded) -> BTreeMap<String, Source> {
    let source = |layer: Layer| match layer {
        Layer::Default => Source::Default,
        Layer::Environment | Layer::Assignment | Layer::Settings | Layer::Cluster => Source::Setting,
        Layer::Extended | Layer::Recipe => Source::Recipe,
    };
    loaded.checked.resolved.iter().map(|value| (value.path.clone(), source(value.origin.layer()))).collect()
}

pub(crate) fn new_trial(
    plan: &Plan,
    sources: BTreeMap<String, Source>,
    folder: &Path,
    recipe: String,
) -> NewTrial {
    let features = [("cuda", cfg!(feature = "cuda")), ("wgpu", cfg!(feature = "wgpu"))];
    let features: Vec<_> = features.iter().filter(|(_, is_built)| *is_built).map(|(name, _)| *name).collect();
    let mut provenance = Provenance::collect(folder, &features);
    provenance.environment.insert(audit::RECIPE.to_owned(), recipe);
    NewTrial { sources, ..NewTrial::of(plan, plan.best(), provenance) }
}

/// Puts the plan beside the trial's checkpoints, for people and other programs.
pub(crate) fn keep_plan(
    context: &Context,
    trial: &dtrain_protocol::TrialId,
    plan: &Plan,
) -> Result<(), Failure> {
    let folder = context.home.trial(trial);
    let stored = Stored::of(plan.clone(), None);
    let text = crate::output::document("plan", &stored, true)?;
    folder.create().and_then(|()| files::write(&folder.plan(), text.as_bytes())).map_err(|error| {
        Failure::new(Exit::Infrastructure, format!("cannot write {}", folder.plan().display()))
            .cause(error.to_string())
            .hint("`dtrain doctor` checks the state folder")
    })
}

/// A GPU that lies idle because of how the program was built is worth a line.
fn mention_gpu(context: &Context, plan: &Plan) {
    if plan.recipe.cluster.devices == Devices::Cpu {
        return;
    }
    if let Some(gpu) = doctor::unused_gpu() {
        context.out.say(&format!(
            "{}: this machine has {gpu}, but this build has no backend for it; rebuild with `{}`",
            context.out.paint.yellow("note"),
            gpu.build()
        ));
    }
}
