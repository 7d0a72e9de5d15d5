//! The connection of the leader and a follower: frames both ways, and heartbeats.
//!
//! Whoever hears nothing for [`HEARTBEAT_TIMEOUT`] takes the other for lost. TCP does not tell that a peer is frozen or that packets are
//! dropped on the way; a heartbeat does, in either direction. It carries a [`Heartbeat`], so that a peer whose thread beats and whose
//! loop stands still is noticed too.

use super::super::messages::Heartbeat;
use super::MutualTlsStream;
use dtrain_protocol::frame::{self, FrameError, MAX_IN_PIECES};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustls::Connection;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often something is said at least.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);

/// After how long a peer that says nothing is lost.
pub(in crate::agent) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// How much later than it should this process may wake up before it suspects itself and not the other.
const MAX_SCHEDULING_DELAY: Duration = Duration::from_millis(250);

/// Bytes taken from the socket at once.
const READ: usize = 64 << 10;

/// The near end of a connection. When it is dropped the connection ends, after all that was told went out.
#[derive(Debug)]
pub(in crate::agent) struct PeerLink {
    outgoing: Option<Sender<Vec<u8>>>,
    waker: Arc<OwnedFd>,
}

/// What goes over the connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Frame<T> {
    Beat(Heartbeat),
    Message(T),
}

/// How far this agent has come, as its heartbeats say it.
#[derive(Debug, Default)]
pub(in crate::agent) struct LoopCounters {
    turns: AtomicU64,
    work: AtomicU64,
}

impl LoopCounters {
    /// The loop of the agent has made a turn.
    pub(in crate::agent) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Work on a checkpoint has made a step.
    pub(in crate::agent) fn work(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
    }

    /// How far it has come.
    pub(in crate::agent) fn now(&self) -> Heartbeat {
        Heartbeat { turns: self.turns.load(Ordering::Relaxed), work: self.work.load(Ordering::Relaxed) }
    }
}

/// What comes from the far end.
#[derive(Debug)]
pub(in crate::agent) enum LinkEvent<T> {
    /// A message.
    Message(T),
    /// A heartbeat.
    Beat(Heartbeat),
    /// Nothing any more, and why.
    Lost(String),
}

impl PeerLink {
    /// Serves `stream` in a thread of its own; `hear` gets every message, and at last that the other end is lost.
    pub(in crate::agent) fn start<T: DeserializeOwned>(
        stream: MutualTlsStream,
        loop_counters: &Arc<LoopCounters>,
        hear: impl FnMut(LinkEvent<T>) + Send + 'static,
    ) -> io::Result<Self> {
        stream.socket.set_nonblocking(true)?;
        let waker = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (outgoing, queue) = channel();
        let end = LinkThread::of(stream, queue, Arc::clone(&waker), Arc::clone(loop_counters));
        thread::Builder::new().name("peer link".into()).spawn(move || end.serve(hear))?;
        Ok(Self { outgoing: Some(outgoing), waker })
    }

    /// Sends a message. A peer that is lost misses it.
    pub(in crate::agent) fn send(&self, message: &impl Serialize) {
        if let Some(outgoing) = &self.outgoing {
            drop(outgoing.send(frame::encode(&Frame::Message(message))));
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the other end wakes up anyway.
        let _ = rustix::io::write(&*self.waker, &1u64.to_ne_bytes());
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.outgoing = None;
        self.wake();
    }
}

/// The connection as its thread holds it.
struct LinkThread {
    tls: Connection,
    socket: TcpStream,
    queue: Receiver<Vec<u8>>,
    waker: Arc<OwnedFd>,
    /// What came and is not a whole frame yet.
    inbox: Vec<u8>,
    heard_at: Instant,
    beat_at: Instant,
    loop_counters: Arc<LoopCounters>,
    /// Nothing more will be sent from here.
    is_closing: bool,
}

impl LinkThread {
    fn of(
        stream: MutualTlsStream,
        queue: Receiver<Vec<u8>>,
        waker: Arc<OwnedFd>,
        loop_counters: Arc<LoopCounters>,
    ) -> Self {
        let MutualTlsStream { mut tls, socket } = stream;
        tls.set_buffer_limit(None);
        let now = Instant::now();
        Self {
            tls,
            socket,
            queue,
            waker,
            inbox: Vec::new(),
            beat_at: now,
            heard_at: now,
            loop_counters,
            is_closing: false,
        }
    }

    fn serve<T: DeserializeOwned>(mut self, mut hear: impl FnMut(LinkEvent<T>)) {
        let end = loop {
            if let Err(error) = self.send_pending().and_then(|()| self.receive_available()) {
                break describe_error(&error);
            }
            if let Err(garbled) = self.deliver_frames(&mut hear) {
                break garbled;
            }
            if self.is_closing && !self.tls.wants_write() {
                break "this end closed the connection".to_owned();
            }
            let silent = self.heard_at.elapsed();
            if silent > HEARTBEAT_TIMEOUT {
                break format!("no heartbeat for {:.1} s", silent.as_secs_f64());
            }
            if let Err(error) = self.wait_for_io() {
                break describe_error(&error);
            }
        };
        hear(LinkEvent::Lost(end));
    }

    /// Takes what waits to be said, and sends what the socket takes.
    fn send_pending(&mut self) -> io::Result<()> {
        loop {
            match self.queue.try_recv() {
                Ok(frame) => self.tls.writer().write_all(&frame)?,
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
        // Also beside messages: they say nothing of the loop that does the work.
        if !self.is_closing && self.beat_at.elapsed() >= HEARTBEAT_INTERVAL {
            self.beat_at = Instant::now();
            let beat = frame::encode(&Frame::<()>::Beat(self.loop_counters.now()));
            self.tls.writer().write_all(&beat)?;
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

    /// Takes from the socket what is there, and first what came with the handshake.
    fn receive_available(&mut self) -> io::Result<()> {
        self.take_plaintext()?;
        loop {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            self.heard_at = Instant::now();
            self.tls.process_new_packets().map_err(io::Error::other)?;
            self.take_plaintext()?;
        }
    }

    fn take_plaintext(&mut self) -> io::Result<()> {
        let mut room = [0; READ];
        loop {
            match self.tls.reader().read(&mut room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.inbox.extend(&room[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Hands on every frame that is whole. `Err` says what is wrong with one that never will be.
    fn deliver_frames<T: DeserializeOwned>(
        &mut self,
        hear: &mut impl FnMut(LinkEvent<T>),
    ) -> Result<(), String> {
        let mut rest = self.inbox.as_slice();
        while frame::is_whole_within(rest, MAX_IN_PIECES).map_err(|error| error.to_string())? {
            match frame::read_within::<Frame<T>>(&mut rest, MAX_IN_PIECES) {
                Ok(Frame::Message(message)) => hear(LinkEvent::Message(message)),
                Ok(Frame::Beat(heartbeat)) => hear(LinkEvent::Beat(heartbeat)),
                Err(FrameError::Json(error)) => return Err(format!("cannot decode its message: {error}")),
                Err(error) => return Err(error.to_string()),
            }
        }
        let done = self.inbox.len() - rest.len();
        self.inbox.drain(..done);
        Ok(())
    }

    /// Waits until something can be moved or the next beat is due.
    fn wait_for_io(&mut self) -> io::Result<()> {
        let limit = HEARTBEAT_INTERVAL.saturating_sub(self.beat_at.elapsed());
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
        if late > MAX_SCHEDULING_DELAY {
            self.heard_at += late;
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.waker, &mut count);
        Ok(())
    }
}

fn describe_error(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it closed the connection".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
