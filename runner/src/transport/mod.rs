//! Ways to run fixed commands on a host and talk to them.
//!
//! A command line is a constant, or a constant with validated hexadecimal or decimal words in it: [`CommandLine`]. All
//! other values travel over standard input, never in a shell string. Three ways: [`LocalShell`] is this machine,
//! [`Ssh`] another through libssh2, [`OpenSsh`] another through the program `ssh`. What runs on a host is not
//! known here.

mod authenticate;
mod bastion;
mod command_line;
mod error;
pub mod known_hosts;
mod local_shell;
mod openssh;
mod program_stream;
mod ssh;
mod ssh_config;
mod ssh_session;
mod ssh_target;
mod upload;

pub use bastion::{Bastions, ConnectResult, connect_all};
pub use command_line::{CommandLine, ProgramDigest, ProgramMode};
pub use error::TransportError;
pub use local_shell::LocalShell;
pub use openssh::OpenSsh;
pub use program_stream::{ProgramExit, ProgramStream};
pub use ssh::Ssh;
pub use ssh_target::{SshTarget, User};
pub use upload::UploadOutcome;

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// How long a connection, and every answer, may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes a script may print.
const MOST: u64 = 1 << 20;

/// A fixed program for a remote POSIX shell, sent over its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script(pub(crate) &'static str);

/// Prints what `doctor` wants to know of a host, a `key=value` on each line.
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
"#,
);

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// Exit status; -1 when a signal ended it.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// The last 4 KiB of standard error.
    pub stderr: String,
}

/// A way to run fixed commands on a host.
pub trait Transport: Send {
    /// The host, for messages.
    fn name(&self) -> &str;

    /// Starts a command line, without a terminal and without an environment of ours.
    fn start(&mut self, line: &CommandLine) -> Result<ProgramStream, TransportError>;

    /// Runs `script` to its end. An exit status other than 0 is not an error here.
    fn run(&mut self, script: Script) -> Result<CommandOutput, TransportError> {
        let stream = self.start(&CommandLine::shell())?;
        run_to_end(self.name(), &stream, script.0.as_bytes(), PATIENCE)
    }

    /// Starts a program that was [`upload`](Self::upload)ed to the host.
    fn open(&mut self, program: &ProgramDigest, word: ProgramMode) -> Result<ProgramStream, TransportError> {
        self.start(&CommandLine::program(program, word))
    }

    /// Puts a program on the host, once: its place is named by its digest.
    fn upload(&mut self, program: &Path, digest: &ProgramDigest) -> Result<UploadOutcome, TransportError> {
        upload::upload(self, program, digest)
    }
}

/// Says `input`, hears all that is said, and how it ended; silent for no longer than `patience`.
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

/// What a program says to `input`. One that ends before it read all is no error: its ending tells why.
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

/// Whether the other end is gone, which its ending explains better.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

/// A time-out of a socket says "resource temporarily unavailable", which helps nobody.
fn describe_timeout(error: io::Error, patience: Duration) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", patience.as_secs()))
    } else {
        error
    }
}

#[cfg(test)]
mod tests;
