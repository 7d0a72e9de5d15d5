//! What could be done: the space of layouts, a candidate in it, how it cuts the batch and the parameters.

pub mod batch_split;
pub mod candidate;
pub mod parameters;
pub mod space;
