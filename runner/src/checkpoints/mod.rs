//! Checkpoints on disk: commit, inventory, verification, retention and copies.

mod adopt;
pub mod commit;
mod engine;
mod inventory;
mod pull;
pub mod retention;
mod store;
mod verify_checksum;
mod verify_copies;

#[cfg(test)]
mod tests;

pub use adopt::{ADOPTED, Adoption, adopt, begin_with};
pub use engine::{EngineInventory, link_engine_checkpoint};
pub use inventory::{CheckpointInfo, Inventory, State, StoredFiles};
pub use pull::{pull, remove_unfinished};
pub use store::{CheckpointStore, CheckpointWriter, FolderListing, LocalStore, engine_step};
pub use verify_checksum::{verify, verify_checksums};
pub use verify_copies::{DamagedItem, VerificationReport, verify_all_copies};

pub(crate) use inventory::read_manifest;

use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{Manifest, ResumePoint};
use std::fs;
use std::io;
use std::path::Path;

/// Name of the file with a checkpoint's manifest, its table of contents.
pub const MANIFEST: &str = "manifest.json";

/// Name of the file that marks a checkpoint as committed and contains the blake3 of the manifest, in hex.
pub const COMMIT: &str = "COMMIT";

/// Suffix of the name of a checkpoint's folder until the checkpoint is committed.
const PARTIAL: &str = ".partial";

/// Returns `true` if `name` is that of the folder of an uncommitted checkpoint.
pub(crate) fn is_partial(name: &str) -> bool {
    name.ends_with(PARTIAL) && parse_folder_name(name).is_some()
}

/// Lists the committed checkpoints in a trial's checkpoint folder, oldest first: by attempt, then by step.
pub fn committed(checkpoints: &Path) -> io::Result<Vec<ResumePoint>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(checkpoints)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.ends_with(PARTIAL)) else { continue };
        if let Some((step, attempt)) = parse_folder_name(name) {
            found.push((attempt, step, ResumePoint { folder: entry.path(), step }));
        }
    }
    found.sort_by_key(|(attempt, step, _)| (*attempt, *step));
    Ok(found.into_iter().map(|(_, _, point)| point).collect())
}

/// Reads and verifies the manifest of a local checkpoint; returns its text too.
pub(crate) fn read_local_manifest(folder: &Path) -> Result<(String, Manifest), String> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let (text, commit) = (read(MANIFEST)?, read(COMMIT)?);
    let manifest = Manifest::parse_committed(&text, &commit)?;
    let text = String::from_utf8(text).map_err(|error| format!("{MANIFEST}: {error}"))?;
    Ok((text, manifest))
}
