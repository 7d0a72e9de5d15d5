//! Transports: ways to run fixed commands on a host and exchange bytes with them.
//!
//! A command line is a constant, some with validated hexadecimal or decimal words in it: [`CommandLine`]. All
//! other values travel over standard input, never in a shell string. Three transports: [`LocalShell`] for
//! this machine, [`Ssh`] with libssh2, [`OpenSsh`] with the program `ssh`. They know nothing about the
//! programs that they run.

mod authenticate;
mod command_line;
mod error;
mod host_spec;
pub mod known_hosts;
mod local_shell;
mod openssh;
mod program_stream;
mod ssh;
mod ssh_config;
mod ssh_session;
mod ssh_target;
mod upload;

pub use command_line::{CommandLine, ProgramDigest, ProgramMode};
pub use error::TransportError;
pub use host_spec::User;
pub use local_shell::LocalShell;
pub use openssh::OpenSsh;
pub use program_stream::{ProgramExit, ProgramStream};
pub use ssh::{Bastions, ConnectResult, Ssh, connect_all};
pub use ssh_target::SshTarget;
pub use upload::UploadOutcome;

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// Timeout of a connection to a host and of every answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum size of the output of a script, in bytes.
const MOST: u64 = 1 << 20;

/// A constant POSIX shell script, sent over standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script(pub(crate) &'static str);

/// Script that prints the facts about a host that `doctor` shows, as `key=value` lines.
pub const FACTS: Script = Script(
    r#"LC_ALL=C; export LC_ALL
echo "system=$(uname -sr)"
echo "machine=$(uname -m)"
echo "cores=$(nproc 2>/dev/null || echo 0)"
echo "memory_kib=$(awk '/^MemTotal/ {print $2}' /proc/meminfo 2>/dev/null)"
echo "home_free_kib=$(df -Pk "$HOME" 2>/dev/null | awk 'NR==2 {print $4}')"
echo "shm_free_kib=$(df -Pk /dev/shm 2>/dev/null | awk 'NR==2 {print $4}')"
echo "clock=$(date +%s)"
echo "gpus=$(ls -d /proc/driver/nvidia/gpus/* 2>/dev/null | wc -l)"
echo "cuda_headers=$(ls /usr/local/cuda/include/cuda_runtime.h /opt/cuda/include/cuda_runtime.h 2>/dev/null | head -n 1)"
limit=$(command -v timeout >/dev/null 2>&1 && echo "timeout -s KILL 3")
for program in "$HOME"/.cache/dtrain/bin/*/dtrain; do
  [ -x "$program" ] || continue
  name=$(basename "$(dirname "$program")")
  [ "$($limit "$program" agent --digest </dev/null 2>/dev/null)" = "$name" ] || damaged="$damaged $name"
done
echo "damaged_programs=$damaged"
python=$HOME/.local/state/dtrain/engines/pytorch/bin/python
if [ -x "$python" ]; then
    echo "engines=$("$python" -c 'import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions() if d.name and d.version}))' 2>/dev/null)"
fi
"#,
);

/// Output and exit status of a command that ran on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// Exit status; -1 if a signal ended it.
    pub status: i32,
    /// The complete standard output of the command.
    pub stdout: String,
    /// The last 4 KiB of the command's standard error.
    pub stderr: String,
}

/// A way to run fixed commands on a host.
pub trait Transport: Send {
    /// Returns the host's name for messages.
    fn name(&self) -> &str;

    /// Starts a command line on the host, without a terminal and without this process's environment.
    fn start(&mut self, line: &CommandLine) -> Result<ProgramStream, TransportError>;

    /// Runs `script` on the host to its end. A nonzero exit status is not an error.
    fn run(&mut self, script: Script) -> Result<CommandOutput, TransportError> {
        let stream = self.start(&CommandLine::shell())?;
        run_to_end(self.name(), &stream, script.0.as_bytes(), PATIENCE)
    }

    /// Starts a program that was [`upload`](Self::upload)ed to the host.
    fn open(&mut self, program: &ProgramDigest, word: ProgramMode) -> Result<ProgramStream, TransportError> {
        self.start(&CommandLine::program(program, word))
    }

    /// Uploads a program to the host unless it is there: its path contains its digest.
    fn upload(&mut self, program: &Path, digest: &ProgramDigest) -> Result<UploadOutcome, TransportError> {
        upload::upload(self, program, digest)
    }
}

/// Sends `input` to a program, and reads all its output and its exit status; fails after `patience` of
/// silence.
fn run_to_end(
    host: &str,
    stream: &ProgramStream,
    input: &[u8],
    patience: Duration,
) -> Result<CommandOutput, TransportError> {
    let failed = |source| TransportError::Stream { host: host.to_owned(), source };
    let stdout =
        exchange(stream, input, patience).map_err(|error| failed(describe_timeout(error, patience)))?;
    let late = || failed(describe_timeout(io::ErrorKind::WouldBlock.into(), patience));
    let ending = stream.ending(patience).ok_or_else(late)?;
    match ending.broken {
        Some(reason) => Err(failed(io::Error::other(reason))),
        None => Ok(CommandOutput {
            status: ending.status.unwrap_or(-1),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: ending.stderr,
        }),
    }
}

/// Sends `input` to a program and returns its output. A program that exits before it has read everything is
/// not an error: its exit status tells the reason.
fn exchange(mut stream: &ProgramStream, input: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    let unless_gone =
        |result: io::Result<()>| result.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) });
    let mut stdout = Vec::new();
    stream.pipe().set_read_timeout(Some(patience))?;
    stream.pipe().set_write_timeout(Some(patience))?;
    unless_gone(stream.write_all(input).and_then(|()| stream.end_input()))?;
    unless_gone(stream.take(MOST).read_to_end(&mut stdout).map(|_| ()))?;
    Ok(stdout)
}

/// Returns `true` if the error says that the peer is gone, which the exit status explains better.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

/// Replaces the text of a socket timeout, "resource temporarily unavailable", by a clear one.
fn describe_timeout(error: io::Error, patience: Duration) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", patience.as_secs()))
    } else {
        error
    }
}

#[cfg(test)]
mod tests;
