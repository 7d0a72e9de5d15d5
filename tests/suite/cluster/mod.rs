//! Tests that need several hosts, in a lab of them; `tests/run cluster` runs these alone.

mod children;
mod costs;
mod doctor;
mod hosts_lose_nothing;
mod interrupted;
mod lab;
mod recovery;
pub(crate) mod train;
mod workdir;
