//! How the agents of one attempt talk: the leader, which owns the attempt, and a follower on every other host.
//!
//! Every agent has a [`listener`]: a listener at which only agents of the same attempt are let in. The leader connects to the
//! listeners of the followers and keeps a [`link`] to each. Files of checkpoints travel on connections of their own ([`fetch_file`], [`fetch_chunks`]), so that
//! they do not delay a heartbeat.

pub(super) mod fetch_chunks;
pub(super) mod fetch_file;
pub(super) mod link;
pub(super) mod listener;

use dtrain_protocol::pending_peers::DeadlineStream;
use dtrain_protocol::tls::Tls;
use dtrain_protocol::{AttemptId, TlsIdentity, TrialId};
use rustls::{Connection, StreamOwned};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time a connection may take, and a stranger to prove who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection of two agents that know who the other is.
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

/// Who an agent is to the other agents of its attempt, and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentIdentity {
    /// Index of its host among the hosts of the attempt; the leader's is 0.
    pub host: u32,
    /// Address to bind, without a port: the one under which the other hosts reach this one.
    pub bind: String,
    /// Its certificate.
    pub identity: TlsIdentity,
    /// Whether the trial's checkpoints lie in one folder that all hosts see.
    #[serde(default)]
    pub is_shared: bool,
}

/// Where an agent listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Index of its host.
    pub host: u32,
    /// What people call the host.
    pub name: String,
    /// Address and port.
    pub address: String,
}

/// The first frame on a connection, by who connects.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Greeting {
    /// The leader, to stay.
    Lead,
    /// An agent that wants one file of a checkpoint; the answer is its length, 8 bytes little-endian, and its bytes.
    Read {
        /// Index of the asking agent's host.
        host: u32,
        /// Name of the checkpoint's folder, committed or not.
        folder: String,
        /// Name of the file in it.
        file: String,
    },
    /// An agent that wants chunks of files of a checkpoint, which it names in frames of [`ChunkRequest`] that follow.
    ReadChunks {
        /// Index of the asking agent's host.
        host: u32,
        /// Name of the checkpoint's folder, committed or not.
        folder: String,
    },
}

/// Chunks of a file that an agent wants; the answer is the file's length, as to [`Greeting::Read`], and the bytes of each chunk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChunkRequest {
    /// Name of the file.
    file: String,
    /// Indices of the chunks.
    chunks: Vec<u64>,
}

/// The names of an attempt's agents.
#[derive(Clone, Debug)]
pub(super) struct TrialAttempt {
    pub(super) trial: TrialId,
    pub(super) attempt: AttemptId,
}

impl TrialAttempt {
    /// The name in the certificate of the agent of `host`.
    pub(super) fn of(&self, host: u32) -> String {
        TlsIdentity::agent_name(&self.trial, self.attempt, host)
    }
}

/// Connects with the agent of a host and greets it.
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

/// A socket for the handshake, and without waiting for more to send.
fn with_handshake_deadline(socket: TcpStream) -> io::Result<DeadlineStream> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    Ok(DeadlineStream::new(socket, HANDSHAKE))
}

/// The socket after the handshake: every read and write has a limit of its own.
fn with_io_timeouts(socket: DeadlineStream) -> io::Result<TcpStream> {
    let socket = socket.into_inner();
    socket.set_read_timeout(Some(HANDSHAKE))?;
    socket.set_write_timeout(Some(HANDSHAKE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
