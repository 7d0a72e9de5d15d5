//! The space of layouts: candidates and rejections, and how a layout splits the batch and the parameters.

pub mod batch_split;
pub mod candidate;
pub mod parameters;
pub mod rejection;
pub mod space;
