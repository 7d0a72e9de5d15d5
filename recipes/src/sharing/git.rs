//! Running the user's `git`, always with the same switches.

use super::SharingError;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Switches that take away from git everything but moving objects: only https and ssh, no hooks, no symbolic
/// links, no submodules, every object checked.
const SWITCHES: [&str; 9] = [
    "protocol.allow=never",
    "protocol.https.allow=always",
    "protocol.ssh.allow=always",
    "core.hooksPath=/dev/null",
    "core.symlinks=false",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "transfer.fsckObjects=true",
    "gc.auto=0",
];

/// Variables by which a surrounding git would redirect ours.
const FORGOTTEN: [&str; 9] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_COMMON_DIR",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
];

/// One way of running git.
#[derive(Clone, Copy, Debug)]
pub(super) struct Git<'g> {
    /// Repository it works in.
    pub(super) folder: &'g Path,
    /// Whether local repositories may be fetched from.
    pub(super) allow_file: bool,
    /// Index file in place of the repository's own.
    pub(super) index: Option<&'g Path>,
}

impl<'g> Git<'g> {
    pub(super) fn new(folder: &'g Path, allow_file: bool) -> Self {
        Self { folder, allow_file, index: None }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.arg("-C").arg(self.folder);
        let file = if self.allow_file { "protocol.file.allow=always" } else { "protocol.file.allow=never" };
        SWITCHES.iter().chain([&file]).for_each(|switch| {
            command.args(["-c", switch]);
        });
        FORGOTTEN.iter().for_each(|variable| {
            command.env_remove(variable);
        });
        command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_NO_LAZY_FETCH", "1").env("LC_ALL", "C");
        if let Some(index) = self.index {
            command.env("GIT_INDEX_FILE", index);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs git and returns what it wrote. `Err` when it cannot be started or ends with an error.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<Vec<u8>, SharingError> {
        let output = self.command(arguments).output().map_err(SharingError::NoGit)?;
        finished(arguments, output)
    }

    /// As [`Git::run`], with bytes on its standard input.
    pub(super) fn feed(&self, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, SharingError> {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().map_err(SharingError::NoGit)?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // A thread of its own, so that git may answer while it is still being asked.
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
            child.wait_with_output()
        });
        finished(arguments, output.map_err(SharingError::NoGit)?)
    }

    /// As [`Git::run`], for one line of text.
    pub(super) fn line(&self, arguments: &[&str]) -> Result<String, SharingError> {
        let bytes = self.run(arguments)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// Fetches one revision without history into a bare repository, and returns its commit.
    ///
    /// The fetch is ended when the repository grows beyond `most` bytes.
    pub(super) fn fetch(&self, url: &str, rev: &str, most: u64) -> Result<String, SharingError> {
        let arguments =
            ["fetch", "-q", "--depth", "1", "--no-tags", "--no-recurse-submodules", "--", url, rev];
        // Into a file and not a pipe, which a talkative server could fill while nobody reads.
        let log = self.folder.join("fetch.log");
        let said = std::fs::File::create(&log).map_err(SharingError::io(&log))?;
        let mut command = self.command(&arguments);
        let mut child = command.stdout(Stdio::null()).stderr(said).spawn().map_err(SharingError::NoGit)?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(SharingError::NoGit)? {
                break status;
            }
            if size(self.folder) > most {
                // It may have ended in the meantime; either way it is gone after the wait.
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
    let clean = |c: char| if c == '\n' || !c.is_control() { c } else { '\u{fffd}' };
    let detail = said.trim().chars().map(clean).collect();
    Err(SharingError::Git { verb: (*arguments.first().unwrap_or(&"")).to_owned(), detail })
}

/// Bytes of all files below a folder, as far as they can be seen.
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
