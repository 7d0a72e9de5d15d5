//! The connection of the leader and a follower: frames both ways, and a beat while there is nothing else to say.
//!
//! Whoever hears nothing for [`SILENCE`] takes the other for lost. TCP does not tell that a peer is frozen or that packets are
//! dropped on the way; a beat does, in either direction.

use super::Secure;
use dtrain_protocol::frame::{self, FrameError, MAX_IN_PIECES};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustls::Connection;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often something is said at least.
const BEAT: Duration = Duration::from_millis(250);

/// After how long a peer that says nothing is lost.
pub(in crate::agent) const SILENCE: Duration = Duration::from_secs(2);

/// How much later than it should this process may wake up before it suspects itself and not the other.
const SLIP: Duration = Duration::from_millis(250);

/// Bytes taken from the socket at once.
const READ: usize = 64 << 10;

/// The near end of a connection. When it is dropped the connection ends, after all that was told went out.
#[derive(Debug)]
pub(in crate::agent) struct Cord {
    outgoing: Option<Sender<Vec<u8>>>,
    waker: Arc<OwnedFd>,
}

/// What comes from the far end.
#[derive(Debug)]
pub(in crate::agent) enum Heard<T> {
    /// A message.
    Said(T),
    /// Nothing any more, and why.
    Lost(String),
}

impl Cord {
    /// Serves `stream` in a thread of its own; `hear` gets every message, and at last that the other end is lost.
    pub(in crate::agent) fn start<T: DeserializeOwned>(
        stream: Secure,
        hear: impl FnMut(Heard<T>) + Send + 'static,
    ) -> io::Result<Self> {
        stream.socket.set_nonblocking(true)?;
        let waker = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (outgoing, queue) = channel();
        let end = End::of(stream, queue, Arc::clone(&waker));
        thread::Builder::new().name("cord".into()).spawn(move || end.serve(hear))?;
        Ok(Self { outgoing: Some(outgoing), waker })
    }

    /// Says something. A peer that is lost misses it.
    pub(in crate::agent) fn tell(&self, message: &impl Serialize) {
        if let Some(outgoing) = &self.outgoing {
            drop(outgoing.send(frame::encode(&Some(message))));
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the other end wakes up anyway.
        let _ = rustix::io::write(&*self.waker, &1u64.to_ne_bytes());
    }
}

impl Drop for Cord {
    fn drop(&mut self) {
        self.outgoing = None;
        self.wake();
    }
}

/// The connection as its thread holds it.
struct End {
    tls: Connection,
    socket: TcpStream,
    queue: Receiver<Vec<u8>>,
    waker: Arc<OwnedFd>,
    /// What came and is not a whole frame yet.
    inbox: Vec<u8>,
    said_at: Instant,
    heard_at: Instant,
    /// Nothing more will be said from here.
    is_closing: bool,
}

impl End {
    fn of(stream: Secure, queue: Receiver<Vec<u8>>, waker: Arc<OwnedFd>) -> Self {
        let Secure { mut tls, socket } = stream;
        tls.set_buffer_limit(None);
        let now = Instant::now();
        Self { tls, socket, queue, waker, inbox: Vec::new(), said_at: now, heard_at: now, is_closing: false }
    }

    fn serve<T: DeserializeOwned>(mut self, mut hear: impl FnMut(Heard<T>)) {
        let end = loop {
            if let Err(error) = self.speak().and_then(|()| self.listen()) {
                break words(&error);
            }
            if let Err(garbled) = self.hand_on(&mut hear) {
                break garbled;
            }
            if self.is_closing && !self.tls.wants_write() {
                break "this end closed the connection".to_owned();
            }
            let silent = self.heard_at.elapsed();
            if silent > SILENCE {
                break format!("no heartbeat for {:.1} s", silent.as_secs_f64());
            }
            if let Err(error) = self.sleep() {
                break words(&error);
            }
        };
        hear(Heard::Lost(end));
    }

    /// Takes what waits to be said, and sends what the socket takes.
    fn speak(&mut self) -> io::Result<()> {
        loop {
            match self.queue.try_recv() {
                Ok(frame) => self.say(&frame)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    if !self.is_closing {
                        self.is_closing = true;
                        self.tls.send_close_notify();
                    }
                    break;
                }
            }
        }
        if !self.is_closing && self.said_at.elapsed() >= BEAT {
            self.say(&frame::encode(&None::<()>))?;
        }
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn say(&mut self, frame: &[u8]) -> io::Result<()> {
        self.said_at = Instant::now();
        self.tls.writer().write_all(frame)
    }

    /// Takes from the socket what is there.
    fn listen(&mut self) -> io::Result<()> {
        loop {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            self.heard_at = Instant::now();
            self.tls.process_new_packets().map_err(io::Error::other)?;
            let mut room = [0; READ];
            loop {
                match self.tls.reader().read(&mut room) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(length) => self.inbox.extend(&room[..length]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Hands on every frame that is whole. `Err` says what is wrong with one that never will be.
    fn hand_on<T: DeserializeOwned>(&mut self, hear: &mut impl FnMut(Heard<T>)) -> Result<(), String> {
        let mut rest = self.inbox.as_slice();
        while frame::is_whole_within(rest, MAX_IN_PIECES).map_err(|error| error.to_string())? {
            match frame::read_within::<Option<T>>(&mut rest, MAX_IN_PIECES) {
                Ok(Some(message)) => hear(Heard::Said(message)),
                Ok(None) => {}
                Err(FrameError::Json(error)) => return Err(format!("cannot decode its message: {error}")),
                Err(error) => return Err(error.to_string()),
            }
        }
        let done = self.inbox.len() - rest.len();
        self.inbox.drain(..done);
        Ok(())
    }

    /// Waits until something can be moved or the next beat is due.
    fn sleep(&mut self) -> io::Result<()> {
        let limit = BEAT.saturating_sub(self.said_at.elapsed());
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, self.tls.wants_write());
        let mut waited = [PollFd::new(&self.socket, wanted), PollFd::new(&self.waker, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        let began = Instant::now();
        match poll(&mut waited, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let late = began.elapsed().saturating_sub(limit);
        if late > SLIP {
            self.heard_at += late;
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.waker, &mut count);
        Ok(())
    }
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it closed the connection".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
