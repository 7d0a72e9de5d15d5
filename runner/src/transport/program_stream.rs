//! Standard input and output of a program on a host, as one bidirectional byte stream.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of bytes of standard error to keep.
const KEPT: usize = 4096;

/// Standard input and output of a program on a host.
///
/// One thread may read while another writes. Dropping it never blocks: the program then reads the end of its
/// standard input.
#[derive(Debug)]
pub struct ProgramStream {
    pipe: UnixStream,
    exit_slot: Arc<ExitSlot>,
}

/// Exit of a program on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramExit {
    /// Exit status of the program; `None` if a signal ended it, or if it is unknown.
    pub status: Option<i32>,
    /// Name of the signal that ended the program, without `SIG`, or its number.
    pub signal: Option<String>,
    /// The last 4 KiB of the program's standard error.
    pub stderr: String,
    /// The error that ended the connection before the program ended.
    pub broken: Option<String>,
}

impl ProgramStream {
    pub(super) fn new(pipe: UnixStream, exit_slot: Arc<ExitSlot>) -> Self {
        Self { pipe, exit_slot }
    }

    /// Returns the socket, to set timeouts and to clone it for other threads.
    pub fn pipe(&self) -> &UnixStream {
        &self.pipe
    }

    /// Closes the program's standard input; its output can still be read.
    pub fn end_input(&self) -> io::Result<()> {
        self.pipe.shutdown(Shutdown::Write)
    }

    /// Waits at most `patience` for the exit of the program.
    pub fn ending(&self, patience: Duration) -> Option<ProgramExit> {
        self.exit_slot.wait(patience)
    }

    /// Returns only the socket, for callers that do not need the exit of the program.
    pub(super) fn into_pipe(self) -> UnixStream {
        self.pipe
    }
}

impl Read for &ProgramStream {
    /// Reads output of the program. One that exits without reading all its input ends the stream without an
    /// error.
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

/// A slot for the exit of a program, filled once and read by any thread.
#[derive(Debug, Default)]
pub(super) struct ExitSlot {
    ending: Mutex<Option<ProgramExit>>,
    told: Condvar,
}

impl ExitSlot {
    /// Stores the exit of the program; only the first call counts.
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

/// The last bytes of a program's standard error.
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
