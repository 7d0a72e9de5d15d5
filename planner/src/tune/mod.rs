//! Proposes what the next trial of a study should try, from what the trials before it found.

pub mod acquisition;
pub mod fit;
pub mod gaussian;
pub mod kernel;
pub mod linear;
pub mod model;
pub mod normal;
pub mod outcome;
pub mod refine;
pub mod sobol;
pub mod space;

pub use outcome::{Ended, Failure, Outcome};
pub use space::{Dimension, Scale, Space, Value};
