//! Proposes what the next trial of a study should try, from what the trials before it found.

pub mod sobol;
pub mod space;

pub use space::{Dimension, Scale, Space, Value};
