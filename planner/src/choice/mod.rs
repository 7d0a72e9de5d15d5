//! Which candidate is taken: the front of time, memory and money, ties, what the others cost, and the
//! explanation.

pub mod alternatives;
pub mod explain;
pub mod pareto_front;
pub mod tie_break;
pub mod tradeoffs;
