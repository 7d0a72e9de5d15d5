//! Removal of trials, and garbage collection in a state folder.

mod disk_usage;
mod garbage_collection;
mod remove;

pub use disk_usage::freed_bytes;
pub use garbage_collection::{Garbage, Kind, garbage_of_trials, remove_garbage, unused_programs};
pub use remove::{FreedSpace, RemoveError, empty_all, folders, remove, remove_folder};
