//! Removing trials, and finding what nothing in a state folder needs any more.

mod garbage;
mod remove;
mod disk_usage;

pub use garbage::{Kind, Garbage, remove_garbage, garbage_of_trials, unused_programs};
pub(crate) use remove::is_emptied;
pub use remove::{RemoveError, FreedSpace, empty_all, folders, remove, remove_folder};
pub use disk_usage::freed_bytes;
