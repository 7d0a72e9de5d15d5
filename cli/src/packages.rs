//! Locations of shared recipe packages, of their lock file, and of the trust file.

use crate::command_error::CommandError;
use crate::context::{base, check_obeyed};
use crate::exit_code::ExitReason;
use dtrain_recipes::sharing::{SharingError, Store, TrustStore};
use std::path::{Path, PathBuf};

/// Opens the packages that the lock file in `folder` lists, or else the one in the working folder.
pub(crate) fn store(folder: &Path, allow_file: bool) -> Result<Store, CommandError> {
    let beside = folder.join(LOCK);
    let lock = if beside.exists() { beside } else { PathBuf::from(LOCK) };
    let folder = base("XDG_DATA_HOME", ".local/share")?.join("dtrain").join("recipes");
    check_obeyed(&folder)?;
    Ok(Store { folder, lock, allow_file })
}

/// Name of the lock file, beside the recipes that use the packages.
const LOCK: &str = "dtrain.lock";

/// Returns the path of the file that lists the trusted packages.
pub(crate) fn trust_file() -> Result<PathBuf, CommandError> {
    Ok(base("XDG_CONFIG_HOME", ".config")?.join("dtrain").join("trust.toml"))
}

/// Loads the list of trusted packages.
pub(crate) fn trust() -> Result<TrustStore, CommandError> {
    let file = trust_file()?;
    check_obeyed(&file)?;
    TrustStore::read(&file).map_err(|error| failure(&error))
}

/// Converts an error from a shared recipe package into an error of a command.
pub(crate) fn failure(error: &SharingError) -> CommandError {
    let exit = match error {
        SharingError::NoGit(_) => ExitReason::Preflight,
        SharingError::Git { .. } | SharingError::Io { .. } => ExitReason::Infrastructure,
        SharingError::Url { .. }
        | SharingError::Push { .. }
        | SharingError::Name { .. }
        | SharingError::Refused(_)
        | SharingError::Unknown { .. }
        | SharingError::Taken { .. }
        | SharingError::Altered { .. }
        | SharingError::Untrusted { .. }
        | SharingError::File { .. }
        | SharingError::Incomplete(_)
        | SharingError::Recipe(_) => ExitReason::Usage,
    };
    CommandError::of(exit, error)
}
