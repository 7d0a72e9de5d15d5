//! Proposes what the next trial of a study should try, from what the trials before it found.
//!
//! A [`Study`] says which values are searched and how; [`Study::propose`] is a function of the trials that ended, so the same
//! trials give the same proposal to the last bit, and a study that was killed goes on as if it had not been. [`Search`]
//! is the study as a solver of argmin. Nothing here trains, and nothing here remembers: trials are run by
//! whoever implements [`Trials`], and kept in the ledger.
//!
//! A sampler is a variant of [`Sampler`] and a file beside [`sobol`]; what they share is a [`Space`] of dimensions mapped
//! to the unit cube.

pub mod acquisition;
pub mod fit;
pub mod gaussian;
pub mod importance;
pub mod kernel;
pub mod linear;
pub mod model;
pub mod normal;
pub mod outcome;
pub mod refine;
pub mod sampler;
pub mod search;
pub mod searched;
pub mod settled;
pub mod sobol;
pub mod space;
pub mod study;

pub use importance::importance;
pub use outcome::{Ended, Failure, Outcome};
pub use sampler::Sampler;
pub use search::{Finish, Search, Trials};
pub use searched::Searched;
pub use settled::{settled, shortened};
pub use space::{Dimension, Scale, Space, Value};
pub use study::{Proposal, Recommended, Source, Study};

#[cfg(test)]
mod tests;
