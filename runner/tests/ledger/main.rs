//! The ledger's promises: kept once, kept for good, kept while others write, and found again.

mod compare;
mod faults;
mod find;
mod hosts;
mod keep;
mod processes;
mod study;
mod support;
