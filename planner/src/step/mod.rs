//! What a step does: the actions of every stage, the collectives of every rank, both walked in time, and the
//! assignments that carry them to the ranks.

pub mod lower;
pub mod schedule;
pub mod simulate;
pub mod timeline;
pub mod traffic;
