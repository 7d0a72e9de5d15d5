//! One test binary for everything that needs more than one crate.

mod ssh;
mod tidy;
