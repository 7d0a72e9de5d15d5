//! Rendezvous: connects the ranks of an attempt with each other, and authenticates them.
//!
//! After the handshake the connecting rank sends `[magic, attempt, channel, rank]`; the accepting one
//! compares that with the certificate and answers with the magic. Neither sends anything else before.

use super::super::{CommError, RankId};
use super::peer::PeerConnection;
use dtrain_protocol::pending_peers::{DeadlineStream, PendingPeer, UnauthenticatedPeers};
use dtrain_protocol::tls::{Tls, verify_client_name};
use dtrain_protocol::{Rank, TlsIdentity};
use rustls::{Connection, StreamOwned};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit for an unauthenticated peer to complete the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Limit on the number of unauthenticated peers at the same time.
const STRANGERS: usize = 256;

/// Limit on the encrypted bytes queued in one connection.
const SEND_BUFFER: usize = 256 << 10;

/// First word of a greeting: identifies the protocol and its version.
const MAGIC: u64 = 0x6474_7261_696e_0001;

/// The address, credentials and open connections of this rank, by which it connects with any rank of the
/// attempt.
#[derive(Debug)]
pub(super) struct PeerConnector {
    listener: TcpListener,
    seat: RankId,
    addresses: Vec<String>,
    tls: Tls,
    pub(super) deadline: Duration,
    lobby: Mutex<AcceptedPeers>,
    /// Peers whose handshake is in progress.
    strangers: Arc<UnauthenticatedPeers>,
}

/// Peers that have connected to this rank, and the last refusal.
#[derive(Debug, Default)]
struct AcceptedPeers {
    /// Authenticated connections that this rank has not asked for yet, by channel and rank of the peer, which
    /// may be ahead of this rank.
    proven: BTreeMap<(u8, u32), PeerConnection>,
    /// Reason for the last refusal; `None` if no peer was refused.
    refusal: Option<String>,
}

impl PeerConnector {
    pub(super) fn new(
        listener: TcpListener,
        seat: &RankId,
        peers: &[String],
        identity: &TlsIdentity,
        deadline: Duration,
    ) -> Result<Self, CommError> {
        let tls = Tls::new(identity).map_err(CommError::Link)?;
        Ok(Self {
            listener,
            seat: seat.clone(),
            addresses: peers.to_vec(),
            tls,
            deadline,
            lobby: Mutex::default(),
            strangers: UnauthenticatedPeers::new(STRANGERS),
        })
    }

    /// Returns connections with `members` for one channel, by index; `None` at `index`, which is this rank.
    pub(super) fn connect(
        self: &Arc<Self>,
        channel: u8,
        members: &[u32],
        index: u32,
    ) -> Result<Vec<Option<PeerConnection>>, CommError> {
        let end = Instant::now() + self.deadline;
        let (lower, higher) = members.split_at(index as usize);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| self.accept_all(channel, lower, end, &is_over));
            let calls = higher[1..].iter().map(|rank| self.call(channel, Rank(*rank), end));
            let called: Result<Vec<_>, _> = calls.collect();
            is_over.store(called.is_err(), Ordering::Relaxed);
            let accepted = accepted.join().expect("accepting does not panic");
            let (called, accepted) = (called?, accepted?);
            Ok(accepted.into_iter().map(Some).chain([None]).chain(called.into_iter().map(Some)).collect())
        })
    }

    /// Connects to `peer`, a higher rank; retries while that rank does not listen yet.
    fn call(&self, channel: u8, peer: Rank, end: Instant) -> Result<PeerConnection, CommError> {
        loop {
            let error = match self.call_once(channel, peer) {
                Ok(peer) => return Ok(peer),
                Err(error) => error,
            };
            let is_early = matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut);
            if !is_early {
                let peer = format!("rank {peer} at {}", self.addresses[peer.0 as usize]);
                return Err(CommError::Refused { peer, detail: error.to_string() });
            }
            if Instant::now() > end {
                return Err(self.timed_out(peer));
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn call_once(&self, channel: u8, peer: Rank) -> io::Result<PeerConnection> {
        let address = &self.addresses[peer.0 as usize];
        let address = address.to_socket_addrs()?.next();
        let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
        let socket = hurried(TcpStream::connect_timeout(&address, HANDSHAKE)?)?;
        let mut tls = self.tls.client(&self.name_of(peer)).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(SEND_BUFFER));
        let mut stream = StreamOwned::new(tls, socket);
        let (attempt, rank) = (self.seat.attempt.0, u64::from(self.seat.rank.0));
        for word in [MAGIC, attempt, u64::from(channel), rank] {
            stream.write_all(&word.to_le_bytes())?;
        }
        stream.flush()?;
        match read_word(&mut stream)? {
            MAGIC => {
                let socket = stream.sock.into_inner();
                PeerConnection::new(Connection::Client(stream.conn), socket, peer, self.seat.attempt)
            }
            _ => Err(io::Error::other("it uses another protocol; is it the same version of dtrain?")),
        }
    }

    /// Accepts connections until all of `lower` are connected for `channel`, or `is_over` returns `true`.
    ///
    /// Handshakes run on threads of their own, so that a silent peer delays no other.
    fn accept_all(
        self: &Arc<Self>,
        channel: u8,
        lower: &[u32],
        end: Instant,
        is_over: &AtomicBool,
    ) -> Result<Vec<PeerConnection>, CommError> {
        loop {
            let mut lobby = self.lobby();
            let Some(missing) = lower.iter().find(|rank| !lobby.proven.contains_key(&(channel, **rank)))
            else {
                let take = |rank: &u32| lobby.proven.remove(&(channel, *rank)).expect("it was just seen");
                return Ok(lower.iter().map(take).collect());
            };
            if Instant::now() > end || is_over.load(Ordering::Relaxed) {
                return Err(self.not_come(Rank(*missing), lobby.refusal.take()));
            }
            match self.listener.accept() {
                Ok((socket, from)) => {
                    let mesh = Arc::clone(self);
                    let Ok(stranger) = self.strangers.admit(&socket) else { continue };
                    std::thread::spawn(move || {
                        let result = mesh.greet(socket).map_err(|error| format!("{from}: {error}"));
                        mesh.sort_in(stranger, result);
                    });
                }
                Err(_) => {
                    drop(lobby);
                    sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn lobby(&self) -> MutexGuard<'_, AcceptedPeers> {
        self.lobby.lock().expect("no thread panics while it holds the lobby")
    }

    /// Stores an authenticated connection of a peer. The first one of a rank counts; a second is dropped.
    fn sort_in(&self, known: PendingPeer, result: Result<((u8, u32), PeerConnection), String>) {
        drop(known);
        let mut lobby = self.lobby();
        match result {
            Ok((key, peer)) => {
                lobby.proven.entry(key).or_insert(peer);
            }
            Err(refusal) => lobby.refusal = Some(refusal),
        }
    }

    /// Runs the handshake on `socket` with a peer that connected, and checks the rank that it claims to be.
    fn greet(&self, socket: TcpStream) -> io::Result<((u8, u32), PeerConnection)> {
        socket.set_nonblocking(false)?;
        let mut tls = self.tls.server().map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(SEND_BUFFER));
        let mut stream = StreamOwned::new(tls, hurried(socket)?);
        let mut words = [0; 4];
        for word in &mut words {
            *word = read_word(&mut stream)?;
        }
        let [magic, attempt, channel, rank] = words;
        let due = self.seat.attempt.0;
        if magic != MAGIC || attempt != due {
            return Err(io::Error::other(format!("it belongs to attempt {attempt}, expected attempt {due}")));
        }
        let key = u8::try_from(channel).ok().zip(u32::try_from(rank).ok());
        let key = key.filter(|(_, rank)| *rank < self.seat.rank.0);
        let key = key.ok_or_else(|| io::Error::other(format!("rank {rank} does not connect to this one")))?;
        verify_client_name(&stream.conn, &self.name_of(Rank(key.1))).map_err(io::Error::other)?;
        stream.write_all(&MAGIC.to_le_bytes())?;
        stream.flush()?;
        let socket = stream.sock.into_inner();
        let peer =
            PeerConnection::new(Connection::Server(stream.conn), socket, Rank(key.1), self.seat.attempt)?;
        Ok((key, peer))
    }

    /// Returns the name that the certificate of rank `rank` has in this attempt.
    fn name_of(&self, rank: Rank) -> String {
        TlsIdentity::name(&self.seat.trial, self.seat.attempt, rank)
    }

    fn timed_out(&self, peer: Rank) -> CommError {
        CommError::Silent { peer, seconds: self.deadline.as_secs_f64(), operation: "joining" }
    }

    fn not_come(&self, missing: Rank, last_refusal: Option<String>) -> CommError {
        match last_refusal {
            Some(detail) => CommError::Refused {
                peer: format!(
                    "an unknown peer, while waiting for rank \
                                                   {missing}"
                ),
                detail,
            },
            None => self.timed_out(missing),
        }
    }
}

/// Prepares a socket for the handshake: sets a deadline, and turns off Nagle's delay.
fn hurried(socket: TcpStream) -> io::Result<DeadlineStream> {
    socket.set_nodelay(true)?;
    Ok(DeadlineStream::new(socket, HANDSHAKE))
}

fn read_word(from: &mut impl Read) -> io::Result<u64> {
    let mut word = [0; 8];
    from.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}
