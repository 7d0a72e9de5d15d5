//! Recipes in git repositories: fetched by the user's own `git`, kept by content, pinned in a lock file.
//!
//! A shared recipe is data. It is read from bytes whose hash has been checked, never from a work tree, and
//! nothing in its repository is run: no hooks, no filters, no submodules, no symbolic links. What a recipe of
//! kind "command" would run needs [`trust`]. This is the one part of the crate that touches files.

mod change;
mod contents;
mod error;
mod filled;
mod git;
pub mod lock;
mod publish;
mod remove;
mod resolve;
mod store;
mod tree;
pub mod trust;
mod url;

pub use change::{Change, ChangeKind};
pub use contents::Expand;
pub use error::SharingError;
pub use git::command as git_command;
pub use lock::Locked;
pub use publish::{Publication, Published, publish};
pub use remove::{Removal, remove};
pub use resolve::{read_recipe, resolve, resolver};
pub use store::{Shown, State, Store, Update, add, list, repair_checkout, restore, show, update, verify};
pub use trust::{Capability, Trust, capabilities};
pub use url::check_url;
