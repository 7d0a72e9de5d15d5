//! One TCP connection, and the simultaneous transfer of messages through several of them.
//!
//! `[u64 attempt][u64 sequence][u64 bytes][payload]`, little-endian. The receiver knows all three numbers
//! in advance, and compares them before it reads a byte of payload.

use super::super::CommError;
use super::super::heartbeat::Liveness;
use dtrain_protocol::{AttemptId, Rank};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Bytes of a message's header.
const HEAD: usize = 24;

/// Time between two checks that waiting should go on.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Bytes to read from the socket at once.
const READ: usize = 256 << 10;

/// An authenticated connection with one rank.
#[derive(Debug)]
pub(super) struct PeerConnection {
    rank: Rank,
    attempt: AttemptId,
    tls: Connection,
    socket: TcpStream,
    /// Received bytes that are not decrypted yet: `cipher[begin..end]`.
    cipher: Vec<u8>,
    begin: usize,
    end: usize,
    /// Number of messages sent so far; the next field counts those received.
    sent: u64,
    received: u64,
}

/// The message to one rank and the message from it, in one operation.
#[derive(Debug, Default)]
pub(super) struct MessagePair<'a> {
    send: Option<OutboundMessage<'a>>,
    receive: Option<InboundMessage<'a>>,
}

#[derive(Debug)]
struct OutboundMessage<'a> {
    head: Option<[u8; HEAD]>,
    payload: &'a [u8],
    /// Number of bytes of header and payload handed to the connection.
    done: usize,
}

#[derive(Debug)]
struct InboundMessage<'a> {
    head: [u8; HEAD],
    payload: &'a mut [u8],
    /// Number of bytes of header and payload received.
    done: usize,
}

impl<'a> MessagePair<'a> {
    pub(super) fn send(&mut self, payload: &'a [u8]) {
        self.send = Some(OutboundMessage { head: None, payload, done: 0 });
    }

    pub(super) fn receive(&mut self, payload: &'a mut [u8]) {
        self.receive = Some(InboundMessage { head: [0; HEAD], payload, done: 0 });
    }

    fn is_sent(&self, peer: &PeerConnection) -> bool {
        !peer.tls.wants_write()
            && self.send.as_ref().is_none_or(|send| send.done == HEAD + send.payload.len())
    }

    fn is_received(&self) -> bool {
        self.receive.as_ref().is_none_or(|receive| receive.done == HEAD + receive.payload.len())
    }
}

/// Moves all messages, whichever can move, until all are done. `Err` if `pulse` gives up on an awaited peer.
pub(super) fn move_all(
    pairs: &mut [(&mut PeerConnection, MessagePair<'_>)],
    operation: &'static str,
    pulse: &Liveness,
) -> Result<(), CommError> {
    let mut begun = pulse.begin();
    loop {
        let mut moved = 0;
        for (peer, transfer) in pairs.iter_mut() {
            moved += peer.advance(transfer, operation)?;
        }
        let is_due = |(peer, transfer): &&(&mut PeerConnection, MessagePair<'_>)| {
            !transfer.is_sent(peer) || !transfer.is_received()
        };
        let mut due = pairs.iter().filter(is_due).map(|(peer, _)| peer.rank).peekable();
        if due.peek().is_none() {
            return Ok(());
        }
        if moved > 0 {
            begun = pulse.begin();
            continue;
        }
        due.try_for_each(|peer| pulse.check(peer, begun, operation))?;
        sleep_until_ready(pairs).map_err(|error| CommError::Link(format!("poll: {error}")))?;
    }
}

/// Waits until a socket can move data that is waited for, or until it is time for the next check.
fn sleep_until_ready(pairs: &[(&mut PeerConnection, MessagePair<'_>)]) -> io::Result<()> {
    let mut sockets = Vec::with_capacity(pairs.len());
    for (peer, transfer) in pairs {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, !transfer.is_received());
        wanted.set(PollFlags::OUT, !transfer.is_sent(peer));
        if !wanted.is_empty() {
            sockets.push(PollFd::new(&peer.socket, wanted));
        }
    }
    match poll(&mut sockets, Some(&LOOK_AGAIN)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Enables TCP keep-alive: while a rank computes for long, routers keep the connection, and a dead one
/// ends.
fn enable_keepalive(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(())
}

impl PeerConnection {
    pub(super) fn new(
        tls: Connection,
        socket: TcpStream,
        rank: Rank,
        attempt: AttemptId,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        enable_keepalive(&socket)?;
        let cipher = vec![0; READ];
        Ok(Self { rank, attempt, tls, socket, cipher, begin: 0, end: 0, sent: 0, received: 0 })
    }

    /// Splits a connection that has carried no messages into its rank, its TLS state and its socket.
    pub(super) fn into_parts(self) -> (Rank, Connection, TcpStream) {
        (self.rank, self.tls, self.socket)
    }

    /// Moves as many bytes of both messages as possible without blocking; returns their number.
    fn advance(
        &mut self,
        transfer: &mut MessagePair<'_>,
        operation: &'static str,
    ) -> Result<usize, CommError> {
        let peer = self.rank;
        let lost = |error: io::Error| CommError::PeerLost { peer, operation, detail: error.to_string() };
        let sent = self.push(transfer.send.as_mut()).map_err(lost)?;
        if transfer.is_received() {
            return Ok(sent);
        }
        let Some(receive) = &mut transfer.receive else { return Ok(sent) };
        let received = self.pull(receive).map_err(|error| match error {
            PullError::Io(error) => lost(error),
            PullError::OutOfStep(detail) => CommError::OutOfStep { peer, operation, detail },
        })?;
        Ok(sent + received)
    }

    /// Encrypts and sends the next bytes of the message.
    fn push(&mut self, send: Option<&mut OutboundMessage<'_>>) -> io::Result<usize> {
        let mut moved = 0;
        if let Some(send) = send {
            let (attempt, sent) = (self.attempt, &mut self.sent);
            let head = *send.head.get_or_insert_with(|| {
                *sent += 1;
                head(attempt, *sent, send.payload.len())
            });
            loop {
                let rest =
                    if send.done < HEAD { &head[send.done..] } else { &send.payload[send.done - HEAD..] };
                let taken = if rest.is_empty() { 0 } else { self.tls.writer().write(rest)? };
                send.done += taken;
                moved += taken;
                if taken == 0 && self.flush()? == 0 {
                    return Ok(moved);
                }
            }
        }
        Ok(moved + self.flush()?)
    }

    /// Sends encrypted bytes; returns the number that the socket took.
    fn flush(&mut self) -> io::Result<usize> {
        let mut moved = 0;
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(taken) => moved += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Receives and decrypts until the message is whole or the socket is empty.
    fn pull(&mut self, receive: &mut InboundMessage<'_>) -> Result<usize, PullError> {
        let mut moved = 0;
        loop {
            moved += self.drain(receive)?;
            if receive.done == HEAD + receive.payload.len() {
                return Ok(moved);
            }
            if self.begin == self.end {
                (self.begin, self.end) = (0, 0);
                match self.socket.read(&mut self.cipher) {
                    Ok(0) => return Err(PullError::Io(io::Error::other("it closed the connection"))),
                    Ok(length) => (self.end, moved) = (length, moved + length),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(moved),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            let mut cipher = &self.cipher[self.begin..self.end];
            self.tls.read_tls(&mut cipher)?;
            self.begin = self.end - cipher.len();
            self.tls.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Copies decrypted bytes into header and payload.
    fn drain(&mut self, receive: &mut InboundMessage<'_>) -> Result<usize, PullError> {
        let mut moved = 0;
        loop {
            let room = match receive.done.checked_sub(HEAD) {
                None => &mut receive.head[receive.done..],
                Some(done) => &mut receive.payload[done..],
            };
            if room.is_empty() {
                return Ok(moved);
            }
            match self.tls.reader().read(room) {
                Ok(0) => return Err(PullError::Io(io::Error::other("it ended the session"))),
                Ok(length) => (receive.done, moved) = (receive.done + length, moved + length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(moved),
                Err(error) => return Err(error.into()),
            }
            if receive.done == HEAD {
                self.received += 1;
                check(&receive.head, &head(self.attempt, self.received, receive.payload.len()))?;
            }
        }
    }
}

enum PullError {
    Io(io::Error),
    OutOfStep(String),
}

impl From<io::Error> for PullError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn head(attempt: AttemptId, sequence: u64, bytes: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    for (word, room) in [attempt.0, sequence, bytes as u64].iter().zip(head.chunks_mut(8)) {
        room.copy_from_slice(&word.to_le_bytes());
    }
    head
}

fn check(found: &[u8; HEAD], due: &[u8; HEAD]) -> Result<(), PullError> {
    if found == due {
        return Ok(());
    }
    let words = |head: &[u8; HEAD]| {
        let [attempt, sequence, bytes] = [0, 1, 2].map(|i| u64::from_le_bytes(head.as_chunks().0[i]));
        format!("message {sequence} of attempt {attempt} with {bytes} bytes")
    };
    Err(PullError::OutOfStep(format!("expected {}, received {}", words(due), words(found))))
}
