//! Messages from one rank to another, through two buffers that are filled and emptied in turn.

use super::SharedMemory;
use super::memory_map::MemoryMap;
use super::spin_wait::SpinWait;
use crate::comm::{CommError, Incoming, Outgoing};
use dtrain_protocol::Rank;
use dtrain_protocol::shared_memory_layout::{self, MAIL_VALUES};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets of the counters in the control block of a pair of ranks.
const SENT: u64 = 0;
const LENGTH: u64 = 8;
const TAKEN: u64 = 128;

impl SharedMemory {
    /// Moves an outgoing and an incoming message through their buffers, whichever can move.
    pub(super) fn mails(
        &self,
        send: Option<Outgoing<'_>>,
        recv: Option<Incoming<'_>>,
    ) -> Result<(), CommError> {
        let me = self.members[self.index as usize];
        let (to, from) = (send.map(|s| s.to), recv.as_ref().map(|r| r.from));
        let world = |index: u32| self.members[index as usize];
        let mut sending = send.map(|s| Mailbox::new(&self.mapping, me, world(s.to), s.values.len()));
        let mut receiving =
            recv.as_ref().map(|r| Mailbox::new(&self.mapping, world(r.from), me, r.values.len()));
        let send = send.map_or(&[][..], |s| s.values);
        let mut nothing: [f32; 0] = [];
        let recv = recv.map_or(&mut nothing[..], |r| r.values);
        let mut patience = SpinWait::new(self.mapping.spins);
        let mut begun = self.heart.pulse().begin();
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
                patience = SpinWait::new(self.mapping.spins);
                begun = self.heart.pulse().begin();
            } else if patience.pause() {
                if let (true, Some(from), Some(mail)) = (waits_to_receive, from, &receiving) {
                    self.is_there(from, "exchange", begun, || mail.has_come())?;
                }
                if let (true, Some(to), Some(mail)) = (waits_to_send, to, &sending) {
                    self.is_there(to, "exchange", begun, || mail.has_room())?;
                }
            }
        }
    }
}

/// A message on its way from one rank to another, in pieces of one buffer.
struct Mailbox<'a> {
    mapping: &'a MemoryMap,
    from: u32,
    to: u32,
    length: usize,
    /// Number of values moved so far; `done` tells that the (possibly empty) last piece was moved too.
    moved: usize,
    done: bool,
}

impl<'a> Mailbox<'a> {
    fn new(mapping: &'a MemoryMap, from: u32, to: u32, length: usize) -> Self {
        Self { mapping, from, to, length, moved: 0, done: false }
    }

    fn counter(&self, field: u64) -> &'a AtomicU64 {
        self.mapping.counter(
            shared_memory_layout::mail_control_offset(self.mapping.ranks, self.from, self.to) + field,
        )
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

    /// Returns the range of the message's next piece.
    fn piece(&self) -> Range<usize> {
        self.moved..(self.moved + MAIL_VALUES).min(self.length)
    }

    fn offset(&self, count: u64) -> u64 {
        shared_memory_layout::mail_offset(self.mapping.ranks, self.from, self.to, count % 2)
    }

    fn advance(&mut self, piece: &Range<usize>) {
        self.moved = piece.end;
        self.done = self.moved == self.length;
    }

    /// Writes the next piece, if a buffer is free.
    fn put(&mut self, values: &[f32]) -> bool {
        if self.done || !self.has_room() {
            return false;
        }
        let (piece, sent) = (self.piece(), self.counter(SENT).load(Ordering::Relaxed));
        // SAFETY: only this rank writes this buffer, and the receiver has emptied it.
        let mail = unsafe { self.mapping.values_mut(self.offset(sent), piece.len()) };
        mail.copy_from_slice(&values[piece.clone()]);
        self.counter(LENGTH + 8 * (sent % 2)).store((self.length - piece.start) as u64, Ordering::Relaxed);
        self.counter(SENT).store(sent + 1, Ordering::Release);
        self.advance(&piece);
        true
    }

    /// Reads the next piece into `values`, if it has arrived. `Err` says in what the message differs from the
    /// expected one.
    fn take(&mut self, values: &mut [f32]) -> Result<bool, String> {
        if self.done || !self.has_come() {
            return Ok(false);
        }
        let (piece, taken) = (self.piece(), self.counter(TAKEN).load(Ordering::Relaxed));
        let left = self.counter(LENGTH + 8 * (taken % 2)).load(Ordering::Relaxed);
        if left != (self.length - piece.start) as u64 {
            return Err(format!("expected {} values, received {left}", self.length - piece.start));
        }
        // SAFETY: the sender does not write this buffer until it is emptied.
        let mail = unsafe { self.mapping.values(self.offset(taken), piece.len()) };
        values[piece.clone()].copy_from_slice(mail);
        self.counter(TAKEN).store(taken + 1, Ordering::Release);
        self.advance(&piece);
        Ok(true)
    }
}
