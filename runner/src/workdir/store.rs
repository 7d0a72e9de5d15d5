//! The folders that a host received, each under its digest.
//!
//! | path | content |
//! |---|---|
//! | `DIGEST` | the files |
//! | `DIGEST.json` | the manifest; agents that use the folder lock it, and its time is that of the last use |
//! | `DIGEST.pack` | what has arrived of a folder that is being sent |
//! | `DIGEST.partial-*`, `DIGEST.changed-*` | a folder being written, and one that a program changed |

use super::is_digest;
use super::manifest::{Manifest, ManifestEntry};
use super::snapshot::hash;
use crate::files;
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Number of folders that are kept although no trial uses them, the last used ones.
const KEPT: usize = 5;

/// Age after which what an interrupted transfer left is removed.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// Maximum size of a manifest in bytes.
const MOST_MANIFEST: u64 = 1 << 30;

/// The folder `workdirs` in the state folder of a host, and a digest in it.
pub(crate) struct WorkdirStore<'a> {
    root: &'a Path,
    digest: &'a str,
}

impl<'a> WorkdirStore<'a> {
    /// Returns the place of the folder with this digest below `root`; `Err` if it is not a digest.
    pub(crate) fn new(root: &'a Path, digest: &'a str) -> Result<Self, String> {
        if is_digest(digest) {
            Ok(Self { root, digest })
        } else {
            Err(format!("{digest:?} is not the digest of a folder"))
        }
    }

    /// Returns the path of the folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.root.join(self.digest)
    }

    fn manifest(&self) -> PathBuf {
        self.root.join(format!("{}.json", self.digest))
    }

    fn pack(&self) -> PathBuf {
        self.root.join(format!("{}.pack", self.digest))
    }

    /// Returns `true` if the folder is here, unchanged, and notes that it is used now.
    pub(crate) fn is_intact(&self) -> bool {
        let is_intact = || -> Result<(), String> {
            let text = files::read(&self.manifest()).map_err(|error| error.to_string())?;
            let manifest = Manifest::parse(&text, self.digest)?;
            let folder = self.folder();
            manifest.files.iter().try_for_each(|entry| verify(&folder, entry))?;
            let touched = OpenOptions::new().write(true).open(self.manifest());
            touched.and_then(|file| file.set_modified(SystemTime::now())).map_err(|error| error.to_string())
        };
        is_intact().is_ok()
    }

    /// Writes bytes of the folder that is being sent, from byte `from`.
    pub(crate) fn write(&self, from: u64, bytes: &[u8]) -> Result<(), String> {
        let path = self.pack();
        let write = || -> io::Result<()> {
            files::make_folder(self.root)?;
            let options = OpenOptions::new().write(true).create(true).truncate(false).clone();
            files::open_as(&options, &path)?.write_all_at(bytes, from)
        };
        write().map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Unpacks what was sent. The folder is here complete and verified afterwards, or not at all.
    pub(crate) fn install(&self) -> Result<(), String> {
        let installed = if self.is_intact() { Ok(()) } else { self.unpack() };
        drop(fs::remove_file(self.pack()));
        remove_unused(self.root);
        installed
    }

    fn unpack(&self) -> Result<(), String> {
        let path = self.pack();
        let words = |error: io::Error| format!("{}: {error}", path.display());
        let mut pack = BufReader::new(files::open(&path).map_err(words)?);
        let mut length = [0; 8];
        pack.read_exact(&mut length).map_err(words)?;
        let length = u64::from_le_bytes(length);
        if length > MOST_MANIFEST {
            return Err(format!("{}: a manifest of {length} bytes", path.display()));
        }
        let mut text = Vec::new();
        pack.by_ref().take(length).read_to_end(&mut text).map_err(words)?;
        let manifest = Manifest::parse(&text, self.digest)?;
        let partial = self.root.join(format!("{}.partial-{}", self.digest, ulid::Ulid::generate()));
        let written =
            self.write_files(&manifest, &mut pack, &partial).and_then(|()| self.place(&partial, &text));
        if written.is_err() {
            drop(fs::remove_dir_all(&partial));
        }
        written
    }

    fn write_files(&self, manifest: &Manifest, pack: &mut impl Read, partial: &Path) -> Result<(), String> {
        let words = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| format!("{path}: {error}")
        };
        files::make_folder(partial).map_err(words(partial))?;
        let path_of = |entry: &ManifestEntry| -> Result<PathBuf, String> {
            let path = partial.join(&entry.path);
            let above = path.parent().unwrap_or(partial);
            files::make_folder(above).map_err(words(above))?;
            Ok(path)
        };
        for entry in manifest.files.iter().filter(|entry| entry.link.is_none()) {
            let path = path_of(entry)?;
            let mode = if entry.is_executable { 0o700 } else { 0o600 };
            let options = OpenOptions::new().write(true).create_new(true).mode(mode).clone();
            let mut file = options.open(&path).map_err(words(&path))?;
            io::copy(&mut pack.by_ref().take(entry.bytes), &mut file).map_err(words(&path))?;
            verify(partial, entry).map_err(|error| format!("{error}: it changed while it was sent"))?;
        }
        // Links come last, so that no file is written through one.
        for entry in &manifest.files {
            if let Some(target) = &entry.link {
                let path = path_of(entry)?;
                symlink(target, &path).map_err(words(&path))?;
            }
        }
        Ok(())
    }

    /// Moves a complete folder to its place. A program that runs in a changed one keeps it.
    fn place(&self, partial: &Path, manifest: &[u8]) -> Result<(), String> {
        let folder = self.folder();
        let place = || -> io::Result<()> {
            if fs::symlink_metadata(&folder).is_ok() {
                // Another controller may have sent it meanwhile.
                if self.is_intact() {
                    return fs::remove_dir_all(partial);
                }
                let changed = format!("{}.changed-{}", self.digest, ulid::Ulid::generate());
                fs::rename(&folder, self.root.join(changed))?;
            }
            // An agent that uses the changed folder keeps its lock on this file.
            if files::read(&self.manifest()).ok().as_deref() != Some(manifest) {
                files::write(&self.manifest(), manifest)?;
            }
            fs::rename(partial, &folder)
        };
        place().map_err(|error| format!("{}: {error}", folder.display()))
    }
}

/// Keeps the folder of a trial from being removed, until the file is closed. `Err` if it cannot be locked.
pub(crate) fn hold(folder: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(folder.with_extension("json"))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
    Ok(file)
}

/// Compares a file with its entry in the manifest; `Err` names it with what differs.
fn verify(folder: &Path, entry: &ManifestEntry) -> Result<(), String> {
    let path = folder.join(&entry.path);
    let differs = |what: &str| format!("{}: {what}", entry.path);
    let found = fs::symlink_metadata(&path).map_err(|error| differs(&error.to_string()))?;
    if let Some(target) = &entry.link {
        let is_same = fs::read_link(&path).is_ok_and(|link| link.as_os_str() == target.as_str());
        return if is_same { Ok(()) } else { Err(differs("another link")) };
    }
    if !found.is_file() || found.len() != entry.bytes {
        return Err(differs("another size"));
    }
    if (found.mode() & 0o100 != 0) != entry.is_executable {
        return Err(differs("another mode"));
    }
    match hash(&path) {
        Ok(hash) if Some(&hash) == entry.hash.as_ref() => Ok(()),
        Ok(_) => Err(differs("another content")),
        Err(error) => Err(differs(&error.to_string())),
    }
}

/// Removes the folders that no agent uses, but for the last used ones, and what interrupted transfers left.
/// What cannot be removed stays.
fn remove_unused(root: &Path) {
    let names: Vec<String> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let used_at = |name: &str| fs::metadata(root.join(name)).and_then(|found| found.modified()).ok();
    let mut digests: Vec<_> = names
        .iter()
        .filter_map(|name| Some((used_at(name)?, name.strip_suffix(".json").filter(|name| is_digest(name))?)))
        .collect();
    digests.sort_by(|one, other| other.cmp(one));
    for (_, digest) in digests.iter().skip(KEPT) {
        if let Some(_lock) = lock_unused(root, digest) {
            drop(fs::remove_dir_all(root.join(digest)));
            drop(fs::remove_file(root.join(format!("{digest}.json"))));
        }
    }
    for name in &names {
        let Some((digest, rest)) = name.split_once('.') else { continue };
        let path = root.join(name);
        let is_old = || used_at(name).is_some_and(|at| at.elapsed().is_ok_and(|age| age > LEFTOVER_AGE));
        if rest.starts_with("changed-") {
            let is_unknown = !root.join(format!("{digest}.json")).exists();
            if is_unknown || lock_unused(root, digest).is_some() {
                drop(fs::remove_dir_all(path));
            }
        } else if rest.starts_with("partial-") && is_old() {
            drop(fs::remove_dir_all(path));
        } else if rest == "pack" && is_old() {
            drop(fs::remove_file(path));
        }
    }
}

/// Locks a folder that no agent uses; `None` if one does, or if that is unknown.
fn lock_unused(root: &Path, digest: &str) -> Option<File> {
    let path = root.join(format!("{digest}.json"));
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}
