//! The ledger's promises: kept once, kept for good, kept while others write, and found again.

mod bundle;
mod compare;
mod faults;
mod find;
mod hosts;
mod keep;
mod mutated;
mod open_points;
mod order;
mod processes;
mod study;
mod support;
