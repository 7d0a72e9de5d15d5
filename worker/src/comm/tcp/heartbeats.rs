//! Heartbeats between hosts, on connections of their own: the connections of collectives may be full, or hold
//! a message that is not read yet.

use super::super::heartbeat::Liveness;
use super::peer::PeerConnection;
use dtrain_protocol::Rank;
use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A connection with one rank that carries only beats: each is one `u64`, little-endian.
#[derive(Debug)]
pub(super) struct HeartbeatConnection {
    rank: Rank,
    tls: Connection,
    socket: TcpStream,
    /// Bytes of the next beat, of which the first `have` were received.
    word: [u8; 8],
    have: usize,
}

impl HeartbeatConnection {
    pub(super) fn of(peer: PeerConnection) -> Self {
        let (rank, tls, socket) = peer.into_parts();
        Self { rank, tls, socket, word: [0; 8], have: 0 }
    }

    /// Receives the beats that arrived, then sends one beat. `Err` if the connection is closed.
    fn beat(&mut self, pulse: &Liveness) -> io::Result<()> {
        while self.fill()? {
            self.tls.process_new_packets().map_err(io::Error::other)?;
            while let Some(idle) = self.take()? {
                pulse.record_beat(self.rank, idle);
            }
        }
        // To a peer that reads nothing for long, no beats are queued beyond the one that waits.
        if !self.tls.wants_write() {
            self.tls.writer().write_all(&pulse.idle().to_le_bytes())?;
        }
        self.flush()
    }

    /// Reads the next bytes from the socket without blocking; returns `false` if it has none.
    fn fill(&mut self) -> io::Result<bool> {
        match self.tls.read_tls(&mut self.socket) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the next complete beat; `None` if it has not arrived.
    fn take(&mut self) -> io::Result<Option<u64>> {
        match self.tls.reader().read(&mut self.word[self.have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => self.have += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        if self.have < self.word.len() {
            return self.take();
        }
        self.have = 0;
        Ok(Some(u64::from_le_bytes(self.word)))
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Sends and receives one beat on all connections. A closed connection is dropped, and its rank is silent
/// from then on; the connections of the collectives report more.
pub(super) fn beat(lines: &mut Vec<HeartbeatConnection>, pulse: &Liveness) {
    lines.retain_mut(|line| line.beat(pulse).is_ok());
}
