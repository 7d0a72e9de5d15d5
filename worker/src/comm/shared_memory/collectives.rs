//! Collectives through shared memory, each made of rounds.

use super::SharedMemory;
use super::rounds::RoundKind;
use crate::comm::{CommError, Incoming, Outgoing, ProcessGroup, SMALL_VALUES, check_members, rank_range};
use dtrain_protocol::Channel;
use dtrain_protocol::shared_memory_layout::SLOT_VALUES;
use std::ops::Range;
use std::sync::Arc;

impl SharedMemory {
    /// All-reduces a small buffer in one round: every rank publishes all of `values`, and each adds for
    /// itself.
    fn all_reduce_small(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (round, length) = (self.round, values.len());
        self.shown(length, self.size() - 1);
        self.publish(RoundKind::AllReduce, length, |slot| slot.copy_from_slice(values))?;
        self.consume_sum(RoundKind::AllReduce, length, round, 0..length, values)
    }

    /// Reduce-scatters one piece: publishes the parts of `values` that others own, then sums this rank's
    /// part.
    fn scatter_piece(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (round, length) = (self.round, values.len());
        let mine = rank_range(length, self.index, self.size());
        self.shown(length - mine.len(), 1);
        self.publish(RoundKind::ReduceScatter, length, |slot| {
            slot[..mine.start].copy_from_slice(&values[..mine.start]);
            slot[mine.end..].copy_from_slice(&values[mine.end..]);
        })?;
        self.consume_sum(RoundKind::ReduceScatter, length, round, mine.clone(), &mut values[mine])
    }

    /// All-gathers one piece: publishes this rank's part of `values`, then copies those of the others.
    fn gather_piece(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (round, length, size) = (self.round, values.len(), self.size());
        let mine = rank_range(length, self.index, size);
        self.shown(mine.len(), size - 1);
        self.publish(RoundKind::AllGather, length, |slot| {
            slot[mine.clone()].copy_from_slice(&values[mine]);
        })?;
        self.consume(RoundKind::AllGather, length, round, |other, slot| {
            let theirs = rank_range(length, other, size);
            values[theirs.clone()].copy_from_slice(&slot[theirs]);
        })
    }
}

impl ProcessGroup for SharedMemory {
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
        // Piece by piece, so that the output of one half is still in the cache when the other half needs
        // it.
        for piece in values.chunks_mut(SLOT_VALUES) {
            self.scatter_piece(piece)?;
            self.gather_piece(piece)?;
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, values: &mut [f32]) -> Result<Range<usize>, CommError> {
        let (length, size, me) = (values.len(), self.size(), self.index);
        let mine = rank_range(length, me, size);
        if size == 1 {
            return Ok(mine);
        }
        self.shown(length - mine.len(), 1);
        // The share of each part that goes into one slot.
        let each = SLOT_VALUES / size as usize;
        let longest = rank_range(length, 0, size).len();
        for begin in (0..longest).step_by(each) {
            let share = |rank: u32| {
                let part = rank_range(length, rank, size);
                (part.start + begin).min(part.end)..(part.start + begin + each).min(part.end)
            };
            let room = |rank: u32| rank as usize * each;
            let round = self.round;
            self.publish(RoundKind::ReduceScatter, SLOT_VALUES, |slot| {
                for other in (0..size).filter(|other| *other != me) {
                    let share = share(other);
                    slot[room(other)..][..share.len()].copy_from_slice(&values[share]);
                }
            })?;
            let own = share(me);
            let range = room(me)..room(me) + own.len();
            self.consume_sum(RoundKind::ReduceScatter, SLOT_VALUES, round, range, &mut values[own])?;
        }
        Ok(mine)
    }

    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let (length, size, me) = (values.len(), self.size(), self.index);
        if size == 1 {
            return Ok(());
        }
        self.shown(rank_range(length, me, size).len(), size - 1);
        let longest = rank_range(length, 0, size).len();
        for begin in (0..longest).step_by(SLOT_VALUES) {
            let share = |rank: u32| {
                let part = rank_range(length, rank, size);
                (part.start + begin).min(part.end)..(part.start + begin + SLOT_VALUES).min(part.end)
            };
            let (round, tagged) = (self.round, share(0).len());
            self.publish(RoundKind::AllGather, tagged, |slot| {
                let own = &values[share(me)];
                slot[..own.len()].copy_from_slice(own);
            })?;
            self.consume(RoundKind::AllGather, tagged, round, |other, slot| {
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
            self.publish(RoundKind::AllToAll, SLOT_VALUES, |slot| {
                for other in 0..size {
                    slot[other as usize * each..][..length]
                        .copy_from_slice(&send[at(other, begin)..][..length]);
                }
            })?;
            self.consume(RoundKind::AllToAll, SLOT_VALUES, round, |other, slot| {
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
            self.publish(RoundKind::Broadcast, piece.len(), |slot| {
                if is_root {
                    slot.copy_from_slice(piece);
                }
            })?;
            self.consume(RoundKind::Broadcast, piece.len(), round, |other, slot| {
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

    fn bytes_sent(&self) -> u64 {
        self.sent
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let round = self.round;
        self.publish(RoundKind::Barrier, 0, |_| {})?;
        self.consume(RoundKind::Barrier, 0, round, |_, _| {})
    }

    fn split(&mut self, channel: Channel, members: &[u32]) -> Result<Box<dyn ProcessGroup>, CommError> {
        check_members(members, self.index, self.size());
        #[expect(clippy::cast_possible_truncation, reason = "below the size, a u32")]
        let index = members.iter().take_while(|member| **member < self.index).count() as u32;
        let members = members.iter().map(|member| self.members[*member as usize]).collect();
        let (mapping, heart) = (Arc::clone(&self.mapping), Arc::clone(&self.heart));
        Ok(Box::new(Self::new(mapping, heart, channel as u64, members, index)))
    }
}
