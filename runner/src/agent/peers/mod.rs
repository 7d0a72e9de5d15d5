//! The connections between the agents of one attempt: the leader and a follower on every other host.
//!
//! Every agent has a [`listener`] that accepts only agents of the same attempt. The leader connects to the
//! followers and keeps a [`link`] to each. Checkpoint files travel on connections of their own
//! ([`fetch_file`], [`fetch_chunks`]), so that they do not delay heartbeats.

pub(super) mod fetch_chunks;
pub(super) mod fetch_file;
mod handshake;
pub(super) mod heartbeat;
pub(super) mod link;
pub(super) mod listener;

pub(super) use handshake::{Greeting, TrialAttempt, connect};

use rustls::Connection;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A mutual TLS connection between two agents.
pub(super) struct MutualTlsStream {
    tls: Connection,
    socket: TcpStream,
}

impl Read for MutualTlsStream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if self.tls.read_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.tls.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

impl Write for MutualTlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.tls.writer().write(bytes)?;
        self.flush()?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

/// A request for chunks of a file; the answer is the file's length, as for [`Greeting::Read`], and the bytes
/// of each chunk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChunkRequest {
    /// Name of the file in the checkpoint folder.
    file: String,
    /// Indices of the wanted chunks.
    chunks: Vec<u64>,
}

#[cfg(test)]
mod tests;
