//! The choice of a candidate: Pareto front, tie-breaks, alternatives and the explanation.

pub mod alternatives;
pub mod explain;
pub mod pareto_front;
pub mod tie_break;
pub mod tradeoffs;
