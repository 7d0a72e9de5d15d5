//! Finds the files of the recipe's folder that are sent to hosts.

use crate::provenance::RepositoryFiles;
use dtrain_recipes::{Bytes, Exclusion, Workdir};
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// Folders that are not sent where git does not say what belongs to the folder: other programs make them again.
const MADE: [&str; 7] = [".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", "target"];

/// Number of files or folders that an error about the limits names.
const NAMED: usize = 5;

/// The reason why the recipe's folder cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum WorkdirError {
    /// The folder contains the user's home folder, and with it keys and all other files.
    #[error("the recipe's folder {} has your home folder in it", .0.display())]
    Home(PathBuf),
    /// The files are larger than the limit.
    #[error("the recipe's folder has {found}, and at most {limit} is sent to the hosts")]
    TooLarge {
        /// Total size of the files.
        found: Bytes,
        /// Maximum total size of the files.
        limit: Bytes,
        /// The largest files, with their sizes.
        largest: Vec<(String, Bytes)>,
    },
    /// There are more files than the limit.
    #[error("the recipe's folder has {}{found} files, and at most {limit} are sent to the hosts", more_than(*is_cut))]
    TooMany {
        /// Number of files.
        found: u64,
        /// True if the files were not counted to the end.
        is_cut: bool,
        /// Maximum number of files.
        limit: u64,
        /// The folders with the most files, with their numbers.
        folders: Vec<(String, u64)>,
    },
    /// A file cannot be sent.
    #[error("{path} cannot be sent to the hosts: {reason}")]
    Unsendable {
        /// Path in the recipe's folder.
        path: String,
        /// The reason why it cannot be sent.
        reason: String,
    },
    /// Git did not list the files of the repository around the folder.
    #[error("git did not say which files of {} it tracks or ignores", .0.display())]
    Git(PathBuf),
    /// A file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

fn more_than(is_cut: bool) -> &'static str {
    if is_cut { "more than " } else { "" }
}

/// A file of the recipe's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkdirFile {
    /// Path in the folder, with `/` between its parts.
    pub path: String,
    /// Size in bytes; 0 for a symbolic link.
    pub bytes: u64,
    /// True if the user may execute the file.
    pub is_executable: bool,
    /// Target of a symbolic link, relative to the link's folder; `None` for a regular file.
    pub link: Option<String>,
}

/// The files of a recipe's folder that are sent to hosts, in the order of their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkdirFiles {
    /// The recipe's folder, without links.
    pub folder: PathBuf,
    /// The files.
    pub files: Vec<WorkdirFile>,
}

impl WorkdirFiles {
    /// Finds the files of `folder` that `rules` allow to send, but for those in `state`, dtrain's state folder.
    ///
    /// In a git repository these are the tracked files, and those that are not ignored. `Err` if one cannot be
    /// sent or they exceed the limits.
    pub fn find(folder: &Path, rules: &Workdir, state: &Path) -> Result<Self, WorkdirError> {
        let folder = fs::canonicalize(folder).map_err(unreadable(folder))?;
        let home = std::env::var_os("HOME").and_then(|home| fs::canonicalize(home).ok());
        if home.is_some_and(|home| home.starts_with(&folder)) {
            return Err(WorkdirError::Home(folder));
        }
        let state = fs::canonicalize(state).ok();
        let mut search = Search {
            folder: &folder,
            exclusion: rules.exclusion(),
            state: state.as_deref(),
            most: rules.files.saturating_mul(4),
            found: BTreeMap::new(),
        };
        let is_cut = !search.add_folder("")?;
        let files: Vec<WorkdirFile> = search.found.into_values().collect();
        check_limits(&files, rules, is_cut)?;
        Ok(Self { folder, files })
    }

    /// Returns `true` if the file at `path`, absolute or relative to the folder, is sent.
    pub fn contains(&self, path: &Path) -> bool {
        let path = path.strip_prefix(&self.folder).unwrap_or(path);
        let Some(path) = plain_path(path) else { return false };
        self.files.binary_search_by(|file| file.path.as_str().cmp(&path)).is_ok()
    }

    /// Returns the total size of the files.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add))
    }
}

/// Returns a relative path without `.` and `..`; `None` if it leads out of its folder or is not UTF-8.
fn plain_path(path: &Path) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(parts.pop()?),
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

struct Search<'a> {
    folder: &'a Path,
    exclusion: Exclusion,
    state: Option<&'a Path>,
    /// Number of files at which the search ends: far more than may be sent.
    most: u64,
    found: BTreeMap<String, WorkdirFile>,
}

impl Search<'_> {
    /// Adds the files below `path`, the folder itself if empty; returns `false` if there are too many to go on.
    fn add_folder(&mut self, path: &str) -> Result<bool, WorkdirError> {
        let folder = self.folder.join(path);
        match RepositoryFiles::of(&folder) {
            RepositoryFiles::Found(names) => {
                for name in names {
                    // A submodule, or another repository: it says itself what belongs to it.
                    if !self.add(path, name.trim_end_matches('/'))? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            RepositoryFiles::NoRepository => self.walk(path),
            RepositoryFiles::Failed => Err(WorkdirError::Git(folder)),
        }
    }

    /// Adds all files below a folder that is not part of a repository.
    fn walk(&mut self, path: &str) -> Result<bool, WorkdirError> {
        let folder = self.folder.join(path);
        let entries = fs::read_dir(&folder).map_err(unreadable(&folder))?;
        for entry in entries {
            let name = entry.map_err(unreadable(&folder))?.file_name();
            let shown = name.to_string_lossy();
            if MADE.contains(&shown.as_ref()) {
                continue;
            }
            let Some(name) = name.to_str() else {
                return Err(unsendable(&joined(path, &shown), "its name is not UTF-8"));
            };
            if !self.add(path, name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the file `name` below the folder `above`, or the files in it.
    fn add(&mut self, above: &str, name: &str) -> Result<bool, WorkdirError> {
        let path = joined(above, name);
        let place = self.folder.join(&path);
        if path.contains(char::REPLACEMENT_CHARACTER) && fs::symlink_metadata(&place).is_err() {
            return Err(unsendable(&path, "its name is not UTF-8"));
        }
        let found = match fs::symlink_metadata(&place) {
            Ok(found) => found,
            // Git still lists a deleted file.
            Err(error) if is_missing(&error) => return Ok(true),
            Err(error) => return Err(unreadable(&place)(error)),
        };
        if self.exclusion.contains(&path, found.is_dir())
            || self.state.is_some_and(|own| place.starts_with(own))
        {
            return Ok(true);
        }
        if found.is_dir() {
            return if place.join(".git").exists() { self.add_folder(&path) } else { self.walk(&path) };
        }
        let file = self.file(&path, &place, &found)?;
        self.found.insert(path, file);
        Ok(self.found.len() as u64 <= self.most)
    }

    fn file(&self, path: &str, place: &Path, found: &Metadata) -> Result<WorkdirFile, WorkdirError> {
        let path = path.to_owned();
        if found.is_symlink() {
            let link = Some(self.link(&path, place)?);
            return Ok(WorkdirFile { path, bytes: 0, is_executable: false, link });
        }
        if !found.is_file() {
            return Err(unsendable(&path, "it is neither a file nor a folder"));
        }
        let is_executable = found.permissions().mode() & 0o100 != 0;
        Ok(WorkdirFile { path, bytes: found.len(), is_executable, link: None })
    }

    /// Returns the target of the symbolic link at `path`; `Err` if it leads out of the folder or nowhere.
    fn link(&self, path: &str, place: &Path) -> Result<String, WorkdirError> {
        let target = fs::read_link(place).map_err(unreadable(place))?;
        let leads_to =
            |to: &str| unsendable(path, &format!("it is a symbolic link {to} ({})", target.display()));
        let real = fs::canonicalize(place).map_err(|_| leads_to("that leads nowhere"))?;
        let above = Path::new(path).parent().unwrap_or(Path::new(""));
        match target.to_str() {
            Some(_) if !real.starts_with(self.folder) || plain_path(&above.join(&target)).is_none() => {
                Err(leads_to("out of the recipe's folder"))
            }
            Some(target) => Ok(target.to_owned()),
            None => Err(unsendable(path, "the target of the link is not UTF-8")),
        }
    }
}

fn joined(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn unsendable(path: &str, reason: &str) -> WorkdirError {
    WorkdirError::Unsendable { path: path.to_owned(), reason: reason.to_owned() }
}

pub(super) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> WorkdirError {
    let path = path.to_owned();
    |source| WorkdirError::Unreadable { path, source }
}

fn check_limits(files: &[WorkdirFile], rules: &Workdir, is_cut: bool) -> Result<(), WorkdirError> {
    let found = files.len() as u64;
    if found > rules.files {
        let mut by_folder = BTreeMap::<&str, u64>::new();
        for file in files {
            *by_folder.entry(file.path.rsplit_once('/').map_or(".", |(folder, _)| folder)).or_default() += 1;
        }
        let mut folders: Vec<_> =
            by_folder.into_iter().map(|(name, files)| (name.to_owned(), files)).collect();
        folders.sort_by_key(|(_, files)| std::cmp::Reverse(*files));
        folders.truncate(NAMED);
        return Err(WorkdirError::TooMany { found, is_cut, limit: rules.files, folders });
    }
    let total = files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
    if total <= rules.limit.0 {
        return Ok(());
    }
    let mut largest: Vec<_> = files.iter().map(|file| (file.path.clone(), Bytes(file.bytes))).collect();
    largest.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    largest.truncate(NAMED);
    Err(WorkdirError::TooLarge { found: Bytes(total), limit: rules.limit, largest })
}
