//! Proposes what the next trial of a study should try, from what happened in it before.
//!
//! A [`Study`] says which values are searched and how. [`Study::next`] and [`Study::judge`] are functions of the log of what
//! happened, so the same log gives the same proposal to the last bit, and a study that was killed goes on as if it had not
//! been. [`Search`] is the study as a solver of argmin. Nothing here trains, and nothing here remembers: trials are run by
//! whoever implements [`Trials`], and events are kept in the ledger.
//!
//! A sampler is a variant of [`Sampler`] and a file in `samplers`, a pruner one of [`Pruner`] and a file in `pruners`; what
//! they share is a [`Space`] of dimensions mapped to the unit cube, and a [`Standing`], the folded log.

pub mod acquisition;
pub mod chance;
pub mod event;
pub mod fit;
pub mod gaussian;
pub mod importance;
pub mod kernel;
pub mod lessons;
pub mod linear;
pub mod model;
pub mod normal;
pub mod optima;
pub mod outcome;
pub mod paired;
mod params;
pub mod pruner;
mod pruners;
pub mod range;
pub mod refine;
pub mod sampler;
mod samplers;
pub mod scale;
pub mod search;
pub mod searched;
pub mod settled;
pub mod sobol;
pub mod space;
pub mod standing;
pub mod study;
pub mod value;

pub use event::{Judgement, Next, Proposal, Source, StudyEvent};
pub use importance::importance;
pub use optima::{Optimum, optima};
pub use outcome::{Ended, Failure, Outcome};
pub use paired::{Comparison, Verdict};
pub use pruner::{Asha, Hyperband, Median, Pruner, Threshold};
pub use sampler::Sampler;
pub use scale::{Dimension, Scale};
pub use search::{Finish, Search, Trials};
pub use searched::Searched;
pub use settled::{settled, shortened, shortened_to};
pub use space::Space;
pub use standing::{Standing, Status};
pub use study::{Recommended, Study};
pub use value::Value;

#[cfg(test)]
mod tests;
