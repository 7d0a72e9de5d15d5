//! Pure search: a recipe, a host and its rates go in, a plan comes out.
//!
//! Nothing here reads a clock, a file or a socket, starts a thread, or walks an unordered map: the same request
//! gives the same plan, to the last bit. A formula is a free function of values, in the file named after the
//! quantity it computes.
//!
//! There are two ways to a price. dtrain's own worker is priced from measured rates (`speeds`, `compute`, `timing`, `memory`), over the
//! worker's own list of actions and table of traffic. Other engines on GPUs that are not here are priced from data sheets and formulas
//! (`analytic`). The two share the table of parts and the model of failures (`goodput`), nothing else; measured rates win.

pub mod analytic;
pub mod batch;
pub mod batch_size;
pub mod calibrate;
pub mod candidate;
pub mod compare;
pub mod compute;
pub mod emit;
pub mod engine;
pub mod error;
pub mod estimate;
pub mod explain;
pub mod fit;
pub mod foreign;
pub mod front;
pub mod goodput;
pub mod hardware;
pub mod judge;
pub mod learning_rate;
pub mod lower;
pub mod memory;
pub mod network;
pub mod outlook;
pub mod pace;
pub mod parameters;
pub mod picture;
pub mod plan;
pub mod planning;
pub mod precheck;
pub mod pricing;
pub mod probing;
mod random;
pub mod rows;
pub mod saving;
pub mod schedule;
pub mod search;
pub mod simulate;
pub mod space;
pub mod speeds;
pub mod stale;
pub mod tie;
pub mod timing;
pub mod traffic;
pub mod tune;
pub mod weighed;
pub mod when;

#[cfg(test)]
mod sample;

pub use batch::BatchSplit;
pub use calibrate::{Factors, Observation};
pub use candidate::{Candidate, Rejected, Rejection};
pub use compare::Alternative;
pub use error::PlanError;
pub use estimate::{Breakdown, Causes, Estimate};
pub use explain::explain;
pub use learning_rate::Decision;
pub use lower::{Launch, lower};
pub use memory::Memory;
pub use pace::Pace;
pub use picture::{Picture, picture};
pub use plan::{Epochs, Plan, PlanRequest, Ranked, RatesStamp, ReadError, model_digest, rates_digest};
pub use planning::plan;
pub use precheck::precheck;
pub use probing::micro_batches_to_measure;
pub use stale::Staleness;
