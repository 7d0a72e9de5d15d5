//! The planner: a pure function from a recipe, a host and its rates to a plan.
//!
//! It reads no clock, file or socket, starts no thread, and has no unordered map: the same request gives the
//! same plan, to the last bit. A formula is a free function in the file named after its quantity.
//!
//! One folder per step from recipe to plan: `layout` lists the candidates, `step` says what each rank does,
//! `price` and `analytic` compute the cost, `choice` picks one, `training` decides learning rate, batch and
//! checkpoints; `planning` takes the request, calls the others, and explains the plan.
//!
//! There are two cost models. dtrain's own worker is priced from measured rates (`rates`, `price`), over its
//! own list of actions and table of traffic. Engines on GPUs that are not at hand are priced from data sheets
//! and fitted formulas (`analytic`), through `what_if`. The two share the data sheets (`hardware`), the
//! failure model and the rules of choice, nothing else; measured rates take precedence.

#![warn(clippy::disallowed_types)]

pub mod analytic;
pub mod answer;
pub mod benchmarks;
pub mod choice;
pub mod emit;
pub mod engine;
mod engine_run;
pub mod fit;
pub mod hardware;
pub mod layout;
pub mod linear_algebra;
pub mod normal;
pub mod pipeline_schedule;
pub mod planning;
pub mod price;
pub mod rates;
mod rng;
pub mod step;
pub mod text;
pub mod training;
pub mod tune;
pub mod what_if;

#[cfg(test)]
mod fixtures;

pub use choice::alternative::Alternative;
pub use engine_run::lower_for_engine;
pub use layout::batch_split::BatchSplit;
pub use layout::candidate::Candidate;
pub use layout::rejection::{RejectedGroup, Rejection};
pub use planning::drift::PlanDrift;
pub use planning::error::PlanError;
pub use planning::explain::explain;
pub use planning::learning_rate_change::{LearningRateChange, learning_rate_change};
pub use planning::lower::{AttemptSpec, lower};
pub use planning::micro_batches_to_measure::micro_batches_to_measure;
pub use planning::plan;
pub use planning::plan::{
    Epochs, Plan, PlanReadError, PlanRequest, RankedCandidate, RatesStamp, model_digest, observation_key,
    rates_digest, rates_key, training_digest,
};
pub use planning::precheck::{engine_can_train, precheck};
pub use planning::step_profile::step_profile;
pub use price::estimate::{Causes, Estimate, TimeBreakdown};
pub use price::memory::MemoryBreakdown;
pub use price::step_profile::StepProfile;
pub use rates::calibrate::{Factors, StepObservation};
pub use rates::measured_precision::precision_to_measure;
pub use training::calendar::format_day;
pub use training::decision::Decision;
pub use training::learning_rate_correction::Correction;
pub use training::training_schedule::TrainingSchedule;
