//! Collectives between processes of one host, through a mapping that all of them inherit.
//!
//! Work goes in rounds that every rank of the group counts alike. In a round a rank writes into one of its two
//! slots, says so by raising `ready`, reads the others' slots when they are ready, and says so by raising `done`. A
//! slot is written again only when every other rank is done with its last content, so with two slots a rank can fill
//! the next round while the others still read this one. Large buffers go through in pieces of one slot; the slots of
//! a few ranks stay in the shared cache.
//!
//! Where things lie is told by [`dtrain_protocol::mapping`]. Ranks that wait spin briefly, then give the core
//! away, then sleep for a sixteenth of the time waited so far: with more ranks than cores a waiting rank must not
//! take the time of the one that it waits for.

#![expect(unsafe_code, reason = "memory that several processes write has no safe view")]

use super::{CommError, Group, Incoming, Outgoing, SMALL_VALUES, Seat, check_members, part, sum_in_order};
use dtrain_protocol::mapping::{self, MAIL_VALUES, SLOT_VALUES};
use dtrain_protocol::{Channel, Rank};
use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Offsets inside a control block. `ready` and the tags are written by the owner before the others read; `done` is
/// written by the owner after it has read.
const READY: u64 = 0;
const TAGS: u64 = 8;
const DONE: u64 = 128;
const JOINED: u64 = 256;
const PROCESS: u64 = 264;
const LEFT: u64 = 272;

/// Offsets inside the control block of a pair.
const SENT: u64 = 0;
const LENGTH: u64 = 8;
const TAKEN: u64 = 128;

/// The group of processes (or threads) that share one mapping.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Arc<Mapping>,
    channel: u64,
    /// Ranks of the attempt that are in this group, ascending.
    members: Vec<u32>,
    /// Index of this rank among them.
    index: u32,
    /// Rounds begun.
    round: u64,
    /// Bytes that others read from this rank.
    sent: u64,
    deadline: Duration,
}

#[derive(Debug)]
struct Mapping {
    raw: MmapRaw,
    ranks: u32,
    /// How often to look at a counter before giving the core away.
    spins: u32,
    /// Handles of the peers' processes, by rank; `None` for this process.
    processes: Vec<Option<OwnedFd>>,
}

impl SharedMemory {
    /// Takes over the inherited `descriptor`, and waits for all ranks of the seat's attempt to do the same.
    ///
    /// The descriptor must be one that this process was given for this purpose: it is closed here.
    pub fn inherit(descriptor: i32, bytes: u64, seat: &Seat, deadline: Duration) -> Result<Self, CommError> {
        if descriptor < 3 {
            return Err(CommError::Link(format!("descriptor {descriptor} is a standard stream")));
        }
        // SAFETY: the assignment hands this descriptor over to this call alone; were it not open, `fstat` says so.
        let file = unsafe { File::from_raw_fd(descriptor) };
        Self::open(&file, bytes, seat, deadline)
    }

    /// Maps `file` and waits for all ranks of the seat's attempt.
    pub fn open(file: &File, bytes: u64, seat: &Seat, deadline: Duration) -> Result<Self, CommError> {
        let link = |what: &str, error: std::io::Error| CommError::Link(format!("{what}: {error}"));
        let needed = mapping::bytes(seat.ranks);
        let length = file.metadata().map_err(|e| link("the shared memory is not an open file", e))?.len();
        if bytes < needed || length < needed {
            let detail = format!(
                "{} ranks share {needed} bytes, but {bytes} were promised and {length} are there; \
                 the agent and this program must be of one version",
                seat.ranks
            );
            return Err(CommError::Link(detail));
        }
        let mapped = usize::try_from(needed).expect("addresses have 64 bits");
        let raw =
            MmapOptions::new().len(mapped).map_raw(file).map_err(|e| link("mapping shared memory", e))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if seat.ranks as usize <= cores { 1000 } else { 100 };
        let mut mapping = Mapping { raw, ranks: seat.ranks, spins, processes: Vec::new() };
        mapping.meet(seat, deadline)?;
        let members = (0..seat.ranks).collect();
        Ok(Self::new(Arc::new(mapping), 0, members, seat.rank.0, deadline))
    }

    fn new(mapping: Arc<Mapping>, channel: u64, members: Vec<u32>, index: u32, deadline: Duration) -> Self {
        let group = Self { mapping, channel, members, index, round: 0, sent: 0, deadline };
        for which in 0..2 {
            // First touch costs a page fault each: better now than in the first step.
            group.own_slot(which, SLOT_VALUES).fill(0.0);
        }
        group
    }

    /// Offset of a counter of member `index`.
    fn control(&self, index: u32, field: u64) -> u64 {
        mapping::control(self.mapping.ranks, self.channel, self.members[index as usize]) + field
    }

    fn counter(&self, index: u32, field: u64) -> &AtomicU64 {
        self.mapping.counter(self.control(index, field))
    }

    /// This rank's slot for round `round`.
    #[expect(clippy::mut_from_ref, reason = "the memory is not reached through self; see the safety note")]
    fn own_slot(&self, round: u64, length: usize) -> &mut [f32] {
        assert!(length <= SLOT_VALUES, "a piece fits into a slot");
        let slot =
            mapping::slot(self.mapping.ranks, self.channel, self.members[self.index as usize], round % 2);
        // SAFETY: only this rank writes its own slot, through a group that is borrowed mutably or being made, and
        // only after all others were done with its last content.
        unsafe { self.mapping.values_mut(slot, length) }
    }

    /// Slot of member `index` for round `round`.
    fn slot(&self, index: u32, round: u64, length: usize) -> &[f32] {
        assert!(length <= SLOT_VALUES, "a piece fits into a slot");
        let slot = mapping::slot(self.mapping.ranks, self.channel, self.members[index as usize], round % 2);
        // SAFETY: read between the owner's `ready` and this rank's `done`, while the owner does not write.
        unsafe { self.mapping.values(slot, length) }
    }

    /// Waits until a counter of member `index` has reached `goal`.
    fn wait(&self, index: u32, field: u64, goal: u64, operation: &'static str) -> Result<(), CommError> {
        let counter = self.counter(index, field);
        let mut patience = Patience::new(self.mapping.spins);
        while counter.load(Ordering::Acquire) < goal {
            if patience.pause() {
                self.is_there(index, operation, &patience, || counter.load(Ordering::Acquire) >= goal)?;
            }
        }
        Ok(())
    }

    /// Fails when member `index` is gone or was silent for too long, unless `came` tells that it did its part.
    fn is_there(
        &self,
        index: u32,
        operation: &'static str,
        patience: &Patience,
        came: impl Fn() -> bool,
    ) -> Result<(), CommError> {
        let peer = Rank(self.members[index as usize]);
        let lost = |detail: &str| Err(CommError::PeerLost { peer, operation, detail: detail.into() });
        let has_left = self.counter(index, LEFT).load(Ordering::Acquire) != 0;
        let has_ended = self.mapping.has_ended(peer.0);
        if came() {
            return Ok(());
        }
        if has_left {
            return lost("it left the group");
        }
        if has_ended {
            return lost("its process ended");
        }
        let waited = patience.waited();
        if waited > self.deadline {
            return Err(CommError::TimedOut { peer, seconds: waited.as_secs_f64(), operation });
        }
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (index, size) = (self.index, self.size());
        (1..size).map(move |distance| (index + distance) % size)
    }

    /// Begins a round: `write` fills this rank's slot. `tag` is what all ranks must agree on.
    fn publish(
        &mut self,
        operation: Operation,
        length: usize,
        write: impl FnOnce(&mut [f32]),
    ) -> Result<(), CommError> {
        let round = self.round;
        for other in self.others() {
            // Slot `round % 2` was last read in round `round - 2`.
            self.wait(other, DONE, round.saturating_sub(1), operation.name())
                .inspect_err(|_| self.break_off())?;
        }
        self.round += 1;
        write(self.own_slot(round, length.min(SLOT_VALUES)));
        let tag = operation.tag(length);
        self.counter(self.index, TAGS + 8 * (round % 2)).store(tag, Ordering::Relaxed);
        self.counter(self.index, READY).store(round + 1, Ordering::Release);
        Ok(())
    }

    /// Waits until member `other` has published `round` too.
    fn await_peer(
        &self,
        operation: Operation,
        length: usize,
        round: u64,
        other: u32,
    ) -> Result<(), CommError> {
        self.wait(other, READY, round + 1, operation.name())?;
        let tag = self.counter(other, TAGS + 8 * (round % 2)).load(Ordering::Relaxed);
        if tag == operation.tag(length) {
            return Ok(());
        }
        let peer = Rank(self.members[other as usize]);
        let detail = format!("{} was due, {} came", describe(operation.tag(length)), describe(tag));
        Err(CommError::OutOfStep { peer, operation: operation.name(), detail })
    }

    /// Ends round `round`: `read` sees the slot of each other rank as soon as it is there.
    fn consume(
        &mut self,
        operation: Operation,
        length: usize,
        round: u64,
        mut read: impl FnMut(u32, &[f32]),
    ) -> Result<(), CommError> {
        for other in self.others() {
            self.await_peer(operation, length, round, other).inspect_err(|_| self.break_off())?;
            read(other, self.slot(other, round, length.min(SLOT_VALUES)));
        }
        self.counter(self.index, DONE).store(round + 1, Ordering::Release);
        Ok(())
    }

    /// Ends round `round` by adding every rank's `range` of its slot in rank order; `own` holds this rank's.
    fn consume_sum(
        &mut self,
        operation: Operation,
        length: usize,
        round: u64,
        range: Range<usize>,
        own: &mut [f32],
    ) -> Result<(), CommError> {
        for other in self.others() {
            self.await_peer(operation, length, round, other).inspect_err(|_| self.break_off())?;
        }
        if let [first, second] = self.members[..] {
            // Addition of two is the same in both orders, so the sum can be made in place.
            debug_assert!(first < second);
            let theirs = &self.slot(1 - self.index, round, length)[range];
            own.iter_mut().zip(theirs).for_each(|(own, value)| *own += value);
        } else {
            self.sum_many(round, range, own);
        }
        self.counter(self.index, DONE).store(round + 1, Ordering::Release);
        Ok(())
    }

    fn sum_many(&self, round: u64, range: Range<usize>, own: &mut [f32]) {
        const BLOCK: usize = 2048;
        let mut sum = [0.0; BLOCK];
        for begin in range.clone().step_by(BLOCK) {
            let block = begin..(begin + BLOCK).min(range.end);
            let own = &mut own[block.start - range.start..block.end - range.start];
            let sum = &mut sum[..block.len()];
            let parts: Vec<&[f32]> = (0..self.size())
                .map(|index| match index == self.index {
                    true => &*own,
                    false => &self.slot(index, round, block.end)[block.clone()],
                })
                .collect();
            sum_in_order(&parts, sum);
            own.copy_from_slice(sum);
        }
    }

    /// Counts that `readers` others read `length` values of this rank.
    fn shown(&mut self, length: usize, readers: u32) {
        self.sent += 4 * length as u64 * u64::from(readers);
    }

    /// Tells the others that this rank will not come again.
    fn break_off(&self) {
        self.counter(self.index, LEFT).store(1, Ordering::Release);
    }

    /// One round in which all ranks show all of `values` and each adds for itself.
    fn all_reduce_small(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (round, length) = (self.round, values.len());
        self.shown(length, self.size() - 1);
        self.publish(Operation::AllReduce, length, |slot| slot.copy_from_slice(values))?;
        self.consume_sum(Operation::AllReduce, length, round, 0..length, values)
    }

    /// Shows the parts of `values` that others own, then adds up the own one.
    fn scatter_piece(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (round, length) = (self.round, values.len());
        let mine = part(length, self.index, self.size());
        self.shown(length - mine.len(), 1);
        self.publish(Operation::ReduceScatter, length, |slot| {
            slot[..mine.start].copy_from_slice(&values[..mine.start]);
            slot[mine.end..].copy_from_slice(&values[mine.end..]);
        })?;
        self.consume_sum(Operation::ReduceScatter, length, round, mine.clone(), &mut values[mine])
    }

    /// Shows the own part of `values`, then copies those of the others.
    fn gather_piece(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (round, length, size) = (self.round, values.len(), self.size());
        let mine = part(length, self.index, size);
        self.shown(mine.len(), size - 1);
        self.publish(Operation::AllGather, length, |slot| {
            slot[mine.clone()].copy_from_slice(&values[mine]);
        })?;
        self.consume(Operation::AllGather, length, round, |other, slot| {
            let theirs = part(length, other, size);
            values[theirs.clone()].copy_from_slice(&slot[theirs]);
        })
    }
}

impl Group for SharedMemory {
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
            return self.all_reduce_small(values);
        }
        // Piece by piece, so that what one half wrote is still in the cache when the other half needs it.
        for piece in values.chunks_mut(SLOT_VALUES) {
            self.scatter_piece(piece)?;
            self.gather_piece(piece)?;
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, values: &mut [f32]) -> Result<Range<usize>, CommError> {
        let (length, size, me) = (values.len(), self.size(), self.index);
        let mine = part(length, me, size);
        if size == 1 {
            return Ok(mine);
        }
        self.shown(length - mine.len(), 1);
        // The share of each part that goes into one slot.
        let each = SLOT_VALUES / size as usize;
        let longest = part(length, 0, size).len();
        for begin in (0..longest).step_by(each) {
            let share = |rank: u32| {
                let part = part(length, rank, size);
                (part.start + begin).min(part.end)..(part.start + begin + each).min(part.end)
            };
            let room = |rank: u32| rank as usize * each;
            let round = self.round;
            self.publish(Operation::ReduceScatter, SLOT_VALUES, |slot| {
                for other in (0..size).filter(|other| *other != me) {
                    let share = share(other);
                    slot[room(other)..][..share.len()].copy_from_slice(&values[share]);
                }
            })?;
            let own = share(me);
            let range = room(me)..room(me) + own.len();
            self.consume_sum(Operation::ReduceScatter, SLOT_VALUES, round, range, &mut values[own])?;
        }
        Ok(mine)
    }

    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (length, size, me) = (values.len(), self.size(), self.index);
        if size == 1 {
            return Ok(());
        }
        self.shown(part(length, me, size).len(), size - 1);
        let longest = part(length, 0, size).len();
        for begin in (0..longest).step_by(SLOT_VALUES) {
            let share = |rank: u32| {
                let part = part(length, rank, size);
                (part.start + begin).min(part.end)..(part.start + begin + SLOT_VALUES).min(part.end)
            };
            let (round, tagged) = (self.round, share(0).len());
            self.publish(Operation::AllGather, tagged, |slot| {
                let own = &values[share(me)];
                slot[..own.len()].copy_from_slice(own);
            })?;
            self.consume(Operation::AllGather, tagged, round, |other, slot| {
                let theirs = &mut values[share(other)];
                theirs.copy_from_slice(&slot[..theirs.len()]);
            })?;
        }
        Ok(())
    }

    fn all_to_all(&mut self, send: &[f32], recv: &mut [f32]) -> Result<(), CommError> {
        let size = self.size();
        assert!(send.len() == recv.len() && send.len().is_multiple_of(size as usize), "blocks are equal");
        let block = send.len() / size as usize;
        let at = |rank: u32, begin: usize| rank as usize * block + begin;
        recv[at(self.index, 0)..][..block].copy_from_slice(&send[at(self.index, 0)..][..block]);
        if size == 1 {
            return Ok(());
        }
        self.shown(block, size - 1);
        let each = SLOT_VALUES / size as usize;
        for begin in (0..block).step_by(each) {
            let length = each.min(block - begin);
            let round = self.round;
            let mine = self.index as usize * each;
            self.publish(Operation::AllToAll, SLOT_VALUES, |slot| {
                for other in 0..size {
                    slot[other as usize * each..][..length]
                        .copy_from_slice(&send[at(other, begin)..][..length]);
                }
            })?;
            self.consume(Operation::AllToAll, SLOT_VALUES, round, |other, slot| {
                recv[at(other, begin)..][..length].copy_from_slice(&slot[mine..][..length]);
            })?;
        }
        Ok(())
    }

    fn broadcast(&mut self, root: u32, values: &mut [f32]) -> Result<(), CommError> {
        if self.size() == 1 {
            return Ok(());
        }
        let is_root = root == self.index;
        self.shown(if is_root { values.len() } else { 0 }, self.size() - 1);
        for piece in values.chunks_mut(SLOT_VALUES) {
            let round = self.round;
            self.publish(Operation::Broadcast, piece.len(), |slot| {
                if is_root {
                    slot.copy_from_slice(piece);
                }
            })?;
            self.consume(Operation::Broadcast, piece.len(), round, |other, slot| {
                if other == root {
                    piece.copy_from_slice(slot);
                }
            })?;
        }
        Ok(())
    }

    fn exchange(&mut self, send: Option<Outgoing<'_>>, recv: Option<Incoming<'_>>) -> Result<(), CommError> {
        self.shown(send.map_or(0, |send| send.values.len()), 1);
        self.mails(send, recv).inspect_err(|_| self.break_off())
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let round = self.round;
        self.publish(Operation::Barrier, 0, |_| {})?;
        self.consume(Operation::Barrier, 0, round, |_, _| {})
    }

    fn split(&mut self, channel: Channel, members: &[u32]) -> Result<Box<dyn Group>, CommError> {
        check_members(members, self.index, self.size());
        #[expect(clippy::cast_possible_truncation, reason = "below the size, a u32")]
        let index = members.iter().take_while(|member| **member < self.index).count() as u32;
        let members = members.iter().map(|member| self.members[*member as usize]).collect();
        Ok(Box::new(Self::new(Arc::clone(&self.mapping), channel as u64, members, index, self.deadline)))
    }
}

impl SharedMemory {
    /// Moves both messages through their mails, whichever can move.
    fn mails(&self, send: Option<Outgoing<'_>>, recv: Option<Incoming<'_>>) -> Result<(), CommError> {
        let me = self.members[self.index as usize];
        let (to, from) = (send.map(|s| s.to), recv.as_ref().map(|r| r.from));
        let world = |index: u32| self.members[index as usize];
        let mut sending = send.map(|s| Mail::new(&self.mapping, me, world(s.to), s.values.len()));
        let mut receiving =
            recv.as_ref().map(|r| Mail::new(&self.mapping, world(r.from), me, r.values.len()));
        let send = send.map_or(&[][..], |s| s.values);
        let mut nothing: [f32; 0] = [];
        let recv = recv.map_or(&mut nothing[..], |r| r.values);
        let mut patience = Patience::new(self.mapping.spins);
        loop {
            let sent = sending.as_mut().is_some_and(|mail| mail.put(send));
            let received = match receiving.as_mut() {
                Some(mail) => mail.take(recv).map_err(|detail| CommError::OutOfStep {
                    peer: Rank(mail.from),
                    operation: "exchange",
                    detail,
                })?,
                None => false,
            };
            let waits_to_send = sending.as_ref().is_some_and(|mail| !mail.is_done());
            let waits_to_receive = receiving.as_ref().is_some_and(|mail| !mail.is_done());
            if !waits_to_send && !waits_to_receive {
                return Ok(());
            }
            if sent || received {
                patience = Patience::new(self.mapping.spins);
            } else if patience.pause() {
                if let (true, Some(from), Some(mail)) = (waits_to_receive, from, &receiving) {
                    self.is_there(from, "exchange", &patience, || mail.has_come())?;
                }
                if let (true, Some(to), Some(mail)) = (waits_to_send, to, &sending) {
                    self.is_there(to, "exchange", &patience, || mail.has_room())?;
                }
            }
        }
    }
}

/// One message on its way from one rank to another, in pieces of one mail.
struct Mail<'a> {
    mapping: &'a Mapping,
    from: u32,
    to: u32,
    length: usize,
    /// Values moved so far, and whether the (possibly empty) last piece was.
    moved: usize,
    done: bool,
}

impl<'a> Mail<'a> {
    fn new(mapping: &'a Mapping, from: u32, to: u32, length: usize) -> Self {
        Self { mapping, from, to, length, moved: 0, done: false }
    }

    fn counter(&self, field: u64) -> &'a AtomicU64 {
        self.mapping.counter(mapping::mail_control(self.mapping.ranks, self.from, self.to) + field)
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn has_room(&self) -> bool {
        self.counter(SENT).load(Ordering::Relaxed) < self.counter(TAKEN).load(Ordering::Acquire) + 2
    }

    fn has_come(&self) -> bool {
        self.counter(SENT).load(Ordering::Acquire) > self.counter(TAKEN).load(Ordering::Relaxed)
    }

    /// The piece that is due.
    fn piece(&self) -> Range<usize> {
        self.moved..(self.moved + MAIL_VALUES).min(self.length)
    }

    fn offset(&self, count: u64) -> u64 {
        mapping::mail(self.mapping.ranks, self.from, self.to, count % 2)
    }

    fn advance(&mut self, piece: &Range<usize>) {
        self.moved = piece.end;
        self.done = self.moved == self.length;
    }

    /// Puts the next piece, if there is room.
    fn put(&mut self, values: &[f32]) -> bool {
        if self.done || !self.has_room() {
            return false;
        }
        let (piece, sent) = (self.piece(), self.counter(SENT).load(Ordering::Relaxed));
        // SAFETY: only this rank writes this mail, and the receiver has taken its last content.
        let mail = unsafe { self.mapping.values_mut(self.offset(sent), piece.len()) };
        mail.copy_from_slice(&values[piece.clone()]);
        self.counter(LENGTH + 8 * (sent % 2)).store((self.length - piece.start) as u64, Ordering::Relaxed);
        self.counter(SENT).store(sent + 1, Ordering::Release);
        self.advance(&piece);
        true
    }

    /// Takes the next piece, if it has come. `Err` says how the message differs from what is due.
    fn take(&mut self, values: &mut [f32]) -> Result<bool, String> {
        if self.done || !self.has_come() {
            return Ok(false);
        }
        let (piece, taken) = (self.piece(), self.counter(TAKEN).load(Ordering::Relaxed));
        let left = self.counter(LENGTH + 8 * (taken % 2)).load(Ordering::Relaxed);
        if left != (self.length - piece.start) as u64 {
            return Err(format!("{} values were due, {left} came", self.length - piece.start));
        }
        // SAFETY: the sender does not write this mail until it is taken.
        let mail = unsafe { self.mapping.values(self.offset(taken), piece.len()) };
        values[piece.clone()].copy_from_slice(mail);
        self.counter(TAKEN).store(taken + 1, Ordering::Release);
        self.advance(&piece);
        Ok(true)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.break_off();
    }
}

impl Mapping {
    /// Says that this rank is there, and waits until all ranks of the attempt are.
    fn meet(&mut self, seat: &Seat, deadline: Duration) -> Result<(), CommError> {
        let field = |rank, field| mapping::control(seat.ranks, 0, rank) + field;
        let own = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
        self.counter(field(seat.rank.0, PROCESS)).store(own, Ordering::Relaxed);
        self.counter(field(seat.rank.0, JOINED)).store(seat.attempt.0 + 1, Ordering::Release);
        let mut patience = Patience::new(self.spins);
        for rank in 0..seat.ranks {
            let mut joined = 0;
            while joined == 0 {
                joined = self.counter(field(rank, JOINED)).load(Ordering::Acquire);
                if joined == 0 && patience.pause() && patience.waited() > deadline {
                    let seconds = patience.waited().as_secs_f64();
                    return Err(CommError::TimedOut { peer: Rank(rank), seconds, operation: "joining" });
                }
            }
            if joined != seat.attempt.0 + 1 {
                let detail = format!("attempt {} was due, {} came", seat.attempt, joined - 1);
                return Err(CommError::OutOfStep { peer: Rank(rank), operation: "joining", detail });
            }
            let process = self.counter(field(rank, PROCESS)).load(Ordering::Relaxed);
            let handle = if process == own { None } else { Some(open_process(Rank(rank), process)?) };
            self.processes.push(handle);
        }
        Ok(())
    }

    fn counter(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: offsets come from `protocol::mapping`, whose areas lie inside the mapping (its length is checked
        // in `open`), are aligned to 8 bytes, and are used as atomics by everybody.
        unsafe { AtomicU64::from_ptr(self.raw.as_mut_ptr().add(at(offset)).cast()) }
    }

    /// # Safety
    /// No rank writes these values while the result lives.
    unsafe fn values(&self, offset: u64, length: usize) -> &[f32] {
        // SAFETY: the area lies inside the mapping and is aligned to a page; any bits are a valid f32.
        unsafe { std::slice::from_raw_parts(self.raw.as_mut_ptr().add(at(offset)).cast(), length) }
    }

    /// # Safety
    /// Nobody else reads or writes these values while the result lives.
    #[expect(clippy::mut_from_ref, reason = "the memory is not reached through self")]
    unsafe fn values_mut(&self, offset: u64, length: usize) -> &mut [f32] {
        // SAFETY: as above, and the caller is alone.
        unsafe { std::slice::from_raw_parts_mut(self.raw.as_mut_ptr().add(at(offset)).cast(), length) }
    }

    /// Whether the process of `rank` has ended, even when nobody has collected its exit status yet.
    fn has_ended(&self, rank: u32) -> bool {
        let Some(process) = &self.processes[rank as usize] else { return false };
        let mut handles = [PollFd::new(process, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut handles, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("the whole mapping has an address")
}

/// A handle by which the end of a peer's process is seen.
fn open_process(peer: Rank, process: u64) -> Result<OwnedFd, CommError> {
    let lost = |detail: String| CommError::PeerLost { peer, operation: "joining", detail };
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| lost(format!("{process} is not a process")))?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(|error| lost(format!("process {process}: {error}")))
}

/// What a round is for; part of the tag that all ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
    Barrier,
}

const NAMES: [&str; 6] = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "barrier"];

impl Operation {
    fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Operation and length in one word; never zero.
    fn tag(self, length: usize) -> u64 {
        ((length as u64) << 4) | (self as u64 + 1)
    }
}

fn describe(tag: u64) -> String {
    let name = at(tag & 15).checked_sub(1).and_then(|index| NAMES.get(index)).unwrap_or(&"nothing");
    format!("{name} of {} values", tag >> 4)
}

/// How long a rank has waited, and what it does in the meantime.
struct Patience {
    spins: u32,
    begun: Option<Instant>,
}

impl Patience {
    fn new(spins: u32) -> Self {
        Self { spins, begun: None }
    }

    /// Lets a little time pass; true when it is time to ask whether the peer is still there.
    fn pause(&mut self) -> bool {
        if self.spins > 0 {
            self.spins -= 1;
            std::hint::spin_loop();
            return false;
        }
        let waited = self.begun.get_or_insert_with(Instant::now).elapsed();
        if waited < Duration::from_micros(300) {
            std::thread::yield_now();
            return false;
        }
        std::thread::sleep((waited / 16).min(Duration::from_millis(2)));
        true
    }

    fn waited(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{AttemptId, TrialId};
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_killed_process_is_lost_even_before_anybody_collects_it() {
        let file =
            File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"));
        file.set_len(mapping::bytes(2)).expect("length");
        let mut peer = std::process::Command::new("sleep").arg("60").spawn().expect("started");
        // What rank 1 would write when it joins.
        for (field, value) in [(PROCESS, u64::from(peer.id())), (JOINED, 8)] {
            file.write_at(&value.to_le_bytes(), mapping::control(2, 0, 1) + field).expect("written");
        }
        let seat = Seat { trial: TrialId("t".into()), attempt: AttemptId(7), rank: Rank(0), ranks: 2 };
        let mut group =
            SharedMemory::open(&file, mapping::bytes(2), &seat, Duration::from_secs(30)).expect("joined");
        peer.kill().expect("killed");
        let error = group.all_reduce(&mut [1.0; 5]).expect_err("nobody is there");
        assert!(matches!(&error, CommError::PeerLost { peer: Rank(1), .. }), "{error}");
        assert!(error.to_string().contains("its process ended"), "{error}");
        peer.wait().expect("collected");
    }
}
