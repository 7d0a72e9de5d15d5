//! The transport to this machine: programs run as local processes.

use super::command_line::CommandLine;
use super::program_stream::{ExitSlot, ProgramExit, ProgramStream, StderrTail};
use super::{Transport, TransportError};
use rustix::fd::OwnedFd;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Time for which standard error may stay open after its program ended, in other processes that inherited it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The transport to this machine, with the user's home folder or another one.
#[derive(Clone, Debug, Default)]
pub struct LocalShell {
    home: Option<PathBuf>,
}

impl LocalShell {
    /// Returns the transport to this machine with `$HOME` set to `home`.
    pub fn at(home: &Path) -> Self {
        Self { home: Some(home.to_owned()) }
    }
}

impl Transport for LocalShell {
    fn name(&self) -> &str {
        "this machine"
    }

    fn start(&mut self, line: &CommandLine) -> Result<ProgramStream, TransportError> {
        let mut command = Command::new("sh");
        command.args(["-c", line.text()]);
        if let Some(home) = &self.home {
            command.env("HOME", home);
        }
        spawn(command).map_err(|source| TransportError::Stream { host: self.name().into(), source })
    }
}

/// Spawns a process whose standard input and output are the other end of the stream.
pub(super) fn spawn(mut command: Command) -> io::Result<ProgramStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    command.stdin(theirs.try_clone()?).stdout(theirs).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // The command holds the other end of the stream open.
    drop(command);
    let words = child.stderr.take().map(keep_tail);
    let exit_slot = Arc::new(ExitSlot::default());
    let told = Arc::clone(&exit_slot);
    thread::Builder::new().name("child".into()).spawn(move || {
        let status = child.wait();
        let stderr = words.and_then(|words| words.recv_timeout(LAST_WORDS).ok()).unwrap_or_default();
        told.set(ending(status, stderr));
    })?;
    Ok(ProgramStream::new(ours, exit_slot))
}

/// Reads standard error to its end in a thread, then sends the last bytes of it.
fn keep_tail(mut stderr: ChildStderr) -> Receiver<String> {
    let (sender, tail) = channel();
    thread::spawn(move || {
        let (mut kept, mut bytes) = (StderrTail::default(), [0; 4096]);
        while let Ok(count @ 1..) = stderr.read(&mut bytes) {
            kept.push(&bytes[..count]);
        }
        drop(sender.send(kept.text()));
    });
    tail
}

fn ending(status: io::Result<ExitStatus>, stderr: String) -> ProgramExit {
    match status {
        Ok(status) => ProgramExit {
            status: status.code(),
            signal: status.signal().map(|signal| signal.to_string()),
            stderr,
            broken: None,
        },
        Err(error) => ProgramExit { stderr, broken: Some(error.to_string()), ..ProgramExit::default() },
    }
}
