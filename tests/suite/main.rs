//! One test binary for everything that needs more than one crate.

mod kill;
mod parity;
mod ssh;
mod tidy;
