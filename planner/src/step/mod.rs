//! One training step: the collectives of every rank with their bytes, and the timeline of every stage.

pub mod timeline;
pub mod traffic;
