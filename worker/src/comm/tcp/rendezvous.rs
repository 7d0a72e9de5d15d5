//! Rendezvous: connects the ranks of an attempt with each other. A [`Handshake`] authenticates each connection.

use super::super::{CommError, RankId};
use super::handshake::Handshake;
use super::peer::PeerConnection;
use dtrain_protocol::pending_peers::{PendingPeer, UnauthenticatedPeers};
use dtrain_protocol::tls::Tls;
use dtrain_protocol::{Rank, TlsIdentity};
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Limit on the number of unauthenticated peers at the same time.
const MAX_UNAUTHENTICATED: usize = 256;

/// The address, credentials and open connections of this rank, by which it connects with any rank of the
/// attempt.
#[derive(Debug)]
pub(super) struct PeerConnector {
    listener: TcpListener,
    addresses: Vec<String>,
    handshake: Handshake,
    pub(super) deadline: Duration,
    accepted: Mutex<AcceptedPeers>,
    /// Peers whose handshake is in progress.
    unauthenticated: Arc<UnauthenticatedPeers>,
}

/// Peers that have connected to this rank, and the last refusal.
#[derive(Debug, Default)]
struct AcceptedPeers {
    /// Authenticated connections that this rank has not asked for yet, by channel and rank of the peer, which
    /// may be ahead of this rank.
    authenticated: BTreeMap<(u8, u32), PeerConnection>,
    /// Reason for the last refusal; `None` if no peer was refused.
    refusal: Option<String>,
}

impl PeerConnector {
    pub(super) fn new(
        listener: TcpListener,
        own: &RankId,
        peers: &[String],
        identity: &TlsIdentity,
        deadline: Duration,
    ) -> Result<Self, CommError> {
        let tls = Tls::new(identity).map_err(CommError::Link)?;
        Ok(Self {
            listener,
            addresses: peers.to_vec(),
            handshake: Handshake::new(own.clone(), tls),
            deadline,
            accepted: Mutex::default(),
            unauthenticated: UnauthenticatedPeers::new(MAX_UNAUTHENTICATED),
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
            let calls = higher[1..].iter().map(|rank| self.connect_to(channel, Rank(*rank), end));
            let called: Result<Vec<_>, _> = calls.collect();
            is_over.store(called.is_err(), Ordering::Relaxed);
            let accepted = accepted.join().expect("accepting does not panic");
            let (called, accepted) = (called?, accepted?);
            Ok(accepted.into_iter().map(Some).chain([None]).chain(called.into_iter().map(Some)).collect())
        })
    }

    /// Connects to `peer`, a higher rank; retries while that rank does not listen yet.
    fn connect_to(&self, channel: u8, peer: Rank, end: Instant) -> Result<PeerConnection, CommError> {
        loop {
            let error = match self.handshake.connect(&self.addresses[peer.0 as usize], channel, peer) {
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
            let mut peers = self.accepted();
            let Some(missing) =
                lower.iter().find(|rank| !peers.authenticated.contains_key(&(channel, **rank)))
            else {
                let take =
                    |rank: &u32| peers.authenticated.remove(&(channel, *rank)).expect("it was just seen");
                return Ok(lower.iter().map(take).collect());
            };
            if Instant::now() > end || is_over.load(Ordering::Relaxed) {
                return Err(self.missing_peer(Rank(*missing), peers.refusal.take()));
            }
            match self.listener.accept() {
                Ok((socket, from)) => {
                    let connector = Arc::clone(self);
                    let Ok(pending) = self.unauthenticated.admit(&socket) else { continue };
                    std::thread::spawn(move || {
                        let result =
                            connector.handshake.accept(socket).map_err(|error| format!("{from}: {error}"));
                        connector.record(pending, result);
                    });
                }
                Err(_) => {
                    drop(peers);
                    sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn accepted(&self) -> MutexGuard<'_, AcceptedPeers> {
        self.accepted.lock().expect("no thread panics while it holds the accepted peers")
    }

    /// Stores an authenticated connection of a peer. The first one of a rank counts; a second is dropped.
    fn record(&self, pending: PendingPeer, result: Result<((u8, u32), PeerConnection), String>) {
        drop(pending);
        let mut peers = self.accepted();
        match result {
            Ok((key, peer)) => {
                peers.authenticated.entry(key).or_insert(peer);
            }
            Err(refusal) => peers.refusal = Some(refusal),
        }
    }

    fn timed_out(&self, peer: Rank) -> CommError {
        CommError::Silent { peer, seconds: self.deadline.as_secs_f64(), operation: "joining" }
    }

    fn missing_peer(&self, missing: Rank, last_refusal: Option<String>) -> CommError {
        match last_refusal {
            Some(detail) => CommError::Refused {
                peer: format!("an unknown peer, while waiting for rank {missing}"),
                detail,
            },
            None => self.timed_out(missing),
        }
    }
}
