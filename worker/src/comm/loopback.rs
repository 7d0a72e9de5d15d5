//! Groups inside one process: of one rank, or of threads that share a message board.

use super::{
    CommError, Incoming, Outgoing, ProcessGroup, SMALL_VALUES, check_members, rank_range, sum_in_order,
};
use dtrain_protocol::{Channel, Rank};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The group of one rank: every operation completes at once.
#[derive(Clone, Copy, Debug)]
pub struct SingleRank;

impl ProcessGroup for SingleRank {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn all_reduce(&mut self, _values: &mut [f32]) -> Result<(), CommError> {
        Ok(())
    }

    fn reduce_scatter(&mut self, values: &mut [f32]) -> Result<Range<usize>, CommError> {
        Ok(0..values.len())
    }

    fn all_gather(&mut self, _values: &mut [f32]) -> Result<(), CommError> {
        Ok(())
    }

    fn all_to_all(&mut self, send: &[f32], recv: &mut [f32]) -> Result<(), CommError> {
        recv.copy_from_slice(send);
        Ok(())
    }

    fn broadcast(&mut self, _root: u32, _values: &mut [f32]) -> Result<(), CommError> {
        Ok(())
    }

    fn exchange(&mut self, send: Option<Outgoing<'_>>, recv: Option<Incoming<'_>>) -> Result<(), CommError> {
        match (send, recv) {
            (Some(send), Some(recv)) => recv.values.copy_from_slice(send.values),
            (None, None) => {}
            _ => panic!("a message to oneself has two ends"),
        }
        Ok(())
    }

    fn bytes_sent(&self) -> u64 {
        0
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    fn split(&mut self, _channel: Channel, members: &[u32]) -> Result<Box<dyn ProcessGroup>, CommError> {
        check_members(members, 0, 1);
        Ok(Box::new(Self))
    }
}

/// One of the threads that [`threads`] joined into a group.
#[derive(Debug)]
pub struct ThreadRank {
    board: Arc<MessageBoard>,
    /// Ranks of this group, as indices among all threads, ascending.
    members: Vec<u32>,
    /// Index of this rank in `members`.
    index: u32,
    channel: usize,
    sent: Cell<u64>,
}

/// Queues of messages by channel, sender and receiver.
type MessageQueues = BTreeMap<(usize, u32, u32), VecDeque<Vec<f32>>>;

#[derive(Debug, Default)]
struct State {
    queues: MessageQueues,
    /// Channels and ranks whose group was dropped, in pairs.
    gone: Vec<(usize, u32)>,
}

#[derive(Debug)]
struct MessageBoard {
    state: Mutex<State>,
    /// Condition variable of each rank: signals that a message arrived for it, or that a rank left.
    changed: Vec<Condvar>,
    deadline: Duration,
}

/// Creates one group for each of `ranks` threads. Messages are copied through a queue: simple rather than
/// fast.
pub fn threads(ranks: u32, deadline: Duration) -> Vec<ThreadRank> {
    let changed = (0..ranks).map(|_| Condvar::new()).collect();
    let board = Arc::new(MessageBoard { state: Mutex::default(), changed, deadline });
    let members: Vec<_> = (0..ranks).collect();
    let thread = |index| ThreadRank {
        board: Arc::clone(&board),
        members: members.clone(),
        index,
        channel: 0,
        sent: Cell::new(0),
    };
    (0..ranks).map(thread).collect()
}

impl MessageBoard {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the board")
    }
}

impl ThreadRank {
    fn key(&self, from: u32, to: u32) -> (usize, u32, u32) {
        (self.channel, self.members[from as usize], self.members[to as usize])
    }

    fn put(&self, to: u32, values: &[f32]) {
        let key = self.key(self.index, to);
        self.sent.set(self.sent.get() + 4 * values.len() as u64);
        self.board.lock().queues.entry(key).or_default().push_back(values.to_vec());
        self.board.changed[key.2 as usize].notify_all();
    }

    fn take(&self, from: u32, length: usize, operation: &'static str) -> Result<Vec<f32>, CommError> {
        let key = self.key(from, self.index);
        let peer = Rank(self.members[from as usize]);
        let end = Instant::now() + self.board.deadline;
        let mut state = self.board.lock();
        loop {
            if let Some(values) = state.queues.get_mut(&key).and_then(VecDeque::pop_front) {
                if values.len() == length {
                    return Ok(values);
                }
                let detail = format!("expected {length} values, received {}", values.len());
                return Err(CommError::OutOfStep { peer, operation, detail });
            }
            if state.gone.contains(&(self.channel, peer.0)) {
                let detail = "its thread left the group".into();
                return Err(CommError::PeerLost { peer, operation, detail });
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = self.board.deadline.as_secs_f64();
                return Err(CommError::Idle { peer, seconds, operation, step_seconds: None });
            }
            let changed = &self.board.changed[key.2 as usize];
            state = changed.wait_timeout(state, left).expect("no thread panics there").0;
        }
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let index = self.index;
        (0..self.size()).filter(move |other| *other != index)
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        self.board.lock().gone.push((self.channel, self.members[self.index as usize]));
        self.board.changed.iter().for_each(Condvar::notify_all);
    }
}

impl ProcessGroup for ThreadRank {
    fn rank(&self) -> u32 {
        self.index
    }

    #[expect(clippy::cast_possible_truncation, reason = "made from a u32")]
    fn size(&self) -> u32 {
        self.members.len() as u32
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        if values.len() > SMALL_VALUES {
            self.reduce_scatter(values)?;
            return self.all_gather(values);
        }
        self.others().for_each(|other| self.put(other, values));
        let own = values.to_vec();
        let all: Vec<_> = (0..self.size())
            .map(|from| match from == self.index {
                true => Ok(own.clone()),
                false => self.take(from, own.len(), "all-reduce"),
            })
            .collect::<Result<_, _>>()?;
        let all: Vec<_> = all.iter().map(Vec::as_slice).collect();
        sum_in_order(&all, values);
        Ok(())
    }

    fn reduce_scatter(&mut self, values: &mut [f32]) -> Result<Range<usize>, CommError> {
        for to in self.others() {
            self.put(to, &values[rank_range(values.len(), to, self.size())]);
        }
        let mine = rank_range(values.len(), self.index, self.size());
        let own = values[mine.clone()].to_vec();
        let parts: Vec<_> = (0..self.size())
            .map(|from| match from == self.index {
                true => Ok(own.clone()),
                false => self.take(from, mine.len(), "reduce-scatter"),
            })
            .collect::<Result<_, _>>()?;
        let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
        sum_in_order(&parts, &mut values[mine.clone()]);
        Ok(mine)
    }

    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let mine = rank_range(values.len(), self.index, self.size());
        for other in self.others() {
            self.put(other, &values[mine.clone()]);
        }
        for other in self.others() {
            let theirs = rank_range(values.len(), other, self.size());
            values[theirs.clone()].copy_from_slice(&self.take(other, theirs.len(), "all-gather")?);
        }
        Ok(())
    }

    fn all_to_all(&mut self, send: &[f32], recv: &mut [f32]) -> Result<(), CommError> {
        let block = |rank: u32| rank_range(send.len(), rank, self.size());
        recv[block(self.index)].copy_from_slice(&send[block(self.index)]);
        for other in self.others() {
            self.put(other, &send[block(other)]);
        }
        for other in self.others() {
            recv[block(other)].copy_from_slice(&self.take(other, block(other).len(), "all-to-all")?);
        }
        Ok(())
    }

    fn broadcast(&mut self, root: u32, values: &mut [f32]) -> Result<(), CommError> {
        if root == self.index {
            self.others().for_each(|other| self.put(other, values));
        } else {
            values.copy_from_slice(&self.take(root, values.len(), "broadcast")?);
        }
        Ok(())
    }

    fn exchange(&mut self, send: Option<Outgoing<'_>>, recv: Option<Incoming<'_>>) -> Result<(), CommError> {
        if let Some(send) = send {
            self.put(send.to, send.values);
        }
        if let Some(recv) = recv {
            recv.values.copy_from_slice(&self.take(recv.from, recv.values.len(), "exchange")?);
        }
        Ok(())
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.get()
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        self.others().for_each(|other| self.put(other, &[]));
        self.others().try_for_each(|other| self.take(other, 0, "barrier").map(drop))
    }

    fn split(&mut self, channel: Channel, members: &[u32]) -> Result<Box<dyn ProcessGroup>, CommError> {
        check_members(members, self.index, self.size());
        let index = members.iter().take_while(|member| **member < self.index).count();
        Ok(Box::new(Self {
            board: Arc::clone(&self.board),
            members: members.iter().map(|member| self.members[*member as usize]).collect(),
            #[expect(clippy::cast_possible_truncation, reason = "below the size, a u32")]
            index: index as u32,
            channel: channel as usize,
            sent: Cell::new(0),
        }))
    }
}
