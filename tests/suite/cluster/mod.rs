//! Tests that need several hosts, in a lab of them; `tests/run cluster` runs these alone.

mod chaos;
mod children;
mod costs;
mod detached;
mod doctor;
mod hosts_lose_nothing;
mod interrupted;
mod lab;
mod notices;
mod recovery;
pub(crate) mod train;
mod workdir;
