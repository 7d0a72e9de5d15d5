//! Which candidate is taken: the front of time, memory and money, ties, what the others cost, and the
//! explanation.

pub mod compare;
pub mod explain;
pub mod front;
pub mod tie;
pub mod weighed;
