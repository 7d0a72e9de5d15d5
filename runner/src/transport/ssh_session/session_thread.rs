//! The thread that serves one SSH session.

use super::channel_pump::{ChannelPump, PumpRound};
use super::pending_open::PendingOpen;
use super::{ChannelKind, OpenError, OpenRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::Shutdown;
use ssh2::{Channel, Session};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

/// Longest poll of a session with open channels after something happened: a call for one channel may take bytes of another
/// one from the socket, which do not show in a poll.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);

/// Longest poll of a session in which nothing happens.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The time to poll a session with open channels: short after something happened, then longer and longer.
#[derive(Debug)]
struct IdleWait(Duration);

impl IdleWait {
    fn new() -> Self {
        Self(SHORTEST_WAIT)
    }

    /// Notes whether a poll found an event.
    fn observe(&mut self, has_event: bool) {
        self.0 = if has_event { SHORTEST_WAIT } else { (2 * self.0).min(LONGEST_WAIT) };
    }
}

/// State of the thread that serves a session.
pub(super) struct SessionThread {
    // Channels are dropped before their session.
    pumps: BTreeMap<u64, ChannelPump>,
    opening: Option<PendingOpen>,
    session: Session,
    socket: OwnedFd,
    requests: Receiver<OpenRequest>,
    waiting: VecDeque<OpenRequest>,
    waker: UnixStream,
    /// True if all senders of requests are gone.
    is_left: bool,
    idle_wait: IdleWait,
    is_stuck: Arc<AtomicBool>,
    eof_turn: Option<u64>,
    is_half_sent: bool,
    broken: Option<String>,
    next: u64,
}

impl SessionThread {
    pub(super) fn new(
        session: Session,
        socket: OwnedFd,
        requests: Receiver<OpenRequest>,
        waker: UnixStream,
        is_stuck: Arc<AtomicBool>,
    ) -> Self {
        Self {
            pumps: BTreeMap::new(),
            opening: None,
            session,
            socket,
            requests,
            waiting: VecDeque::new(),
            waker,
            is_left: false,
            idle_wait: IdleWait::new(),
            is_stuck,
            eof_turn: None,
            is_half_sent: false,
            broken: None,
            next: 0,
        }
    }

    /// Serves the session until it has no users left.
    pub(super) fn serve(mut self) {
        loop {
            self.receive_requests();
            let has_moved = self.turn();
            if self.is_done() || !self.wait(has_moved) {
                break;
            }
        }
        // libssh2 frees a channel without asking the host only if the connection is closed.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    fn receive_requests(&mut self) {
        while let Ok(1..) = self.waker.read(&mut [0; 64]) {}
        loop {
            match self.requests.try_recv() {
                Ok(order) => self.waiting.push_back(order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.is_left = true;
                    break;
                }
            }
        }
    }

    /// Moves all bytes of all channels that can move; returns `true` if any did.
    fn turn(&mut self) -> bool {
        let mut has_moved = self.open();
        let (session, eof_turn) = (&self.session, &mut self.eof_turn);
        let mut round = PumpRound { session, eof_turn, is_half_sent: false, broken: self.broken.take() };
        round.look();
        for (id, pump) in &mut self.pumps {
            has_moved |= pump.turn(&mut round, *id);
        }
        (self.is_half_sent, self.broken) = (round.is_half_sent, round.broken);
        if let Some(reason) = &self.broken {
            self.pumps.values_mut().filter(|pump| pump.is_open()).for_each(|pump| pump.break_off(reason));
        }
        self.pumps.retain(|_, pump| !pump.is_finished());
        has_moved
    }

    fn is_done(&self) -> bool {
        let is_said = self.broken.is_some() || !self.is_half_sent;
        self.is_left && self.waiting.is_empty() && is_said && self.pumps.values().all(ChannelPump::is_idle)
    }

    /// Continues the pending request to open a channel, or starts the next.
    fn open(&mut self) -> bool {
        if let Some(reason) = self.broken.clone() {
            let gone = || OpenError::Gone(io::Error::other(reason.clone()));
            self.opening.take().into_iter().for_each(|opening| opening.fail(gone()));
            self.waiting.drain(..).for_each(|order| drop(order.reply.send(Err(gone()))));
        }
        let waiting = &mut self.waiting;
        let opening = self.opening.take().or_else(|| waiting.pop_front().map(PendingOpen::new));
        let Some(mut opening) = opening else { return false };
        match opening.go_on(&self.session) {
            Ok(Some(channel)) => self.opened(opening, channel),
            Ok(None) => {
                if opening.is_slow() {
                    self.is_stuck.store(true, Ordering::Release);
                    self.waiting.drain(..).for_each(|order| drop(order.reply.send(Err(OpenError::Stuck))));
                }
                let has_moved = opening.give_up();
                self.opening = Some(opening);
                return has_moved;
            }
            Err(error) => {
                if let Some(channel) = opening.channel.take() {
                    self.close_unused(channel);
                }
                opening.fail(OpenError::of(error));
            }
        }
        self.is_stuck.store(false, Ordering::Release);
        true
    }

    fn opened(&mut self, opening: PendingOpen, channel: Channel) {
        if opening.is_given_up() {
            return self.close_unused(channel);
        }
        match ChannelPump::new(channel, matches!(opening.kind, ChannelKind::Tunnel { .. })) {
            Ok((pump, stream)) => {
                self.add(pump);
                opening.succeed(stream);
            }
            Err(error) => opening.fail(OpenError::Gone(error)),
        }
    }

    fn add(&mut self, pump: ChannelPump) {
        self.pumps.insert(self.next, pump);
        self.next += 1;
    }

    /// Closes a channel whose caller is gone.
    fn close_unused(&mut self, channel: Channel) {
        if let Ok((mut pump, _)) = ChannelPump::new(channel, true) {
            pump.abandon();
            self.add(pump);
        }
    }

    /// Polls until bytes can move, or without waiting if `is_brief`; returns `false` if polling failed.
    fn wait(&mut self, is_brief: bool) -> bool {
        let mut files = Vec::with_capacity(self.pumps.len() + 2);
        if self.broken.is_none() && (self.opening.is_some() || self.pumps.values().any(ChannelPump::is_open))
        {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, self.is_half_sent);
            files.push(PollFd::new(&self.socket, wanted));
        }
        if !self.is_left {
            files.push(PollFd::new(&self.waker, PollFlags::IN));
        }
        let first = files.len();
        let mut ids = Vec::with_capacity(self.pumps.len());
        for (id, pump) in &self.pumps {
            if let Some(events) = pump.waits_for() {
                ids.push(*id);
                files.push(PollFd::new(pump.pipe(), events));
            }
        }
        let patience = self.opening.as_ref().and_then(PendingOpen::patience);
        let patience = match patience {
            _ if is_brief => Some(Duration::ZERO),
            None if self.pumps.values().any(ChannelPump::is_open) => Some(self.idle_wait.0),
            Some(patience) => Some(patience.min(SHORTEST_WAIT)),
            None => None,
        };
        let patience = patience.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut files, patience.as_ref()) {
            Ok(events) => self.idle_wait.observe(is_brief || events > 0),
            Err(rustix::io::Errno::INTR) => return true,
            Err(_) => return false,
        }
        let has_left = |file: &PollFd<'_>| file.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let is_left: Vec<bool> = files[first..].iter().map(has_left).collect();
        for (id, _) in ids.iter().zip(is_left).filter(|(_, has_left)| *has_left) {
            self.pumps.get_mut(id).into_iter().for_each(ChannelPump::abandon);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_in_which_nothing_happens_is_polled_once_a_second() {
        let mut wait = IdleWait::new();
        let waits: Vec<u128> = (0..7)
            .map(|_| {
                let now = wait.0.as_millis();
                wait.observe(false);
                now
            })
            .collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1000, 1000]);
        wait.observe(true);
        assert_eq!(wait.0, SHORTEST_WAIT, "bytes may be left of what has just come");
    }
}
