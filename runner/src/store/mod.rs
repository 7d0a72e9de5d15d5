//! Removing trials.

mod remove;
mod weight;

pub use remove::{RemoveError, Removed, folders, remove, remove_folder};
pub use weight::freed;
