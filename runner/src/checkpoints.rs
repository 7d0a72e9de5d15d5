//! Committed checkpoints on disk: which there are, and whether they are what was committed.

use dtrain_protocol::checkpoint::{FORMAT, parse_folder_name};
use dtrain_protocol::{Manifest, ResumePoint};
use std::fs;
use std::io;
use std::path::Path;

/// Name of the table of contents.
pub const MANIFEST: &str = "manifest.json";

/// Name of the file that makes a checkpoint count: the blake3 of the manifest, in hex.
pub const COMMIT: &str = "COMMIT";

/// The committed checkpoints in a trial's folder of checkpoints, oldest first: by attempt, then by step.
pub fn committed(checkpoints: &Path) -> io::Result<Vec<ResumePoint>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(checkpoints)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.ends_with(".partial")) else { continue };
        if let Some((step, attempt)) = parse_folder_name(name) {
            found.push((attempt, step, ResumePoint { folder: entry.path(), step }));
        }
    }
    found.sort_by_key(|(attempt, step, _)| (*attempt, *step));
    Ok(found.into_iter().map(|(_, _, point)| point).collect())
}

/// Reads the table of contents of a committed checkpoint, and checks that it is what was committed and that every
/// file is there in its length. What lies in the files is checked by those who read them.
///
/// `Err` names the file and what is wrong with it.
pub fn verify(folder: &Path) -> Result<Manifest, String> {
    let (_, manifest) = contents(folder)?;
    for file in &manifest.files {
        let path = folder.join(&file.name);
        let found = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        if found != file.bytes {
            return Err(format!("{} has {found} bytes, {} were committed", path.display(), file.bytes));
        }
    }
    Ok(manifest)
}

/// The table of contents of a checkpoint, as text too, if it is what was committed.
pub(crate) fn contents(folder: &Path) -> Result<(String, Manifest), String> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let (text, commit) = (read(MANIFEST)?, read(COMMIT)?);
    let hash = blake3::hash(&text).to_hex();
    if commit.trim_ascii() != hash.as_bytes() {
        let path = folder.join(MANIFEST);
        return Err(format!("{} is not what {COMMIT} says: its blake3 is {hash}", path.display()));
    }
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| format!("{MANIFEST}: {error}"))?;
    if manifest.format > FORMAT {
        return Err(format!("format {} is newer than {FORMAT}, which this program reads", manifest.format));
    }
    Ok((String::from_utf8_lossy(&text).into_owned(), manifest))
}
