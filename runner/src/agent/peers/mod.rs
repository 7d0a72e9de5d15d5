//! The connections between the agents of one attempt: the leader and a follower on every other host.
//!
//! Every agent has a [`listener`] that accepts only agents of the same attempt. The leader connects to the
//! followers and keeps a [`link`] to each. Checkpoint files travel on connections of their own
//! ([`fetch_file`], [`fetch_chunks`]), so that they do not delay heartbeats.

pub(super) mod fetch_chunks;
pub(super) mod fetch_file;
pub(super) mod heartbeat;
pub(super) mod link;
pub(super) mod listener;

use crate::control_protocol::PeerAddress;
use dtrain_protocol::pending_peers::DeadlineStream;
use dtrain_protocol::tls::Tls;
use dtrain_protocol::{AttemptId, TlsIdentity, TrialId};
use rustls::{Connection, StreamOwned};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time limit for a connection to be established, and for a peer to authenticate.
const HANDSHAKE: Duration = Duration::from_secs(10);

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

/// The first frame on a connection, from the side that connects.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Greeting {
    /// The leader connects; the connection stays open.
    Lead,
    /// A request for one checkpoint file; the answer is its length, 8 bytes little-endian, and its bytes.
    Read {
        /// Index of the requesting host.
        host: u32,
        /// Name of the checkpoint folder, committed or not.
        folder: String,
        /// Name of the requested file in the checkpoint folder.
        file: String,
    },
    /// A request for chunks of checkpoint files, named in the [`ChunkRequest`] frames that follow.
    ReadChunks {
        /// Index of the requesting host.
        host: u32,
        /// Name of the checkpoint folder, committed or not.
        folder: String,
    },
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

/// The trial and the attempt, which appear in the names of its agents.
#[derive(Clone, Debug)]
pub(super) struct TrialAttempt {
    pub(super) trial: TrialId,
    pub(super) attempt: AttemptId,
}

impl TrialAttempt {
    /// Returns the name that the certificate of the agent of `host` must have.
    pub(super) fn of(&self, host: u32) -> String {
        TlsIdentity::agent_name(&self.trial, self.attempt, host)
    }
}

/// Connects to the agent of a host and sends a greeting.
pub(super) fn connect(
    tls: &Tls,
    names: &TrialAttempt,
    peer: &PeerAddress,
    greeting: &Greeting,
) -> io::Result<MutualTlsStream> {
    let address = peer.address.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
    let socket = with_handshake_deadline(TcpStream::connect_timeout(&address, HANDSHAKE)?)?;
    let connection = tls.client(&names.of(peer.host)).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    dtrain_protocol::frame::write(&mut stream, greeting)?;
    Ok(MutualTlsStream { tls: Connection::Client(stream.conn), socket: with_io_timeouts(stream.sock)? })
}

/// Sets the deadline of the handshake, and disables Nagle's algorithm.
fn with_handshake_deadline(socket: TcpStream) -> io::Result<DeadlineStream> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    Ok(DeadlineStream::new(socket, HANDSHAKE))
}

/// Replaces the deadline by a timeout of each read and write.
fn with_io_timeouts(socket: DeadlineStream) -> io::Result<TcpStream> {
    let socket = socket.into_inner();
    socket.set_read_timeout(Some(HANDSHAKE))?;
    socket.set_write_timeout(Some(HANDSHAKE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
