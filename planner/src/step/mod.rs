//! One training step: the actions of every stage, the collectives of every rank, their simulation, and the
//! assignments that carry them to the ranks.

pub mod lower;
pub mod timeline;
pub mod traffic;
