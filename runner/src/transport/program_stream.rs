//! The standard input and output of a program on a host, as one stream of bytes in both directions.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of standard error that are kept.
const KEPT: usize = 4096;

/// The standard input and output of a program on a host.
///
/// Two threads may use it at the same time, one to read and one to write. Dropping it never blocks: the program
/// then reads the end of its standard input.
#[derive(Debug)]
pub struct ProgramStream {
    pipe: UnixStream,
    exit_slot: Arc<ExitSlot>,
}

/// How a program on a host ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramExit {
    /// Exit status; `None` when a signal ended it, or when nobody knows.
    pub status: Option<i32>,
    /// Name of the signal that ended it, without `SIG`, or its number.
    pub signal: Option<String>,
    /// The last 4 KiB of its standard error.
    pub stderr: String,
    /// Why the connection ended before the program did.
    pub broken: Option<String>,
}

impl ProgramStream {
    pub(super) fn new(pipe: UnixStream, exit_slot: Arc<ExitSlot>) -> Self {
        Self { pipe, exit_slot }
    }

    /// The stream itself, for time-outs, and for handles to be used by other threads.
    pub fn pipe(&self) -> &UnixStream {
        &self.pipe
    }

    /// Lets the program read the end of its standard input; what it still says can be read.
    pub fn end_input(&self) -> io::Result<()> {
        self.pipe.shutdown(Shutdown::Write)
    }

    /// How the program ended; waits for that at most `patience`.
    pub fn ending(&self, patience: Duration) -> Option<ProgramExit> {
        self.exit_slot.wait(patience)
    }

    /// The bare stream, for those who do not ask how it ended.
    pub(super) fn into_pipe(self) -> UnixStream {
        self.pipe
    }
}

impl Read for &ProgramStream {
    /// A program that ended without reading all that was written is an end like any other.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.pipe).read(bytes).or_else(|error| match error.kind() {
            io::ErrorKind::ConnectionReset => Ok(0),
            _ => Err(error),
        })
    }
}

impl Write for &ProgramStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.pipe).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for ProgramStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self).read(bytes)
    }
}

impl Write for ProgramStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where an ending is left for whoever asks.
#[derive(Debug, Default)]
pub(super) struct ExitSlot {
    ending: Mutex<Option<ProgramExit>>,
    told: Condvar,
}

impl ExitSlot {
    /// Leaves an ending; only the first counts.
    pub(super) fn set(&self, ending: ProgramExit) {
        self.lock().get_or_insert(ending);
        self.told.notify_all();
    }

    fn wait(&self, patience: Duration) -> Option<ProgramExit> {
        let waited = self.told.wait_timeout_while(self.lock(), patience, |ending| ending.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<ProgramExit>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last bytes of something that may be long.
#[derive(Debug, Default)]
pub(super) struct StderrTail(VecDeque<u8>);

impl StderrTail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        self.0.drain(..self.0.len().saturating_sub(KEPT));
    }

    pub(super) fn text(&self) -> String {
        let (front, back) = self.0.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept() {
        let mut tail = StderrTail::default();
        for number in 0..10_000 {
            tail.push(format!("{number}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.len() == KEPT && text.ends_with("9998\n9999\n"), "{text}");
    }

    #[test]
    fn the_first_ending_counts_and_waiting_for_none_takes_no_longer_than_asked() {
        let exit_slot = ExitSlot::default();
        assert_eq!(exit_slot.wait(Duration::from_millis(1)), None);
        exit_slot.set(ProgramExit { status: Some(3), ..ProgramExit::default() });
        exit_slot.set(ProgramExit::default());
        assert_eq!(exit_slot.wait(Duration::ZERO).and_then(|ending| ending.status), Some(3));
    }
}
