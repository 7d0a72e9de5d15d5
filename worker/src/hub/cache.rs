//! Downloaded models: `hub/ORG--NAME/COMMIT/` in the folder of caches, with a record of the verified files of each
//! commit and of what branches were.

use super::error::HubError;
use super::listing::HubFile;
use crate::data::{FileDigest, beside};
use crate::files;
use dtrain_recipes::HubModel;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The downloaded commits of one model.
pub(super) struct HubCache {
    root: PathBuf,
}

/// The verified files of a commit.
#[derive(Debug, Default, Serialize, Deserialize)]
struct CommitRecord {
    /// True if all files of the model that are taken are here.
    is_complete: bool,
    files: BTreeMap<String, VerifiedFile>,
}

/// A file as it was when its digest was verified.
#[derive(Debug, Serialize, Deserialize)]
struct VerifiedFile {
    bytes: u64,
    /// Time of the last change in seconds since the Unix epoch, and the nanoseconds beyond.
    modified: (i64, i64),
    /// Name of the digest, as [`FileDigest::name`].
    kind: String,
    digest: String,
}

impl VerifiedFile {
    /// Returns `true` if the file at `path` was not changed since, or has the same digest.
    fn is_unchanged(&self, path: &Path, advance: &dyn Fn()) -> io::Result<bool> {
        let about = match fs::metadata(path) {
            Ok(about) => about,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if about.len() != self.bytes {
            return Ok(false);
        }
        if (about.mtime(), about.mtime_nsec()) == self.modified {
            return Ok(true);
        }
        let kinds = [FileDigest::Sha256(self.digest.clone()), FileDigest::GitBlob(self.digest.clone())];
        let Some(digest) = kinds.into_iter().find(|digest| digest.name() == self.kind) else {
            return Ok(false);
        };
        Ok(digest.of(&mut File::open(path)?, advance)? == self.digest)
    }
}

impl HubCache {
    /// Returns the cache of a model; `Err` without a folder for caches.
    pub(super) fn of(model: &HubModel) -> Result<Self, HubError> {
        let caches = files::cache_folder().ok_or_else(|| {
            HubError::new(
                format!("there is no folder to keep {model} in"),
                "set HOME or XDG_CACHE_HOME to an absolute path",
            )
        })?;
        Ok(Self::below(&caches, model))
    }

    /// Returns the cache of a model in the folder of caches `caches`.
    pub(super) fn below(caches: &Path, model: &HubModel) -> Self {
        Self { root: caches.join("hub").join(format!("{}--{}", model.org(), model.name())) }
    }

    /// Returns the folder of all commits.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of a commit.
    pub(super) fn folder(&self, commit: &str) -> PathBuf {
        self.root.join(commit)
    }

    /// Returns the path of the file that is locked while a commit is downloaded.
    pub(super) fn lock(&self, commit: &str) -> PathBuf {
        self.root.join(format!("{commit}.lock"))
    }

    /// Creates the folder of all commits.
    pub(super) fn make(&self) -> io::Result<()> {
        files::make_folder(&self.root)
    }

    /// Creates the folder of a commit.
    pub(super) fn make_folder(&self, commit: &str) -> io::Result<()> {
        files::make_folder(&self.folder(commit))
    }

    /// Returns `true` if all files of a commit are here, as they were verified.
    pub(super) fn is_complete(&self, commit: &str) -> bool {
        let record = self.record_of(commit);
        let folder = self.folder(commit);
        let is_right = |(name, file): (&String, &VerifiedFile)| {
            file.is_unchanged(&folder.join(name), &|| ()).unwrap_or(false)
        };
        record.is_complete && record.files.iter().all(is_right)
    }

    /// Returns `true` if a file of a commit is here with its digest. Another content at its path is removed.
    pub(super) fn is_there(&self, commit: &str, file: &HubFile, advance: &dyn Fn()) -> io::Result<bool> {
        let path = self.folder(commit).join(&file.name);
        if let Some(known) = self.record_of(commit).files.get(&file.name)
            && known.digest == file.digest.digits()
            && known.is_unchanged(&path, advance)?
        {
            return Ok(true);
        }
        let mut opened = match File::open(&path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if file.digest.of(&mut opened, advance)? == file.digest.digits() {
            return self.record(commit, file).map(|()| true);
        }
        fs::remove_file(&path).map(|()| false)
    }

    /// Records a file whose digest was verified.
    pub(super) fn record(&self, commit: &str, file: &HubFile) -> io::Result<()> {
        let about = fs::metadata(self.folder(commit).join(&file.name))?;
        let verified = VerifiedFile {
            bytes: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
            kind: file.digest.name().to_owned(),
            digest: file.digest.digits().to_owned(),
        };
        let mut record = self.record_of(commit);
        record.files.insert(file.name.clone(), verified);
        write_json(&self.record_path(commit), &record)
    }

    /// Records that all files of a commit are here.
    pub(super) fn record_complete(&self, commit: &str) -> io::Result<()> {
        let record = CommitRecord { is_complete: true, ..self.record_of(commit) };
        write_json(&self.record_path(commit), &record)
    }

    /// Records the commit of a branch or tag.
    pub(super) fn record_ref(&self, revision: &str, commit: &str) -> io::Result<()> {
        let path = self.refs_path();
        let mut refs: BTreeMap<String, String> = read_json(&path);
        if refs.get(revision).is_some_and(|known| known == commit) {
            return Ok(());
        }
        refs.insert(revision.to_owned(), commit.to_owned());
        write_json(&path, &refs)
    }

    /// Returns the commit that a branch or tag had at the last request; `None` if it was never resolved.
    pub(super) fn commit_of_ref(&self, revision: &str) -> Option<String> {
        read_json::<BTreeMap<String, String>>(&self.refs_path()).remove(revision)
    }

    /// Returns the commits whose files are all here, the newest download last.
    pub(super) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let commit = name.strip_suffix(".json").filter(|commit| self.is_complete(commit))?.to_owned();
                Some((entry.metadata().ok()?.modified().ok()?, commit))
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, commit)| commit).collect()
    }

    fn record_of(&self, commit: &str) -> CommitRecord {
        read_json(&self.record_path(commit))
    }

    fn record_path(&self, commit: &str) -> PathBuf {
        self.root.join(format!("{commit}.json"))
    }

    fn refs_path(&self) -> PathBuf {
        self.root.join("refs.json")
    }
}

/// Reads a record; an absent or damaged one is empty, and what it had is looked up again.
fn read_json<T: DeserializeOwned + Default>(path: &Path) -> T {
    fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    // Processes that hold the locks of other commits may write a record of branches at the same time.
    let part = beside(path, &format!(".{}.part", std::process::id()));
    let mut file = files::create(&part)?;
    serde_json::to_writer(&mut file, value)?;
    file.flush()?;
    file.sync_all()?;
    fs::rename(&part, path)
}
