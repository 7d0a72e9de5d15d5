//! Inputs of the planner: facts about the hosts, measured rates, and the number of samples.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::LoadedRecipe;
use crate::render::data_preparation::DataPreparationBar;
use crate::render::number::counted;
use crate::trials::history_failure;
use crate::{engine_choice, hosts, this_host};
use dtrain_planner::engine::Engine;
use dtrain_planner::{
    Correction, Plan, PlanRequest, StepObservation, StepProfile, micro_batches_to_measure, observation_key,
    precision_to_measure, rates_key, training_digest,
};
use dtrain_protocol::{HostFacts, InputManifest, Rates};
use dtrain_recipes::{Data, Model, Recipe, Seconds, TrainingEngine};
use dtrain_runner::control_protocol::Program;
use dtrain_runner::driver::Programs;
use dtrain_runner::launch::relay::RemoteHost;
use dtrain_runner::ledger::History;
use dtrain_runner::probe::{Probe, ProbeError, rates};
use dtrain_worker::comm::WorkCounter;
use dtrain_worker::data::{self, DataError, DataSet, PreparationStep};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::time::Duration;

/// Default duration of a measurement of rates in seconds (`cluster.probe`).
const PROBE_SECONDS: f64 = 12.0;

/// Seconds beyond its time budget after which a measurement is abandoned.
const GRACE_SECONDS: f64 = 60.0;

/// Returns the rates of this machine, or of the hosts `others`, for a recipe's model: those in the history,
/// or else newly measured ones, which are stored. `None`, after a message, if the measurement took too long.
pub(crate) fn cached_or_measured_rates(
    context: &Context,
    history: &mut History,
    (host, others): (&HostFacts, &mut [RemoteHost]),
    recipe: &Recipe,
    train_samples: Option<u64>,
    fresh: bool,
) -> Result<Option<Rates>, CommandError> {
    let digest = rates_key(recipe, host);
    if !fresh && let Some(known) = history.rates(host, &digest).map_err(|error| history_failure(&error))? {
        return Ok(Some(known));
    }
    let sizes = micro_batches_to_measure(recipe, host, train_samples);
    let measured = measure(context, (host, others), recipe, &digest, (this_host::programs()?, sizes));
    let measured = match measured {
        Ok(measured) => measured,
        Err(error @ ProbeError::Late { .. }) => {
            context.out.say(&format!(
                "{}: {error} and was given up; `--set cluster.probe=\"5 min\"` gives it more time",
                context.out.paint.yellow("warning")
            ));
            return Ok(None);
        }
        Err(error) => {
            let hint = match error {
                ProbeError::Memory { .. } => {
                    "free some memory, or use a smaller model, `model.context` or `cluster.ranks`"
                }
                ProbeError::Late { .. } | ProbeError::Worker { .. } => "`dtrain doctor` checks this machine",
            };
            return Err(CommandError::of(ExitReason::Infrastructure, &error).hint(hint));
        }
    };
    history.save_rates(&measured).map_err(|error| history_failure(&error))?;
    Ok(Some(measured))
}

/// Measures the rates of hosts for the given micro-batches.
fn measure(
    context: &Context,
    (host, others): (&HostFacts, &mut [RemoteHost]),
    recipe: &Recipe,
    digest: &str,
    (programs, micro_batches): (Programs, Vec<u32>),
) -> Result<Rates, ProbeError> {
    let mut arguments = programs.worker.arguments.clone();
    arguments.push("probe".to_owned());
    let probe = Probe {
        worker: Program { arguments, ..programs.worker },
        model: &recipe.model,
        model_digest: digest,
        host: host.clone(),
        micro_batches,
        precision: precision_to_measure(recipe, host),
        budget_seconds: recipe.cluster.probe.map_or(PROBE_SECONDS, |time| time.0),
        grace_seconds: GRACE_SECONDS,
    };
    let spinner = context.out.draws().then(|| spinner(probe.budget_seconds));
    let mut tell = |ranks: u32, threads: u32| {
        let ranks = counted(ranks.into(), "rank");
        let text = format!("measuring {ranks} with {} each", counted(threads.into(), "thread"));
        match &spinner {
            Some(spinner) => spinner.set_message(text),
            None => context.out.say(&text),
        }
    };
    let found = rates(&probe, others, &mut tell);
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    found
}

/// Shows a spinner for a measurement of `budget_seconds`, with elapsed and expected time.
fn spinner(budget_seconds: f64) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_prefix(Seconds(budget_seconds).to_string());
    let style = ProgressStyle::with_template("{spinner} {msg}: {elapsed} of about {prefix}");
    spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// Plans a loaded recipe for its hosts.
pub(crate) fn plan(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
) -> Result<Plan, CommandError> {
    plan_derived_recipe(context, history, loaded, &loaded.checked.recipe)
}

/// Plans a recipe derived from a loaded one, with the loaded one's data.
pub(crate) fn plan_derived_recipe(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    recipe: &Recipe,
) -> Result<Plan, CommandError> {
    let inputs = inputs(context, loaded)?;
    plan_with_inputs(context, history, loaded, (recipe, None), inputs.as_ref())
}

/// Like [`plan_derived_recipe`], with given data, and for the engine for which the plan is emitted.
pub(crate) fn plan_with_inputs(
    context: &Context,
    history: &mut History,
    loaded: &LoadedRecipe,
    (recipe, engine): (&Recipe, Option<&'static dyn Engine>),
    inputs: Option<&InputManifest>,
) -> Result<Plan, CommandError> {
    let samples = inputs.map(|inputs| (inputs.train_samples, inputs.valid_samples));
    let mut others = hosts::connect_to_plan(context, recipe)?;
    let host = hosts::facts(&mut others)?;
    if recipe.engine == TrainingEngine::Auto {
        let engines = engine_choice::installed(context, recipe, &host, &mut others);
        // The plans use the same connections.
        drop(others);
        return engine_choice::fastest(context, recipe, &engines, |recipe| {
            plan_with_inputs(context, history, loaded, (recipe, engine), inputs)
        });
    }
    if let Model::Command(_) = recipe.model {
        // The cost of a foreign command cannot be measured.
        return request(loaded, (recipe, engine), &host, None, (&[], &[]), None);
    }
    let train_samples = samples.map(|(train, _)| train);
    // Candidates that do not fit by the formula are not measured: the probe would run out of memory.
    let corrections =
        history.corrections(&training_digest(recipe)).map_err(|error| history_failure(&error))?;
    let unmeasured = request(loaded, (recipe, engine), &host, None, (&[], &corrections), samples)?;
    let settled =
        cached_or_measured_rates(context, history, (&host, &mut others), recipe, train_samples, false)?;
    let Some(rates) = settled else { return Ok(unmeasured) };
    let observations = observations(history, &host, recipe)?;
    request(loaded, (recipe, engine), &host, Some(&rates), (&observations, &corrections), samples)
}

fn request(
    loaded: &LoadedRecipe,
    (recipe, engine): (&Recipe, Option<&'static dyn Engine>),
    host: &HostFacts,
    rates: Option<&Rates>,
    (observations, corrections): (&[StepObservation], &[Correction]),
    samples: Option<(u64, u64)>,
) -> Result<Plan, CommandError> {
    let request = PlanRequest {
        recipe,
        host,
        group: None,
        engine,
        rates,
        observations,
        corrections,
        data_root: loaded.folder.clone(),
        train_samples: samples.map(|(train, _)| train),
        valid_samples: samples.map(|(_, valid)| valid),
        seed: recipe.train.seed,
        program: this_host::PROGRAM,
    };
    let plan = dtrain_planner::plan(&request).map_err(|error| refusal(&error))?;
    Ok(Plan { settings: loaded.checked.settings(), ..plan })
}

/// Simulates one step of a plan's best candidate with the rates that the plan used; returns its timeline.
pub(crate) fn step_timeline(history: &History, plan: &Plan) -> Result<StepProfile, CommandError> {
    let digest = rates_key(&plan.recipe, &plan.host);
    let rates = history.rates(&plan.host, &digest).map_err(|error| history_failure(&error))?;
    let picture = dtrain_planner::step_profile(plan, &plan.best().candidate, rates.as_ref());
    picture.ok_or_else(|| {
        CommandError::new(ExitReason::Infrastructure, "the plan's pipeline schedule deadlocks")
    })
}

/// Counts the samples of the training data and of the validation data.
pub(crate) fn count_samples(
    context: &Context,
    loaded: &LoadedRecipe,
) -> Result<Option<(u64, u64)>, CommandError> {
    Ok(inputs(context, loaded)?.map(|inputs| (inputs.train_samples, inputs.valid_samples)))
}

/// Reads the data of a recipe once, so that unusable data is reported before anything is measured, and prints
/// remarks. `None` for a command, which reads its own data.
pub(crate) fn inputs(
    context: &Context,
    loaded: &LoadedRecipe,
) -> Result<Option<InputManifest>, CommandError> {
    let Some(opened) =
        open_set(context, loaded).map_err(|error| CommandError::of(ExitReason::Usage, &error))?
    else {
        return Ok(None);
    };
    for warning in &opened.warnings {
        context.out.say(&format!("{}: {warning}", context.out.paint.yellow("warning")));
    }
    Ok(Some(opened.inputs()))
}

/// Reads the data of a recipe whose paths start from `folder`; `None` for a command, which reads its own
/// data.
pub(crate) fn inputs_of(
    context: &Context,
    recipe: &Recipe,
    folder: &Path,
    tokenizer: Option<&[u8]>,
) -> Result<Option<InputManifest>, DataError> {
    Ok(open_set_in(context, recipe, folder, tokenizer)?.map(|opened| opened.inputs()))
}

/// Opens the samples in a recipe's data; tokenizes text that is not tokenized yet.
pub(crate) fn open_set(context: &Context, loaded: &LoadedRecipe) -> Result<Option<DataSet>, DataError> {
    open_set_in(context, &loaded.checked.recipe, &loaded.folder, loaded.tokenizer.as_deref())
}

fn open_set_in(
    context: &Context,
    recipe: &Recipe,
    folder: &Path,
    tokenizer: Option<&[u8]>,
) -> Result<Option<DataSet>, DataError> {
    let Some(data) = &recipe.data else { return Ok(None) };
    let cache = context.home.path().join("cache");
    let (progress, bar) = (WorkCounter::default(), DataPreparationBar::new(context.out));
    let tell = |work: PreparationStep<'_>| bar.show(work);
    let opened = data::open_with(data, folder, &recipe.model, &cache, tokenizer, &progress, &tell)?;
    drop(bar);
    print_data_notes(context, data, folder)?;
    Ok(Some(opened))
}

/// Prints remarks about data files: the detected format, and files that are left out.
pub(crate) fn print_data_notes(context: &Context, data: &Data, folder: &Path) -> Result<(), DataError> {
    for note in data::notes(data, folder)? {
        context.out.say(&format!("{}: {note}", context.out.paint.yellow("note")));
    }
    Ok(())
}

/// Downloads the data that a recipe names by URL, with a line of progress.
pub(crate) fn fetch(context: &Context, data: &Data) -> Result<(), DataError> {
    let bar = DataPreparationBar::new(context.out);
    data::fetch(data, &|work| bar.show(work))
}

/// Returns predicted and measured step times from earlier trials of this model on this host.
fn observations(
    history: &History,
    host: &HostFacts,
    recipe: &Recipe,
) -> Result<Vec<StepObservation>, CommandError> {
    let host = dtrain_runner::ledger::host_digest(host);
    let kept =
        history.observations(&host, &observation_key(recipe)).map_err(|error| history_failure(&error))?;
    let readable = kept.into_iter().filter_map(|seen| {
        // Candidates of older versions that cannot be parsed are skipped.
        let candidate = serde_json::from_value(seen.candidate).ok()?;
        Some(StepObservation {
            candidate,
            predicted: Seconds(seen.predicted_step_seconds),
            measured: Seconds(seen.measured_step_seconds),
        })
    });
    Ok(readable.collect())
}

/// Returns the failure of a recipe that has no plan.
pub(crate) fn refusal(error: &dtrain_planner::PlanError) -> CommandError {
    use dtrain_planner::PlanError as E;
    match error {
        E::NothingFits { .. } => CommandError::of(ExitReason::NothingFits, error),
        E::NoGpu { .. } => CommandError::of(ExitReason::Preflight, error),
        E::UnevenHosts { .. }
        | E::EngineLacks { .. }
        | E::TooManyMicroBatches { .. }
        | E::Untrainable(_)
        | E::GathersWithoutRecompute
        | E::SamplesUnknown
        | E::NoEnd
        | E::EmptyBatch
        | E::UnevenLayout { .. }
        | E::BatchBeyondData { .. } => CommandError::of(ExitReason::Usage, error),
    }
}
