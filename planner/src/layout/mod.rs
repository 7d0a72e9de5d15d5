//! The space of layouts, a candidate in it or its rejection, and its split of the batch and of the parameters.

pub mod batch_split;
pub mod candidate;
pub mod parameters;
pub mod rejection;
pub mod space;
