//! Recipes through git: from local repositories, honest ones and malicious ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case has failed")]

mod hostile;
mod packages;
mod place;
mod publishing;
mod trust;
