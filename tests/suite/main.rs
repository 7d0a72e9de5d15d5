//! One test binary for everything that needs more than one crate.

mod digits;
mod emit;
mod examples;
mod kill;
mod layouts;
mod memory;
mod parity;
mod ssh;
mod tidy;
mod tune;
