//! Ways to run fixed commands on a host and talk to them.
//!
//! A command line is a constant, or a constant with validated hexadecimal or decimal words in it: [`Line`]. All
//! other values travel over standard input, never in a shell string. Three ways: [`Child`] is this machine,
//! [`Ssh`] another through libssh2, [`OpenSsh`] another through the program `ssh`. What runs on a host is not
//! known here.

mod authenticate;
mod bastion;
mod child;
mod config;
mod error;
pub mod known_hosts;
mod line;
mod openssh;
mod place;
mod pump;
mod ssh;
mod stream;
mod target;

pub use bastion::{Bastions, Connected, connect_all};
pub use child::Child;
pub use error::TransportError;
pub use line::{Line, ProgramDigest, Word};
pub use openssh::OpenSsh;
pub use place::Placed;
pub use ssh::Ssh;
pub use stream::{Ending, Stream};
pub use target::{Target, User};

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
pub struct Output {
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
    fn start(&mut self, line: &Line) -> Result<Stream, TransportError>;

    /// Runs `script` to its end. An exit status other than 0 is not an error here.
    fn run(&mut self, script: Script) -> Result<Output, TransportError> {
        let stream = self.start(&Line::shell())?;
        finish(self.name(), &stream, script.0.as_bytes(), PATIENCE)
    }

    /// Starts a program that was [`put`](Self::put) on the host.
    fn open(&mut self, program: &ProgramDigest, word: Word) -> Result<Stream, TransportError> {
        self.start(&Line::program(program, word))
    }

    /// Puts a program on the host, once: its place is named by its digest.
    fn put(&mut self, program: &Path, digest: &ProgramDigest) -> Result<Placed, TransportError> {
        place::put(self, program, digest)
    }
}

/// Says `input`, hears all that is said, and how it ended; silent for no longer than `patience`.
fn finish(host: &str, stream: &Stream, input: &[u8], patience: Duration) -> Result<Output, TransportError> {
    let failed = |source| TransportError::Stream { host: host.to_owned(), source };
    let stdout = talk(stream, input, patience).map_err(|error| failed(in_words(error, patience)))?;
    let late = || failed(in_words(io::ErrorKind::WouldBlock.into(), patience));
    let ending = stream.ending(patience).ok_or_else(late)?;
    match ending.broken {
        Some(reason) => Err(failed(io::Error::other(reason))),
        None => Ok(Output {
            status: ending.status.unwrap_or(-1),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: ending.stderr,
        }),
    }
}

/// What a program says to `input`. One that ends before it read all is no error: its ending tells why.
fn talk(mut stream: &Stream, input: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
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
fn in_words(error: io::Error, patience: Duration) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", patience.as_secs()))
    } else {
        error
    }
}

#[cfg(test)]
mod tests;
