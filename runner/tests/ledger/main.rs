//! Promises of the ledger: it stores data once and durably, while others write, and finds it again.

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
