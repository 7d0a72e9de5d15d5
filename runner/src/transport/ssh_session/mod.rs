//! One session and all its channels, served by one thread.
//!
//! libssh2 does one thing at a time on a session, and one that waits holds up all others. So nothing ever waits:
//! the session does not block, and each channel is joined to one end of a pair of sockets, whose other end is what
//! everybody else sees.
//!
//! Two rules of libssh2 are kept here. A packet that was sent by half can be finished only by the call that began
//! it, so every call that would have blocked is made again, on every round. And a channel is let go only after its
//! closing was sent, for otherwise nobody makes that call again.

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

/// The code of libssh2 for a channel that the other side did not want to open.
const REFUSED: ssh2::ErrorCode = ssh2::ErrorCode::Session(-21);

/// A session in the hands of its thread, which ends when this is dropped and the last of its streams has ended.
pub(super) struct SharedSession {
    requests: Mutex<Sender<OpenRequest>>,
    /// Wakes the thread; closed, it tells that there will be no more requests.
    waker: UnixStream,
    is_stuck: Arc<AtomicBool>,
}

/// What is to be opened.
pub(super) enum ChannelKind {
    /// A program, by its command line.
    Program(CommandLine),
    /// A connection to somebody else.
    Tunnel { host: String, port: u16 },
}

/// Why nothing was opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The other side refused, and says why.
    Refused(ssh2::Error),
    /// The other side did not answer in time.
    TimedOut,
    /// An earlier request takes long, and libssh2 makes one at a time.
    Stuck,
    /// The session is no more.
    Gone(io::Error),
}

struct OpenRequest {
    kind: ChannelKind,
    reply: Sender<Result<ProgramStream, OpenError>>,
}

impl SharedSession {
    /// Takes over an authenticated session, whose socket is `socket`.
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

    /// Opens a channel, and waits until that is done.
    pub(super) fn open(&self, kind: ChannelKind) -> Result<ProgramStream, OpenError> {
        let gone = || OpenError::Gone(io::Error::new(io::ErrorKind::NotConnected, "the session has ended"));
        let (reply, answer) = channel();
        let order = OpenRequest { kind, reply };
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).send(order).map_err(|_| gone())?;
        // A waker that cannot be written to is either full or without a reader, who then drops the order.
        drop((&self.waker).write(&[0]));
        answer.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Whether a request takes so long that others should not wait behind it.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Acquire)
    }
}

impl OpenError {
    /// By the error of libssh2.
    fn of(error: ssh2::Error) -> Self {
        if error.code() == REFUSED { Self::Refused(error) } else { Self::Gone(error.into()) }
    }

    /// As an error of input and output.
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
