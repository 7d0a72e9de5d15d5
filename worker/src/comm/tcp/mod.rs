//! TCP: collectives between hosts, over one TLS 1.3 connection for each pair of ranks.
//!
//! Both ends show a certificate of the attempt's own authority whose name is that of the rank they claim to
//! be; a connection that cannot is closed before a byte of payload is read. Messages move through all
//! connections at the same time, whichever can move, so that ranks that all send first do not wait for each
//! other. Every message goes straight to its receiver: bytes are those of a ring, and the latency is one
//! step in place of `n - 1`.

mod handshake;
mod heartbeats;
mod peer;
mod rendezvous;

use super::heartbeat::HeartbeatThread;
use super::{
    CommError, Incoming, Outgoing, ProcessGroup, RankId, SMALL_VALUES, WaitPolicy, check_members, rank_range,
    sum_in_order,
};
use dtrain_protocol::{Channel, TlsIdentity};
use heartbeats::HeartbeatConnection;
use peer::{MessagePair, PeerConnection};
use rendezvous::PeerConnector;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::Arc;

/// Values in one piece of a long buffer; pieces limit the memory needed for summing.
const PIECE_VALUES: usize = 1 << 20;

/// Channel number in the handshake of a heartbeat connection.
const HEARTBEATS: u8 = u8::MAX;

/// A bound address on which no connection has been accepted yet.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Binds a free port of `address`, a host name or number without a port; also returns `host:port`.
    pub fn bind(address: &str) -> Result<(Self, String), CommError> {
        let failed = |error| CommError::Link(format!("listening on {address}: {error}"));
        let listener = TcpListener::bind((address, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Ok((Self(listener), bound.to_string()))
    }

    /// Connects with all ranks of the attempt; `peers` has their addresses, by rank.
    ///
    /// A lower rank connects to a higher one. Returns when every connection is open and authenticated.
    pub fn connect(
        self,
        seat: &RankId,
        peers: &[String],
        identity: &TlsIdentity,
        waits: &WaitPolicy,
    ) -> Result<Tcp, CommError> {
        if peers.len() != seat.ranks as usize {
            let detail = format!("{} ranks have {} addresses", seat.ranks, peers.len());
            return Err(CommError::Link(detail));
        }
        let mesh = Arc::new(PeerConnector::new(self.0, seat, peers, identity, waits.silence())?);
        let all: Vec<u32> = (0..seat.ranks).collect();
        let lines = mesh.connect(HEARTBEATS, &all, seat.rank.0)?;
        let mut lines: Vec<_> = lines.into_iter().flatten().map(HeartbeatConnection::of).collect();
        let heart =
            HeartbeatThread::start(waits, seat.ranks, move |pulse| heartbeats::beat(&mut lines, pulse))?;
        Tcp::of(mesh, Arc::new(heart), 0, all, seat.rank.0)
    }
}

/// The group of ranks that are connected by TLS.
#[derive(Debug)]
pub struct Tcp {
    mesh: Arc<PeerConnector>,
    heart: Arc<HeartbeatThread>,
    /// Ranks of the attempt that are in this group, ascending.
    members: Vec<u32>,
    /// Index of this rank in `members`.
    index: u32,
    /// Connections by index in the group; `None` for this rank.
    peers: Vec<Option<PeerConnection>>,
    /// Buffer for received values that are to be summed. It is reused, because fresh memory costs a page
    /// fault for each page.
    scratch: Vec<f32>,
    sent: u64,
}

impl Tcp {
    fn of(
        mesh: Arc<PeerConnector>,
        heart: Arc<HeartbeatThread>,
        channel: u8,
        members: Vec<u32>,
        index: u32,
    ) -> Result<Self, CommError> {
        let peers = mesh.connect(channel, &members, index)?;
        Ok(Self { mesh, heart, members, index, peers, scratch: Vec::new(), sent: 0 })
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (index, size) = (self.index, self.size());
        (1..size).map(move |distance| (index + distance) % size)
    }

    /// Sends and receives all messages of one operation; `sends` and `receives` are by index in the group,
    /// and an empty message is sent as well.
    fn transfer<'a>(
        &mut self,
        operation: &'static str,
        sends: impl IntoIterator<Item = (u32, &'a [f32])>,
        receives: impl IntoIterator<Item = (u32, &'a mut [f32])>,
    ) -> Result<(), CommError> {
        let mut transfers: Vec<_> = (0..self.size()).map(|_| MessagePair::default()).collect();
        for (to, values) in sends {
            self.sent += 4 * values.len() as u64;
            transfers[to as usize].send(bytemuck::cast_slice(values));
        }
        for (from, values) in receives {
            transfers[from as usize].receive(bytemuck::cast_slice_mut(values));
        }
        let pairs = self.peers.iter_mut().zip(transfers);
        let mut pairs: Vec<_> =
            pairs.filter_map(|(peer, transfer)| Some((peer.as_mut()?, transfer))).collect();
        peer::move_all(&mut pairs, operation, self.heart.pulse())
    }

    /// Sends `piece(p)` of `values` to every rank `p`, and adds the received pieces to this rank's own.
    ///
    /// A rank that owns an empty piece gets no message.
    fn sum_pieces(
        &mut self,
        operation: &'static str,
        values: &mut [f32],
        piece: impl Fn(u32) -> Range<usize>,
    ) -> Result<(), CommError> {
        let (me, mine) = (self.index, piece(self.index));
        let mut all = std::mem::take(&mut self.scratch);
        all.resize(all.len().max(mine.len() * self.size() as usize), 0.0);
        let rooms = &mut all[..mine.len() * self.size() as usize];
        let theirs = rooms.chunks_mut(mine.len().max(1)).zip(0..).map(|(room, index)| (index, room));
        let sends = self.others().map(|to| (to, &values[piece(to)])).filter(|(_, values)| !values.is_empty());
        let moved = self.transfer(operation, sends, theirs.filter(|(index, _)| *index != me));
        if moved.is_ok() && !mine.is_empty() {
            rooms[me as usize * mine.len()..][..mine.len()].copy_from_slice(&values[mine.clone()]);
            sum_in_order(&rooms.chunks(mine.len()).collect::<Vec<_>>(), &mut values[mine]);
        }
        self.scratch = all;
        moved
    }
}

impl ProcessGroup for Tcp {
    fn rank(&self) -> u32 {
        self.index
    }

    #[expect(clippy::cast_possible_truncation, reason = "made from a u32")]
    fn size(&self) -> u32 {
        self.members.len() as u32
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        if self.size() == 1 || values.is_empty() {
            return Ok(());
        }
        if values.len() <= SMALL_VALUES {
            let length = values.len();
            return self.sum_pieces("all-reduce", values, |_| 0..length);
        }
        for piece in values.chunks_mut(PIECE_VALUES) {
            self.reduce_scatter(piece)?;
            self.all_gather(piece)?;
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, values: &mut [f32]) -> Result<Range<usize>, CommError> {
        let (length, size) = (values.len(), self.size());
        let each = PIECE_VALUES / size as usize;
        let longest = rank_range(length, 0, size).len();
        for begin in (0..longest).step_by(each) {
            self.sum_pieces("reduce-scatter", values, |rank| {
                let part = rank_range(length, rank, size);
                (part.start + begin).min(part.end)..(part.start + begin + each).min(part.end)
            })?;
        }
        Ok(rank_range(length, self.index, size))
    }

    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (length, size, me) = (values.len(), self.size(), self.index);
        let mut rest = values;
        let mut own: &[f32] = &[];
        let mut rooms = Vec::new();
        for rank in 0..size {
            let (room, tail) = rest.split_at_mut(rank_range(length, rank, size).len());
            rest = tail;
            if rank == me {
                own = room;
            } else {
                rooms.push((rank, room));
            }
        }
        self.transfer("all-gather", self.others().map(|to| (to, own)), rooms)
    }

    fn all_to_all(&mut self, send: &[f32], recv: &mut [f32]) -> Result<(), CommError> {
        let size = self.size() as usize;
        assert!(send.len() == recv.len() && send.len().is_multiple_of(size), "blocks are equal");
        let (me, block) = (self.index, send.len() / size);
        let at = |rank: u32| rank as usize * block..(rank as usize + 1) * block;
        recv[at(me)].copy_from_slice(&send[at(me)]);
        if block == 0 {
            return Ok(());
        }
        let rooms = recv.chunks_mut(block).zip(0..).map(|(room, index)| (index, room));
        let sends = self.others().map(|to| (to, &send[at(to)]));
        self.transfer("all-to-all", sends, rooms.filter(|(index, _)| *index != me))
    }

    fn broadcast(&mut self, root: u32, values: &mut [f32]) -> Result<(), CommError> {
        if root == self.index {
            let values = &*values;
            return self.transfer("broadcast", self.others().map(|to| (to, values)), []);
        }
        self.transfer("broadcast", [], [(root, values)])
    }

    fn exchange(&mut self, send: Option<Outgoing<'_>>, recv: Option<Incoming<'_>>) -> Result<(), CommError> {
        self.transfer(
            "exchange",
            send.map(|send| (send.to, send.values)),
            recv.map(|recv| (recv.from, recv.values)),
        )
    }

    fn bytes_sent(&self) -> u64 {
        self.sent
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let nothing: [f32; 0] = [];
        let mut rooms: Vec<[f32; 0]> = vec![[]; self.size() as usize];
        let me = self.index;
        let rooms = rooms.iter_mut().zip(0..).map(|(room, index)| (index, &mut room[..]));
        self.transfer(
            "barrier",
            self.others().map(|to| (to, &nothing[..])),
            rooms.filter(|(index, _)| *index != me),
        )
    }

    fn split(&mut self, channel: Channel, members: &[u32]) -> Result<Box<dyn ProcessGroup>, CommError> {
        check_members(members, self.index, self.size());
        #[expect(clippy::cast_possible_truncation, reason = "below the size, a u32")]
        let index = members.iter().take_while(|member| **member < self.index).count() as u32;
        let members = members.iter().map(|member| self.members[*member as usize]).collect();
        let (mesh, heart) = (Arc::clone(&self.mesh), Arc::clone(&self.heart));
        Ok(Box::new(Self::of(mesh, heart, channel as u8, members, index)?))
    }
}
