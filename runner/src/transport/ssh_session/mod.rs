//! One SSH session and all its channels, served by one thread.
//!
//! libssh2 does one thing at a time on a session, and a blocking call holds up all others. So the session is
//! non-blocking, and each channel is connected to a socket pair, whose other end the user reads and writes.
//!
//! Two rules of libssh2 hold here. A half-sent packet can be finished only by the call that started it, so
//! every call that would have blocked is repeated on every round. And a channel is dropped only after its
//! close was sent, since that call could not be repeated.

mod channel_pump;
mod pending_bytes;
mod pending_open;
mod session_thread;

use super::command_line::CommandLine;
use super::program_stream::ProgramStream;
use session_thread::SessionThread;
use ssh2::Session;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The error code of libssh2 for a channel that the host refused to open.
const REFUSED: ssh2::ErrorCode = ssh2::ErrorCode::Session(-21);

/// A session served by its own thread, which ends when this value is dropped and the last stream has ended.
pub(super) struct SharedSession {
    requests: Mutex<Sender<OpenRequest>>,
    /// Socket that wakes the thread; its end of file means that no more requests follow.
    waker: UnixStream,
    is_stuck: Arc<AtomicBool>,
}

/// The kind of channel to open.
pub(super) enum ChannelKind {
    /// A program on the host, started by its command line.
    Program(CommandLine),
    /// A TCP connection to another host.
    Tunnel { host: String, port: u16 },
}

/// The reason why a channel was not opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The host refused to open the channel, for the reason given.
    Refused(ssh2::Error),
    /// The host did not answer in time.
    TimedOut,
    /// An earlier request is slow, and libssh2 handles one at a time.
    Stuck,
    /// The session has ended.
    Gone(io::Error),
}

struct OpenRequest {
    kind: ChannelKind,
    reply: Sender<Result<ProgramStream, OpenError>>,
}

impl SharedSession {
    /// Starts the thread of an authenticated session on `socket`.
    pub(super) fn start(session: Session, socket: rustix::fd::OwnedFd) -> io::Result<Self> {
        session.set_blocking(false);
        let (waker, heard) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        heard.set_nonblocking(true)?;
        let (requests, received) = channel();
        let is_stuck = Arc::new(AtomicBool::new(false));
        let session_thread = SessionThread::new(session, socket, received, heard, Arc::clone(&is_stuck));
        thread::Builder::new().name("ssh".into()).spawn(move || session_thread.serve())?;
        Ok(Self { requests: Mutex::new(requests), waker, is_stuck })
    }

    /// Opens a channel of the session; blocks until it is open.
    pub(super) fn open(&self, kind: ChannelKind) -> Result<ProgramStream, OpenError> {
        let gone = || OpenError::Gone(io::Error::new(io::ErrorKind::NotConnected, "the session has ended"));
        let (reply, answer) = channel();
        let order = OpenRequest { kind, reply };
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).send(order).map_err(|_| gone())?;
        // A full waker wakes the thread anyway; one without a reader has no thread, and the request is
        // dropped.
        drop((&self.waker).write(&[0]));
        answer.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Returns `true` if a slow request blocks the session, so that others should not wait.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Acquire)
    }
}

impl OpenError {
    /// Converts an error from libssh2.
    fn of(error: ssh2::Error) -> Self {
        if error.code() == REFUSED { Self::Refused(error) } else { Self::Gone(error.into()) }
    }

    /// Converts the error to an [`io::Error`].
    pub(super) fn into_io(self) -> io::Error {
        match self {
            Self::Refused(error) => error.into(),
            Self::Gone(error) => error,
            Self::TimedOut | Self::Stuck => {
                let text = format!("no answer within {} s", super::PATIENCE.as_secs());
                io::Error::new(io::ErrorKind::TimedOut, text)
            }
        }
    }
}
