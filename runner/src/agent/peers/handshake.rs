//! The handshake of two agents: mutual TLS, by which each proves that it belongs to the attempt, and then the
//! greeting, by which the connecting agent says what the connection is for.

use super::MutualTlsStream;
use crate::control_protocol::PeerAddress;
use dtrain_protocol::pending_peers::DeadlineStream;
use dtrain_protocol::tls::Tls;
use dtrain_protocol::{AttemptId, TlsIdentity, TrialId};
use rustls::{Connection, StreamOwned};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time limit for a connection to be established, and for a peer to authenticate.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The first frame on a connection, from the side that connects.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::agent) enum Greeting {
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
    /// A request for chunks of checkpoint files, named in the [`ChunkRequest`](super::ChunkRequest) frames that follow.
    ReadChunks {
        /// Index of the requesting host.
        host: u32,
        /// Name of the checkpoint folder, committed or not.
        folder: String,
    },
}

/// The trial and the attempt, which appear in the names of its agents.
#[derive(Clone, Debug)]
pub(in crate::agent) struct TrialAttempt {
    pub(in crate::agent) trial: TrialId,
    pub(in crate::agent) attempt: AttemptId,
}

impl TrialAttempt {
    /// Returns the name that the certificate of the agent of `host` must have.
    pub(in crate::agent) fn of(&self, host: u32) -> String {
        TlsIdentity::agent_name(&self.trial, self.attempt, host)
    }
}

/// Connects to the agent of a host and sends a greeting.
pub(in crate::agent) fn connect(
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
pub(super) fn with_handshake_deadline(socket: TcpStream) -> io::Result<DeadlineStream> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    Ok(DeadlineStream::new(socket, HANDSHAKE))
}

/// Replaces the deadline by a timeout of each read and write.
pub(super) fn with_io_timeouts(socket: DeadlineStream) -> io::Result<TcpStream> {
    let socket = socket.into_inner();
    socket.set_read_timeout(Some(HANDSHAKE))?;
    socket.set_write_timeout(Some(HANDSHAKE))?;
    Ok(socket)
}
