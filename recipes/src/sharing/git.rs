//! Runs the user's `git`, always with the same restrictions.

use super::SharingError;
use crate::sanitize;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Settings that restrict git to moving objects: no hooks, no symbolic links, no submodules, every object
/// checked.
const SWITCHES: [&str; 6] = [
    "core.hooksPath=/dev/null",
    "core.symlinks=false",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "transfer.fsckObjects=true",
    "gc.auto=0",
];

/// Prefixes of the environment variables that git gets: identity, transport, and the locations of its
/// settings and of git itself. Other variables could redirect it to another repository.
const KEPT: [&str; 11] = [
    "GIT_AUTHOR_",
    "GIT_COMMITTER_",
    "GIT_SSH",
    "GIT_ASKPASS",
    "GIT_SSL_",
    "GIT_PROXY_",
    "GIT_HTTP_",
    "GIT_EXEC_PATH",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
];

/// Returns a `git` command with all restrictions. It runs no hook and no file monitor, fetches no missing
/// objects, asks for no password, and reaches remotes only by `protocols`, which are separated by colons.
///
/// Other settings of a repository still apply, such as filters or the SSH command: in another user's folder,
/// run no subcommand that reads its files or reaches a remote.
pub fn command(protocols: &str) -> Command {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("GIT_") && !KEPT.iter().any(|kept| name.starts_with(kept)) {
            command.env_remove(name.as_ref());
        }
    }
    SWITCHES.iter().for_each(|switch| {
        command.args(["-c", switch]);
    });
    command
        // A repository can override `protocol.*.allow`, but not this variable.
        .env("GIT_ALLOW_PROTOCOL", protocols)
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_PAGER", "cat")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A repository, with the options for all git commands that run in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Git<'g> {
    /// Working directory of git.
    pub(super) folder: &'g Path,
    /// `true` to allow fetching from local repositories.
    pub(super) allow_file: bool,
    /// Path of the repository, relative to the working directory; `None` lets git search for it.
    pub(super) git_dir: Option<&'g Path>,
    /// Index file to use instead of the repository's own; `None` uses that.
    pub(super) index: Option<&'g Path>,
    /// Object folder to use instead of the repository's own; `None` uses that.
    pub(super) objects: Option<&'g Path>,
}

impl<'g> Git<'g> {
    pub(super) fn new(folder: &'g Path, allow_file: bool) -> Self {
        Self { folder, allow_file, git_dir: None, index: None, objects: None }
    }

    /// Returns the options for a bare repository in `folder`. Its path is explicit, since
    /// `safe.bareRepository` can forbid git to find it.
    pub(super) fn bare(folder: &'g Path, allow_file: bool) -> Self {
        Self { git_dir: Some(Path::new(".")), ..Self::new(folder, allow_file) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(if self.allow_file { "https:ssh:file" } else { "https:ssh" });
        command.arg("-C").arg(self.folder);
        if let Some(git_dir) = self.git_dir {
            command.arg("--git-dir").arg(git_dir);
        }
        if let Some(index) = self.index {
            command.env("GIT_INDEX_FILE", index);
        }
        if let Some(objects) = self.objects {
            command.env("GIT_OBJECT_DIRECTORY", objects);
        }
        command.args(arguments);
        command
    }

    /// Runs git with these arguments and returns its output. `Err` if it cannot be started or ends with an
    /// error.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<Vec<u8>, SharingError> {
        let output = self.command(arguments).output().map_err(SharingError::NoGit)?;
        finished(arguments, output)
    }

    /// Runs git like [`Git::run`], with `input` on its standard input.
    pub(super) fn feed(&self, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, SharingError> {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().map_err(SharingError::NoGit)?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // Written by another thread, so that git may answer before it has read all input.
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
            child.wait_with_output()
        });
        finished(arguments, output.map_err(SharingError::NoGit)?)
    }

    /// Runs git like [`Git::run`], and returns its output as one line of text.
    pub(super) fn line(&self, arguments: &[&str]) -> Result<String, SharingError> {
        let bytes = self.run(arguments)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// Fetches one revision without history into a bare repository, and returns its commit.
    ///
    /// The fetch is killed if the repository grows beyond `most` bytes.
    pub(super) fn fetch(&self, url: &str, rev: &str, most: u64) -> Result<String, SharingError> {
        let arguments =
            ["fetch", "-q", "--depth", "1", "--no-tags", "--no-recurse-submodules", "--", url, rev];
        // Logged to a file, not a pipe: an unread pipe would fill and block git.
        let log = self.folder.join("fetch.log");
        let said = std::fs::File::create(&log).map_err(SharingError::io(&log))?;
        let mut command = self.command(&arguments);
        let mut child = command.stdout(Stdio::null()).stderr(said).spawn().map_err(SharingError::NoGit)?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(SharingError::NoGit)? {
                break status;
            }
            if size(self.folder) > most {
                // Errors are ignored: it may have ended already, and the wait reaps it in any case.
                drop(child.kill());
                drop(child.wait());
                return Err(SharingError::Refused(format!("it is larger than {most} bytes")));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        let stderr = std::fs::read(&log).map_err(SharingError::io(&log))?;
        finished(&arguments, Output { status, stdout: Vec::new(), stderr })?;
        self.line(&["rev-parse", "--verify", "FETCH_HEAD^{commit}"])
    }
}

fn finished(arguments: &[&str], output: Output) -> Result<Vec<u8>, SharingError> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said: String = String::from_utf8_lossy(&output.stderr).chars().take(2000).collect();
    let detail = sanitize::printable(said.trim()).into_owned();
    Err(SharingError::Git { verb: (*arguments.first().unwrap_or(&"")).to_owned(), detail })
}

/// Returns the total size in bytes of all readable files below a folder.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(facts) if facts.is_dir() => size(&entry.path()),
            Ok(facts) => facts.len(),
            Err(_) => 0,
        })
        .sum()
}
