//! Removing trials, and finding what nothing in a state folder needs any more.

mod leftovers;
mod remove;
mod weight;

pub use leftovers::{Kind, Leftover, clear, of_trials, programs};
pub(crate) use remove::is_emptied;
pub use remove::{RemoveError, Removed, empty_all, folders, remove, remove_folder};
pub use weight::freed;
