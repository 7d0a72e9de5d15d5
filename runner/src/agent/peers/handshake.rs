//! The handshake of two agents: mutual TLS, by which each proves that it belongs to the attempt, and then the
//! greeting, by which the connecting agent says what the connection is for.

use super::MutualTlsStream;
use crate::control_protocol::PeerAddress;
use dtrain_protocol::pending_peers::DeadlineStream;
use dtrain_protocol::tls::Tls;
use dtrain_protocol::{AttemptId, TlsIdentity, TrialId};
use rustls::{Connection, StreamOwned};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a connection to be established, and for a peer to authenticate.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The first frame on a connection, from the side that connects.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Time for which a connection that the peer closes is tried again.
const RETRY_FOR: Duration = Duration::from_secs(2);

/// Pause before a connection that the peer closed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// The byte with which an agent answers [`Greeting::Lead`], so that the leader knows that it was admitted.
pub(super) const ADMITTED: u8 = 1;

/// Connects to the agent of a host and sends a greeting. A connection that is closed before the peer knows this agent, as
/// in a flood of others, is tried again.
pub(in crate::agent) fn connect(
    tls: &Tls,
    names: &TrialAttempt,
    peer: &PeerAddress,
    greeting: &Greeting,
) -> io::Result<MutualTlsStream> {
    let until = Instant::now() + RETRY_FOR;
    loop {
        match connect_once(tls, names, peer, greeting) {
            Err(error) if is_closed(&error) && Instant::now() < until => thread::sleep(RETRY_AFTER),
            connected => return connected,
        }
    }
}

/// Returns `true` if the peer closed a connection that it had accepted.
fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
    )
}

fn connect_once(
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
    if *greeting == Greeting::Lead {
        stream.read_exact(&mut [0])?;
    }
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
