//! Plans a recipe on GPUs that are not at hand, by pricing every layout from data sheets and formulas.
//!
//! For decisions on hardware, and for other engines. Nothing is measured or launched; [`crate::analytic`] is
//! the model, with a wide interval for setups without published runs.

mod advice;
mod alternatives;
mod describe_layout;
mod error;
mod explain;
mod failures;
mod fitting;
mod heterogeneous;
mod host_count;
pub mod known_machines;
mod memory_limits;
mod precision;
mod ranking;
mod stage_timeline;
mod state;
mod to_plan;
mod tradeoffs;
mod transformer;
mod worker_plan;
mod world_size;

#[cfg(test)]
mod tests;

pub use advice::{Advice, Measurement};
pub use alternatives::AxisAlternative;
pub use describe_layout::describe_layout;
pub use error::DatasheetPlanError;
pub use explain::{constants_source, explain, subject};
pub use failures::{FailureForecast, STORAGE_BYTES_PER_SECOND};
pub use heterogeneous::{
    GroupEstimate, MixedClusterPlan, MixedLayoutEstimate, StandaloneGroup, explain_mixed_cluster,
    plan_mixed_cluster,
};
pub use memory_limits::MemoryLimit;
pub use state::WayToFit;
pub use to_plan::to_plan;
pub use transformer::transformer;
pub use worker_plan::{WorkerPlan, WorkerPlanRequest, plan_for_worker, worker_only_kind};

use crate::analytic::search::{LayoutSearchResult, SearchProblem};
use crate::analytic::uncertainty::{
    exceedance_probability, memory_uncertainty, prediction_interval, step_time_uncertainty,
};
use crate::analytic::{Constants, MissingInputs, PeakMemory, Software, StepConfig, StepTimes};
use crate::choice::tradeoffs::{CostBasis, Tradeoffs};
use crate::engine::{AttentionKernel, EngineSupport, TrainingSpec};
use crate::hardware::{Assumption, HostGroup};
use crate::step::timeline::Timeline;
use crate::training::batch_size;
use crate::training::decision::Decision;
use crate::training::learning_rate;
use crate::training::training_schedule::{self, StepAndValidationTime};
use dtrain_recipes::{
    AttentionImplementation, Decoder, LayoutPins, Model, Precision, Recipe, StatePins, Tunable,
};
use serde::Serialize;

/// Relative difference from the best estimate up to which estimates are tied.
pub const TIE: f64 = 0.04;

/// Number of layouts that the search keeps.
const KEEP: usize = 200;

/// Default number of layouts slower than the ties that a plan lists.
pub const NEXT: usize = 5;

/// A recipe, a cluster and an engine to plan for.
#[derive(Clone, Copy, Debug)]
pub struct DatasheetPlanRequest<'a> {
    /// Recipe to plan.
    pub recipe: &'a Recipe,
    /// Devices to train on.
    pub cluster: HostGroup,
    /// Engine to train with.
    pub engine: &'static dyn crate::engine::Engine,
    /// Number of layouts slower than the ties that the plan lists; at most 200 are kept.
    pub next: usize,
}

/// Plan of a recipe from data sheets.
#[derive(Clone, Debug, Serialize)]
pub struct DatasheetPlan {
    /// Name of the recipe.
    pub recipe: String,
    /// Number of model parameters.
    pub parameters: u64,
    /// Number of tokens of a sample.
    pub sample_tokens: u64,
    /// Number of devices in use.
    pub devices: u32,
    /// Number of devices that stay idle because fewer hosts are faster.
    pub idle: u32,
    /// Number of devices per host.
    pub per_host: u32,
    /// Name of the GPU, and the source of its figures.
    pub gpu: (String, &'static str),
    /// Name of the engine.
    pub engine: &'static str,
    /// Number of samples per step, and the reason for it.
    pub batch: Decision<u64>,
    /// Peak learning rate, and the reason for it.
    pub learning_rate: Decision<f64>,
    /// Precision of matrix products, and the reason for it.
    pub precision: Decision<Precision>,
    /// Facts about the cluster that were assumed.
    pub assumptions: Vec<Assumption>,
    /// Probability that the choice runs out of memory, if it is above one in ten.
    pub out_of_memory: Option<f64>,
    /// Layout that the plan recommends.
    pub choice: LayoutEstimate,
    /// Layouts within the tie margin of the choice, in order of preference.
    pub ties: Vec<LayoutEstimate>,
    /// Fastest layouts besides the choice and its ties, fastest first.
    pub next: Vec<LayoutEstimate>,
    /// Best layout for every axis value that was not chosen.
    pub alternatives: Vec<AxisAlternative>,
    /// Changes of the choice that would be faster but do not fit into memory, fastest first.
    pub memory_limits: Vec<MemoryLimit>,
    /// The choice and the Pareto front of time, memory and cost, on all devices or fewer.
    pub tradeoffs: Tradeoffs<StepConfig>,
    /// Usable bytes of memory per device.
    pub memory_bytes: f64,
    /// Bytes of a rank of every stage of the chosen layout by category, in pipeline order.
    pub stages: Vec<Vec<(&'static str, f64)>>,
    /// Timeline of a step on every stage of the chosen layout; `None` if the stages deadlock.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
    /// Effects of single changes, most helpful first.
    pub advice: Vec<Advice>,
    /// Measurement that would tell most about the choice; `None` if no layouts tie with it.
    pub measurement: Option<Measurement>,
    /// Number of optimizer steps; `None` unless the recipe determines it.
    pub steps: Option<u64>,
    /// Seconds of all steps without failures; `None` if their number is unknown.
    pub total_seconds: Option<f64>,
    /// Device hours of all steps without failures; `None` if the number of steps is unknown.
    pub device_hours: Option<f64>,
    /// Price of a device hour; `None` unless the recipe states it.
    pub price: Option<f64>,
    /// Forecast of host failures and of their effect on the training.
    pub failures: FailureForecast,
    /// Number of layouts in the search space.
    pub layouts: u64,
}

/// A layout of equal devices, with its estimate.
#[derive(Clone, Debug, Serialize)]
pub struct LayoutEstimate {
    /// Layout that is estimated.
    pub config: StepConfig,
    /// Estimated seconds per step.
    pub step_seconds: f64,
    /// Lower end of the 80 % prediction interval of the seconds per step.
    pub step_seconds_low: f64,
    /// Upper end of the 80 % prediction interval of the seconds per step.
    pub step_seconds_high: f64,
    /// Seconds of the step by cause.
    pub causes: Vec<(&'static str, f64)>,
    /// Tokens per second and device.
    pub tokens_per_second_per_device: f64,
    /// Model FLOPs utilization (MFU) of the step.
    pub model_flops_utilization: f64,
    /// Peak bytes of the heaviest rank.
    pub peak_bytes: f64,
    /// Upper end of the 80 % prediction interval of the peak bytes.
    pub peak_bytes_high: f64,
    /// Bytes of the heaviest rank by category.
    pub bytes: Vec<(&'static str, f64)>,
}

/// Plans the recipe of `request` on its cluster from data sheets.
pub fn plan_from_datasheets(request: &DatasheetPlanRequest<'_>) -> Result<DatasheetPlan, DatasheetPlanError> {
    let recipe = request.recipe;
    let Asked { problem: asked, batch, precision } = problem(request)?;
    let (problem, found) = state::search_that_fits(&asked, KEEP);
    let preferred = ranking::rank_layouts(&problem, &found)?;
    let chosen = preferred.chosen.choice;
    let price = |one: &ranking::PessimisticLayout| layout_estimate(&problem, &one.choice.config);
    let choice = price(&preferred.chosen);
    let steps = batch_size::steps(&recipe.objective.stop, &recipe.model, batch.value, None);
    #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^52")]
    let total_seconds = steps.map(|steps| steps as f64 * choice.step_seconds);
    let devices = request.cluster.devices;
    let cost_basis = CostBasis { steps, price: recipe.cluster.price };
    Ok(DatasheetPlan {
        recipe: recipe.name.clone(),
        parameters: recipe.model.parameters(),
        sample_tokens: recipe.model.sample_tokens(),
        devices,
        per_host: request.cluster.per_host,
        gpu: (request.cluster.part(), request.cluster.gpu.source()),
        engine: request.engine.name(),
        learning_rate: rate(recipe, batch.value, choice.step_seconds),
        batch,
        precision,
        assumptions: Assumption::of(&[request.cluster]),
        out_of_memory: out_of_memory(&choice, request.cluster.memory),
        idle: devices - problem.cluster.devices,
        ties: preferred.ties.iter().map(price).collect(),
        next: preferred.others.iter().take(request.next).map(price).collect(),
        measurement: advice::measurement(&preferred, devices),
        alternatives: alternatives::axis_alternatives(&problem, &found, &chosen),
        memory_limits: memory_limits::memory_limits(&problem, &chosen.config, choice.step_seconds),
        advice: advice::advice(request, &problem, &found.best[0]),
        failures: failures::failure_forecast(
            recipe,
            (devices, request.cluster.per_host),
            steps,
            choice.step_seconds,
        ),
        memory_bytes: request.cluster.memory,
        stages: stage_timeline::memory(&problem, &chosen.config),
        timeline: stage_timeline::timeline(&problem, &chosen.config),
        layouts: found.layouts,
        tradeoffs: tradeoffs::tradeoffs(&problem, found, &chosen, cost_basis),
        choice,
        steps,
        total_seconds,
        price: recipe.cluster.price,
        device_hours: total_seconds.map(|seconds| seconds / 3600.0 * f64::from(devices)),
    })
}

/// The search problem of a request, with what was decided before the search.
struct Asked {
    problem: SearchProblem,
    /// Samples per step.
    batch: Decision<u64>,
    precision: Decision<Precision>,
}

/// Returns the search problem of a request for equal hosts.
fn problem(request: &DatasheetPlanRequest<'_>) -> Result<Asked, DatasheetPlanError> {
    problem_on(request, &[request.cluster])
}

/// Returns the search problem of a request on the first of `groups`, whose precision all of them have.
fn problem_on(request: &DatasheetPlanRequest<'_>, groups: &[HostGroup]) -> Result<Asked, DatasheetPlanError> {
    let recipe = request.recipe;
    let decoder = decoder(&recipe.model)?;
    refuse_part(request.engine, &request.cluster)?;
    refuse_pins(&recipe.layout)?;
    let devices = groups.iter().map(|group| group.devices).fold(0, u32::saturating_add);
    let batch = batch(recipe, devices)?;
    let training = TrainingSpec::of(decoder, &recipe.train);
    let precision = precision::precision(&recipe.train, &training, request.engine, groups)?;
    let products = precision::products(precision.value, recipe.train.fp8_recipe);
    let problem = SearchProblem {
        model: transformer(decoder),
        cluster: request.cluster,
        engine: Software::of_engine(request.engine, &training, precision.value, Constants::shipped()),
        runs_on: Some(EngineSupport { engine: request.engine, training }),
        kernel: kernel(request, &recipe.train.state),
        products,
        state: recipe.train.state.policy(dtrain_recipes::StatePolicy::PLAIN),
        batch: u32::try_from(batch.value).map_err(|_| DatasheetPlanError::NoBatch)?,
        pins: recipe.layout.clone(),
        sync: recipe.sync,
        constants: Constants::shipped(),
    };
    Ok(Asked { problem, batch, precision })
}

/// Returns the attention kernel: the one that the recipe names, or that of the engine on the part.
fn kernel(request: &DatasheetPlanRequest<'_>, pins: &StatePins) -> AttentionKernel {
    let has_flash = request.cluster.gpu.generation().has_flash;
    match pins.attention {
        Some(AttentionImplementation::Eager) => AttentionKernel::Plain,
        Some(AttentionImplementation::Sdpa | AttentionImplementation::Flash) if !has_flash => {
            AttentionKernel::Flash1
        }
        Some(AttentionImplementation::Sdpa | AttentionImplementation::Flash) => AttentionKernel::Flash2,
        None => request.engine.style().kernel_on(has_flash),
    }
}

fn decoder(model: &Model) -> Result<&Decoder, DatasheetPlanError> {
    match model {
        Model::Decoder(decoder) => Ok(decoder),
        Model::Mlp(_) => Err(DatasheetPlanError::NoDecoder { kind: "mlp" }),
        Model::Cnn(_) => Err(DatasheetPlanError::NoDecoder { kind: "cnn" }),
        Model::Custom(_) => Err(DatasheetPlanError::NoDecoder { kind: "custom" }),
        Model::Command(_) => Err(DatasheetPlanError::NoDecoder { kind: "command" }),
    }
}

/// Returns an error if the engine does not support the device.
fn refuse_part(
    engine: &'static dyn crate::engine::Engine,
    cluster: &HostGroup,
) -> Result<(), DatasheetPlanError> {
    let kind = cluster.gpu.kind();
    if engine.kinds().contains(&kind) {
        return Ok(());
    }
    let others = crate::engine::ALL.into_iter().filter(|other| other.kinds().contains(&kind));
    let names: Vec<&str> = others.map(|other| other.name()).collect();
    let instead = if names.is_empty() { String::new() } else { format!("; these do: {}", names.join(", ")) };
    Err(DatasheetPlanError::Part { engine: engine.title(), part: cluster.part(), instead })
}

/// Returns an error for a pin that the problem cannot represent, so that none is dropped.
fn refuse_pins(pins: &LayoutPins) -> Result<(), DatasheetPlanError> {
    let set = [("shares", pins.shares.is_some())];
    match set.into_iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) => Err(DatasheetPlanError::Pin { key }),
        None => Ok(()),
    }
}

/// Decides the number of samples per step: as pinned, or as recommended for the length of the run, in
/// multiples that divide well.
fn batch(recipe: &Recipe, devices: u32) -> Result<Decision<u64>, DatasheetPlanError> {
    let budget = batch_size::budget(&recipe.objective.stop, &recipe.model, None, 0.0);
    let is_open = !matches!(recipe.train.batch, Tunable::Pinned(_));
    if is_open && budget.samples.is_none_or(|samples| samples <= 0.0) && budget.steps.is_none() {
        return Err(DatasheetPlanError::NoBatch);
    }
    let recommended = batch_size::recommended(&recipe.model, budget, None, world_size::batch_unit(devices));
    let recommended = world_size::divided(recommended, devices);
    Ok(batch_size::clamp_to_choice(&recipe.train.batch, recommended))
}

fn rate(recipe: &Recipe, batch: u64, step_seconds: f64) -> Decision<f64> {
    let pace = training_schedule::training_schedule(
        recipe,
        batch,
        None,
        None,
        StepAndValidationTime { step: step_seconds, validation_sample: None },
    );
    #[expect(clippy::cast_precision_loss, reason = "an estimate needs no more than 52 bits")]
    let tokens = pace.schedule_steps as f64 * (batch * recipe.model.sample_tokens()) as f64;
    let recommended = learning_rate::recommended_peak(&recipe.model, &recipe.train, batch, tokens);
    learning_rate::clamp_to_choice(&recipe.train.learning_rate, recommended)
}

/// Returns the probability that `choice` exceeds `memory` bytes, if it is above one in ten.
fn out_of_memory(choice: &LayoutEstimate, memory: f64) -> Option<f64> {
    let LayoutEstimate { peak_bytes, peak_bytes_high, .. } = *choice;
    (peak_bytes_high > memory).then(|| exceedance_probability(peak_bytes, peak_bytes_high, memory))
}

fn refusal(problem: &SearchProblem, found: &LayoutSearchResult) -> DatasheetPlanError {
    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
    match &found.nearest {
        Some(nearest) => DatasheetPlanError::NothingFits {
            needed: nearest.bytes / GIB,
            available: problem.cluster.memory / GIB,
            nearest: describe_layout(&nearest.config),
            ways: state::ways_to_fit(problem),
        },
        None => world_size::no_layout(problem, problem.cluster.devices),
    }
}

/// Returns the inputs of estimates on `cluster` that were assumed.
fn missing_inputs(cluster: &HostGroup) -> MissingInputs {
    let network = cluster.assumed.network && cluster.devices > cluster.per_host;
    MissingInputs { network, ..MissingInputs::default() }
}

/// Returns the estimate for the layout `config`.
fn layout_estimate(problem: &SearchProblem, config: &StepConfig) -> LayoutEstimate {
    let case = problem.at(config);
    let (step, peak) = (StepTimes::of(&case), PeakMemory::of(&case));
    let unknown = missing_inputs(&problem.cluster);
    let gpu = problem.cluster.gpu;
    let seconds = step.total();
    let (low, high) = prediction_interval(seconds, step_time_uncertainty(&case, gpu, unknown).deviation());
    LayoutEstimate {
        config: *config,
        step_seconds: seconds,
        step_seconds_low: low,
        step_seconds_high: high,
        causes: step.causes(&case).to_vec(),
        tokens_per_second_per_device: config.batch() * case.model.sequence / (config.ranks() * seconds),
        model_flops_utilization: case.model_flops_utilization(seconds, gpu.peak()),
        peak_bytes: peak.total(),
        peak_bytes_high: prediction_interval(peak.total(), memory_uncertainty(&case, unknown)).1,
        bytes: peak.categories().to_vec(),
    }
}
