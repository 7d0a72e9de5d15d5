//! The manifest of a folder: its files with their hashes. The hash of the manifest is the folder's digest.

use super::WorkdirFile;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path};

/// The files of a folder, in the order of their paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) files: Vec<ManifestEntry>,
}

/// A file or symbolic link of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManifestEntry {
    /// Path in the folder, with `/` between its parts.
    pub(super) path: String,
    /// Size in bytes; 0 for a symbolic link.
    pub(super) bytes: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_executable: bool,
    /// BLAKE3 hash of a regular file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hash: Option<String>,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<String>,
}

impl ManifestEntry {
    /// Returns the entry of a file with the BLAKE3 hash `hash`, which a symbolic link does not have.
    pub(super) fn of(file: &WorkdirFile, hash: Option<String>) -> Self {
        let WorkdirFile { path, bytes, is_executable, link } = file.clone();
        Self { path, bytes, is_executable, hash, link }
    }
}

impl Manifest {
    /// Reads a manifest. `Err` if its hash is not `digest`, or if a path or link leads out of the folder.
    pub(super) fn parse(text: &[u8], digest: &str) -> Result<Self, String> {
        let found = blake3::hash(text).to_hex();
        if found.as_str() != digest {
            return Err(format!("the manifest has the digest {found}, expected {digest}"));
        }
        let manifest: Self =
            serde_json::from_slice(text).map_err(|error| format!("its manifest: {error}"))?;
        match manifest.files.iter().find(|entry| !entry.stays_inside()) {
            Some(entry) => Err(format!("{:?} leads out of the folder", entry.path)),
            None => Ok(manifest),
        }
    }

    /// Returns the manifest as the text whose hash is the digest of the folder.
    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("it has texts and numbers only")
    }
}

impl ManifestEntry {
    fn stays_inside(&self) -> bool {
        let path = Path::new(&self.path);
        let is_plain = !self.path.is_empty()
            && path.components().all(|part| matches!(part, Component::Normal(_)))
            && !self.path.split('/').any(str::is_empty);
        let Some(link) = &self.link else { return is_plain };
        // Depth below the folder at every part of the target.
        let mut depth = path.components().count().saturating_sub(1);
        is_plain
            && Path::new(link).components().all(|part| match part {
                Component::CurDir => true,
                Component::Normal(_) => {
                    depth += 1;
                    true
                }
                Component::ParentDir => depth.checked_sub(1).inspect(|above| depth = *above).is_some(),
                Component::RootDir | Component::Prefix(_) => false,
            })
    }
}
