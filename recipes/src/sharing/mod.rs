//! Recipes in git repositories: fetched by the user's own `git`, kept by content, pinned in a lock file.
//!
//! A shared recipe is data. It is read from bytes whose hash has been checked, never from a work tree, and
//! nothing in its repository is run: no hooks, no filters, no submodules, no symbolic links. What a recipe of
//! kind "command" would run needs [`trust`]. This is the one part of the crate that touches files.

mod file_change;
mod referenced_files;
mod error;
mod placeholder_values;
mod git;
pub mod lockfile;
mod publish;
mod remove;
mod resolve;
mod store;
mod tree;
pub mod trust;
mod git_url;

pub use file_change::{FileChange, ChangeKind};
pub use referenced_files::Expand;
pub use error::SharingError;
pub use git::command as git_command;
pub use lockfile::LockedPackage;
pub use publish::{PublishRequest, PublishedRecipe, publish};
pub use remove::{Removal, remove};
pub use resolve::{read_recipe, resolve, resolver};
pub use store::{PackageDetails, CheckoutState, Store, PackageUpdate, add, list, repair_checkout, restore, show, update, verify};
pub use trust::{Capability, TrustStore, capabilities};
pub use git_url::check_url;
