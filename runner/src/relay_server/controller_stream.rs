//! The two directions of the stream to the controller, with a time limit for its silence.
//!
//! A link that is silently down brings no end of file, and takes no more bytes once its buffers are full.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// Number of bytes for which a pipe or a socket has room when it can be written to.
const ROOM: usize = 4096;

/// The bytes that the controller sends. Reading fails with [`ErrorKind::TimedOut`] if none arrives within the limit.
pub(super) struct FromController {
    stream: OwnedFd,
    limit: Option<Duration>,
}

impl FromController {
    /// Creates the direction that is read from `stream`; without a limit, reading waits as long as it takes.
    pub(super) fn new(stream: impl AsFd, limit: Option<Duration>) -> io::Result<Self> {
        Ok(Self { stream: stream.as_fd().try_clone_to_owned()?, limit })
    }

    /// Removes the limit.
    pub(super) fn wait_forever(&mut self) {
        self.limit = None;
    }
}

impl Read for FromController {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        wait(&self.stream, PollFlags::IN, self.limit)?;
        Ok(rustix::io::read(&self.stream, buffer)?)
    }
}

/// The sink of the bytes for the controller. Writing fails with [`ErrorKind::TimedOut`] if there is no room within the
/// limit, and then for good, since a reply was cut short.
pub(super) struct ToController {
    stream: OwnedFd,
    limit: Option<Duration>,
    is_stuck: Cell<bool>,
}

impl ToController {
    /// Creates the direction that is written to `stream`; without a limit, writing waits as long as it takes.
    pub(super) fn new(stream: impl AsFd, limit: Option<Duration>) -> io::Result<Self> {
        Ok(Self { stream: stream.as_fd().try_clone_to_owned()?, limit, is_stuck: Cell::new(false) })
    }
}

impl Write for &ToController {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_stuck.get() {
            return Err(ErrorKind::TimedOut.into());
        }
        let waited = wait(&self.stream, PollFlags::OUT, self.limit);
        self.is_stuck.set(waited.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut));
        waited?;
        Ok(rustix::io::write(&self.stream, &bytes[..bytes.len().min(ROOM)])?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits until `stream` is `ready`, or has failed; `Err` after the limit.
fn wait(stream: &OwnedFd, ready: PollFlags, limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(stream, ready)], limit.as_ref())? {
        0 => Err(ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    const SHORT: Option<Duration> = Some(Duration::from_millis(50));

    #[test]
    fn an_end_that_is_open_and_silent_is_told_from_one_that_is_closed() {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let mut from = FromController::new(&near, SHORT).expect("a file is free");
        far.write_all(b"one").expect("room");
        let mut buffer = [0; 8];
        assert_eq!(from.read(&mut buffer).expect("it came"), 3);
        assert_eq!(from.read(&mut buffer).expect_err("it is silent").kind(), ErrorKind::TimedOut);
        drop(far);
        assert_eq!(from.read(&mut buffer).expect("it is closed"), 0);
    }

    #[test]
    fn bytes_for_which_no_room_comes_are_the_last() {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let to = ToController::new(&near, SHORT).expect("a file is free");
        let all = vec![7; 4 << 20];
        assert_eq!((&to).write_all(&all).expect_err("nobody reads").kind(), ErrorKind::TimedOut);
        drop(near);
        let mut read = vec![0; 1 << 20];
        assert!(far.read(&mut read).expect("the beginning") > 0);
        assert_eq!((&to).write(b"more").expect_err("a gap is before it").kind(), ErrorKind::TimedOut);

        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).map(|_| all)
        });
        let to = ToController::new(&near, SHORT).expect("a file is free");
        (&to).write_all(&all).expect("it is read");
        drop((near, to));
        assert!(reader.join().expect("it does not panic").expect("it is read") == all);
    }
}
