//! The choice of a candidate: Pareto front, tie-breaks, trade-offs and alternatives.

pub mod alternative;
pub mod pareto_front;
pub mod tie_break;
pub mod tradeoffs;
