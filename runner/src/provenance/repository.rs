//! Reads a git repository without obeying its settings.
//!
//! The settings of a repository name programs: filters, file system monitors, diff drivers, hooks, and
//! helpers that fetch missing objects. They come from the author of the folder, who may be hostile. So git
//! works in a temporary folder, which has settings of its own and borrows the index and the objects of the
//! repository, but not its settings, hooks and `info/attributes`. Names of programs in `.gitattributes` then
//! have no effect. Settings of the user and of the system are left out too: an attribute of the folder could
//! select one of their filters.

use dtrain_recipes::sharing::git_command;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Largest file that says where a repository is, in bytes.
const LONGEST: u64 = 8192;

/// Time limit for all git commands on a repository: opening a pipe in place of one of its files would block.
const LONGEST_WORK: Duration = Duration::from_secs(10);

/// Files of a repository that git opens for most commands.
const OPENED: [&str; 6] =
    ["HEAD", "index", "config", "packed-refs", "info/exclude", "objects/info/alternates"];

/// Settings that affect how files are read; none of them names a program.
const READING: &str =
    r"^(core\.(filemode|ignorecase|precomposeunicode|autocrlf|eol|excludesfile)|extensions\.objectformat)$";

/// Git repository, found from a folder in it.
pub(super) struct Repository {
    /// Folder that git commands ask about.
    folder: PathBuf,
    /// Root of the work tree.
    top: PathBuf,
    /// The `.git` folder, or the folder that a `.git` file names.
    own: PathBuf,
    /// Folder of objects and branches: equal to `own` except in linked work trees.
    common: PathBuf,
    /// Deadline for all git commands on the repository.
    until: Instant,
}

/// The files of a folder that git tracks, and those that it does not ignore.
pub(crate) enum RepositoryFiles {
    /// Their names relative to the folder. A submodule is named as one file, and another repository with a `/`
    /// at the end; deleted files are named too.
    Found(BTreeSet<String>),
    /// The folder is in no repository, or there is no git.
    NoRepository,
    /// Git failed, or did not end in time.
    Failed,
}

/// Maximum size of a list of files, in bytes.
const LONGEST_LIST: usize = 256 << 20;

impl RepositoryFiles {
    /// Lists the files of a folder. No program that the repository names is run.
    pub(crate) fn of(folder: &Path) -> Self {
        let Some(repository) = Repository::discover(folder) else { return Self::NoRepository };
        if git_command("").arg("--version").output().is_err() {
            return Self::NoRepository;
        }
        let question = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        // The list does not depend on a commit, which there may not be yet.
        match repository.query_files("ref: refs/heads/main", &question, LONGEST_LIST) {
            Some((names, false)) => {
                Self::Found(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
            }
            Some((_, true)) | None => Self::Failed,
        }
    }
}

/// Temporary folder that git uses as the repository; removed on drop.
struct TemporaryGitDir(PathBuf);

impl Drop for TemporaryGitDir {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

impl Repository {
    /// Finds the repository around `folder`; `None` outside of one. Settings, which could name another work
    /// tree, are ignored.
    pub(super) fn discover(folder: &Path) -> Option<Self> {
        let folder = fs::canonicalize(folder).ok()?;
        let top = folder.ancestors().find(|folder| fs::symlink_metadata(folder.join(".git")).is_ok())?;
        let dot = top.join(".git");
        let own = match fs::metadata(&dot).ok()? {
            found if found.is_dir() => dot,
            found if found.is_file() => {
                resolve_git_path(top, read_short_file(&dot)?.strip_prefix("gitdir:")?)
            }
            _ => return None,
        };
        let shared = own.join("commondir");
        let common =
            read_short_file(&shared).map_or_else(|| own.clone(), |path| resolve_git_path(&own, &path));
        let folders = [&own, &common];
        let mut opened = folders.iter().flat_map(|folder| OPENED.map(|name| folder.join(name)));
        if is_special(&shared)
            || is_special(&top.join(".gitattributes"))
            || opened.any(|path| is_special(&path))
        {
            return None;
        }
        let until = Instant::now() + LONGEST_WORK;
        Some(Self { top: top.to_owned(), folder, own, common, until })
    }

    /// Returns git's output for the command `question` about `HEAD`; no file of the work tree is read.
    pub(super) fn head(&self, question: &[&str]) -> Option<String> {
        let (text, _) = capture_output(self.plain_command().args(question), 1024, self.until)?;
        Some(text.trim().to_owned())
    }

    /// Returns git's output for a command about files, and whether it was cut at `limit` bytes; `None` if git
    /// fails or is not installed.
    pub(super) fn query_files(
        &self,
        revision: &str,
        question: &[&str],
        limit: usize,
    ) -> Option<(String, bool)> {
        let stand = self.temporary_git_dir(revision).ok()?;
        let mut command = git_command("");
        command
            .args([
                "-c",
                "core.quotePath=false",
                "-c",
                "core.symlinks=true",
                "-c",
                "diff.autoRefreshIndex=false",
                "-C",
            ])
            .arg(&self.folder)
            .args(question)
            .env("GIT_DIR", &stand.0)
            .env("GIT_WORK_TREE", &self.top)
            .env("GIT_INDEX_FILE", self.own.join("index"))
            .env("GIT_OBJECT_DIRECTORY", self.common.join("objects"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1");
        capture_output(&mut command, limit, self.until)
    }

    /// Returns a git command in the repository itself, for questions about names and settings, for which it
    /// runs no program.
    fn plain_command(&self) -> Command {
        let mut command = git_command("");
        command.arg("--git-dir").arg(&self.own);
        command
    }

    /// Makes a temporary git folder whose `HEAD` is `revision`, with everything needed to read the files.
    fn temporary_git_dir(&self, revision: &str) -> io::Result<TemporaryGitDir> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("dtrain-git-{}-{number}-{}", std::process::id(), ulid::Ulid::generate());
        let path = std::env::temp_dir().join(name);
        // Fails if a file of this name exists.
        DirBuilder::new().mode(0o700).create(&path)?;
        let stand = TemporaryGitDir(path);
        for folder in ["refs", "objects", "info"] {
            fs::create_dir(stand.0.join(folder))?;
        }
        fs::write(stand.0.join("HEAD"), format!("{revision}\n"))?;
        fs::write(stand.0.join("config"), self.read_settings())?;
        if let Some(names) = read_short_file(&self.common.join("info/exclude")) {
            fs::write(stand.0.join("info/exclude"), names)?;
        }
        // An index may be in two files.
        for entry in fs::read_dir(&self.own)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("sharedindex.") {
                symlink(entry.path(), stand.0.join(entry.file_name()))?;
            }
        }
        Ok(stand)
    }

    /// Returns a git configuration with the repository's settings that affect how files are read.
    fn read_settings(&self) -> String {
        let question = ["config", "--null", "--get-regexp", READING];
        let (found, _) =
            capture_output(self.plain_command().args(question), 1 << 16, self.until).unwrap_or_default();
        let mut config = "[core]\nrepositoryformatversion = 1\nbare = false\n".to_owned();
        for (name, value) in found.split('\0').filter_map(|entry| entry.split_once('\n')) {
            let Some((section, key)) = name.split_once('.') else { continue };
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            config += &format!("[{section}]\n{key} = \"{value}\"\n");
        }
        config
    }
}

/// Resolves the path that one of git's files contains, relative to the folder `from`.
fn resolve_git_path(from: &Path, path: &str) -> PathBuf {
    from.join(path.trim())
}

/// Reads a short file; `None` if there is no such regular file.
fn read_short_file(path: &Path) -> Option<String> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    fs::File::open(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns `true` if the path exists but is not a regular file, for example a pipe.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file())
}

/// Returns the output of a command, and whether it was cut at `limit` bytes; `None` if the command fails, is
/// not installed, or still runs at `until`.
fn capture_output(command: &mut Command, limit: usize, until: Instant) -> Option<(String, bool)> {
    let mut child = command.stderr(Stdio::null()).spawn().ok()?;
    let mut output = child.stdout.take()?.take(limit as u64 + 1);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.read_to_end(&mut bytes).map(|_| bytes);
        // The receiver is gone after the deadline.
        drop(sender.send(read));
    });
    let read =
        receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok().and_then(Result::ok);
    let is_cut = read.as_ref().is_some_and(|bytes| bytes.len() > limit);
    if is_cut || read.is_none() {
        drop(child.kill());
    }
    let ended = child.wait().ok()?;
    let mut bytes = read.filter(|_| is_cut || ended.success())?;
    bytes.truncate(limit);
    Some((String::from_utf8_lossy(&bytes).into_owned(), is_cut))
}

#[cfg(test)]
mod tests;
