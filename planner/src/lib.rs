//! Pure search: a recipe, a host and its rates go in, a plan comes out.
//!
//! Nothing here reads a clock, a file or a socket, starts a thread, or walks an unordered map: the same request
//! gives the same plan, to the last bit. A formula is a free function of values, in the file named after the
//! quantity it computes.
//!
//! The way from a recipe to a plan, one folder each: `planning` takes the request, `layout` lists what could be done, `step` says what each
//! rank then does, `price` and `analytic` say what that costs, `choice` takes one and explains it, `training` decides what a step does not:
//! learning rate, batch, checkpoints.
//!
//! There are two ways to a price. dtrain's own worker is priced from measured rates (`rates`, `price`), over the worker's own list of
//! actions and table of traffic. Engines on GPUs that are not here, dtrain's own among them, are priced from data sheets and fitted
//! formulas (`analytic`), and `what_if` asks for that. The two share the table of parts and the model of failures, nothing else; measured rates win.

pub mod analytic;
pub mod benchmarks;
pub mod choice;
pub mod engine;
pub mod layout;
pub mod planning;
pub mod price;
pub mod rates;
pub mod step;
pub mod training;
pub mod tune;
pub mod what_if;

#[cfg(test)]
mod fixtures;

pub use choice::alternatives::Alternative;
pub use choice::explain::explain;
pub use layout::batch_split::BatchSplit;
pub use layout::candidate::{Candidate, RejectedGroup, Rejection};
pub use planning::error::PlanError;
pub use planning::plan;
pub use planning::plan::{
    Epochs, Plan, PlanReadError, PlanRequest, RankedCandidate, RatesStamp, model_digest, rates_digest,
    rates_key, training_digest,
};
pub use planning::precheck::precheck;
pub use price::estimate::{Causes, Estimate, TimeBreakdown};
pub use price::memory::MemoryBreakdown;
pub use rates::calibrate::{Factors, StepObservation};
pub use rates::drift::PlanDrift;
pub use rates::probing::{micro_batches_to_measure, precision_to_measure};
pub use step::lower::{AttemptSpec, lower};
pub use step::timeline::{StepProfile, step_profile};
pub use training::calendar::format_day;
pub use training::learning_rate::Decision;
pub use training::learning_rate_change::{LearningRateChange, learning_rate_change};
pub use training::learning_rate_correction::Correction;
pub use training::training_schedule::TrainingSchedule;
