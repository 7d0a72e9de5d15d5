//! Sharing of recipes through git: fetched by the user's own `git`, stored by content hash, pinned in a lock
//! file.
//!
//! A shared recipe is data. It is read from bytes whose hash has been checked, never from a work tree, and
//! nothing in its repository is run: no hooks, filters, submodules or symbolic links. A recipe that runs a
//! command needs [`trust`]. This module is the only one in the crate that touches files.

mod checkout;
mod error;
mod file_change;
mod git;
mod git_url;
pub mod lockfile;
mod packages;
mod placeholder_values;
mod publish;
mod referenced_files;
mod remove;
mod resolve;
mod store;
mod tree;
pub mod trust;
mod used_by;

pub use checkout::repair_checkout;
pub use error::SharingError;
pub use file_change::{ChangeKind, FileChange};
pub use git::command as git_command;
pub use git_url::check_url;
pub use lockfile::LockedPackage;
pub use packages::{CheckoutState, PackageDetails, PackageUpdate, add, list, restore, show, update, verify};
pub use publish::{PublishRequest, PublishedRecipe, publish};
pub use referenced_files::Expand;
pub use remove::{Removal, remove};
pub use resolve::{read_recipe, resolve, resolver};
pub use store::Store;
pub use trust::{Capability, TrustStore, capabilities};
