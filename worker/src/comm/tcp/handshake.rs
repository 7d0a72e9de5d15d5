//! The handshake of two ranks: TLS, in which both show their certificates, and then a greeting.
//!
//! The connecting rank sends `[magic, attempt, channel, rank]`; the accepting one compares that with the
//! certificate and answers with the magic. Neither sends anything else before.

use super::super::RankId;
use super::peer::PeerConnection;
use dtrain_protocol::pending_peers::DeadlineStream;
use dtrain_protocol::tls::{Tls, verify_client_name};
use dtrain_protocol::{Rank, TlsIdentity};
use rustls::{Connection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time limit for an unauthenticated peer to complete the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Limit on the encrypted bytes queued in one connection.
const SEND_BUFFER: usize = 256 << 10;

/// First word of a greeting: identifies the protocol and its version.
const MAGIC: u64 = 0x6474_7261_696e_0001;

/// The identity and the certificate by which this rank authenticates itself to other ranks, and they to it.
#[derive(Debug)]
pub(super) struct Handshake {
    own: RankId,
    tls: Tls,
}

impl Handshake {
    pub(super) fn new(own: RankId, tls: Tls) -> Self {
        Self { own, tls }
    }

    /// Connects to `peer` at `address` for one channel, and authenticates.
    pub(super) fn connect(&self, address: &str, channel: u8, peer: Rank) -> io::Result<PeerConnection> {
        let address = address.to_socket_addrs()?.next();
        let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
        let socket = with_handshake_deadline(TcpStream::connect_timeout(&address, HANDSHAKE)?)?;
        let mut tls = self.tls.client(&self.name_of(peer)).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(SEND_BUFFER));
        let mut stream = StreamOwned::new(tls, socket);
        let (attempt, rank) = (self.own.attempt.0, u64::from(self.own.rank.0));
        for word in [MAGIC, attempt, u64::from(channel), rank] {
            stream.write_all(&word.to_le_bytes())?;
        }
        stream.flush()?;
        match read_word(&mut stream)? {
            MAGIC => {
                let socket = stream.sock.into_inner();
                PeerConnection::new(Connection::Client(stream.conn), socket, peer, self.own.attempt)
            }
            _ => Err(io::Error::other("it uses another protocol; is it the same version of dtrain?")),
        }
    }

    /// Authenticates a peer that connected through `socket`. Returns the connection with its channel and the
    /// rank of the peer, which its certificate proves.
    pub(super) fn accept(&self, socket: TcpStream) -> io::Result<((u8, u32), PeerConnection)> {
        socket.set_nonblocking(false)?;
        let mut tls = self.tls.server().map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(SEND_BUFFER));
        let mut stream = StreamOwned::new(tls, with_handshake_deadline(socket)?);
        let mut words = [0; 4];
        for word in &mut words {
            *word = read_word(&mut stream)?;
        }
        let [magic, attempt, channel, rank] = words;
        let expected = self.own.attempt.0;
        if magic != MAGIC || attempt != expected {
            return Err(io::Error::other(format!(
                "it belongs to attempt {attempt}, expected attempt {expected}"
            )));
        }
        let key = u8::try_from(channel).ok().zip(u32::try_from(rank).ok());
        let key = key.filter(|(_, rank)| *rank < self.own.rank.0);
        let key = key.ok_or_else(|| io::Error::other(format!("rank {rank} does not connect to this one")))?;
        verify_client_name(&stream.conn, &self.name_of(Rank(key.1))).map_err(io::Error::other)?;
        stream.write_all(&MAGIC.to_le_bytes())?;
        stream.flush()?;
        let socket = stream.sock.into_inner();
        let peer =
            PeerConnection::new(Connection::Server(stream.conn), socket, Rank(key.1), self.own.attempt)?;
        Ok((key, peer))
    }

    /// Returns the name that the certificate of rank `rank` has in this attempt.
    fn name_of(&self, rank: Rank) -> String {
        TlsIdentity::name(&self.own.trial, self.own.attempt, rank)
    }
}

/// Sets the deadline of the handshake, and disables Nagle's algorithm.
fn with_handshake_deadline(socket: TcpStream) -> io::Result<DeadlineStream> {
    socket.set_nodelay(true)?;
    Ok(DeadlineStream::new(socket, HANDSHAKE))
}

fn read_word(from: &mut impl Read) -> io::Result<u64> {
    let mut word = [0; 8];
    from.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}
