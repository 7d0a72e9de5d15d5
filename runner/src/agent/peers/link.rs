//! The connection of the leader and a follower: frames in both directions, with heartbeats.
//!
//! A side that misses the other's heartbeats counts it as lost (`heartbeat`).

use super::MutualTlsStream;
use super::heartbeat::{Heartbeat, HeartbeatClock, LoopCounters};
use dtrain_protocol::frame::{self, FrameError, MAX_IN_PIECES};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustls::Connection;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Instant;

/// Number of bytes read from the socket at once.
const READ: usize = 64 << 10;

/// One end of a connection. Dropping it sends all queued messages, then closes the connection.
#[derive(Debug)]
pub(in crate::agent) struct PeerLink {
    outgoing: Option<Sender<Vec<u8>>>,
    waker: Arc<OwnedFd>,
}

/// A frame on the connection of two agents.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::agent) enum Frame<T> {
    /// A heartbeat, with the progress of the sender's loop.
    Beat(Heartbeat),
    /// A message.
    Message(T),
}

/// An event of the connection, received from the peer or about it.
#[derive(Debug)]
pub(in crate::agent) enum LinkEvent<T> {
    /// A message from the peer.
    Message(T),
    /// A heartbeat of the peer, with the progress of its loop.
    Beat(Heartbeat),
    /// The connection is lost, for the reason given.
    Lost(String),
}

impl PeerLink {
    /// Starts a thread that serves `stream`; `hear` gets every event, and finally the loss of the connection.
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

    /// Sends a message to the peer; a lost peer does not get it.
    pub(in crate::agent) fn send(&self, message: &impl Serialize) {
        if let Some(outgoing) = &self.outgoing {
            drop(outgoing.send(frame::encode(&Frame::Message(message))));
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only if the counter is full, and then the thread wakes up anyway.
        let _ = rustix::io::write(&*self.waker, &1u64.to_ne_bytes());
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.outgoing = None;
        self.wake();
    }
}

/// The connection as owned by its thread.
struct LinkThread {
    tls: Connection,
    socket: TcpStream,
    queue: Receiver<Vec<u8>>,
    waker: Arc<OwnedFd>,
    /// Received bytes that are not a complete frame yet.
    inbox: Vec<u8>,
    heartbeats: HeartbeatClock,
    loop_counters: Arc<LoopCounters>,
    /// True once nothing more will be sent.
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
        Self {
            tls,
            socket,
            queue,
            waker,
            inbox: Vec::new(),
            heartbeats: HeartbeatClock::start(),
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
            if let Some(silent) = self.heartbeats.missed() {
                break format!("no heartbeat for {:.1} s", silent.as_secs_f64());
            }
            if let Err(error) = self.wait_for_io() {
                break describe_error(&error);
            }
        };
        hear(LinkEvent::Lost(end));
    }

    /// Encrypts queued messages, and sends as much as the socket accepts.
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
        // Sent even between messages, which say nothing about the loop that does the work.
        if !self.is_closing && self.heartbeats.take_due() {
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

    /// Reads all available bytes, beginning with those that came with the handshake.
    fn receive_available(&mut self) -> io::Result<()> {
        self.take_plaintext()?;
        loop {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            self.heartbeats.heard();
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

    /// Passes every complete frame on to `hear`. `Err` describes an invalid one.
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

    /// Polls until bytes can move or the next heartbeat is due.
    fn wait_for_io(&mut self) -> io::Result<()> {
        let limit = self.heartbeats.until_due();
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, self.tls.wants_write());
        let mut waited = [PollFd::new(&self.socket, wanted), PollFd::new(&self.waker, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        let began = Instant::now();
        match poll(&mut waited, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.heartbeats.excuse(began.elapsed().saturating_sub(limit));
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
