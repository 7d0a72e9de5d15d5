//! The pending request of a session to open a channel.

use super::super::PATIENCE;
use super::super::program_stream::ProgramStream;
use super::{ChannelKind, OpenError, OpenRequest};
use ssh2::{Channel, Error, ErrorCode, Session};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The error code of libssh2 for a call that must be repeated later.
const WOULD_BLOCK: ErrorCode = ErrorCode::Session(-37);

/// Time after which a pending request should not delay others, which can use another session.
const SLOW_AFTER: Duration = Duration::from_secs(2);

/// The one pending request of a session to open a channel.
pub(super) struct PendingOpen {
    pub(super) kind: ChannelKind,
    /// A channel that is open, with its program not started yet.
    pub(super) channel: Option<Channel>,
    /// The waiting caller; `None` after it timed out.
    reply: Option<Sender<Result<ProgramStream, OpenError>>>,
    since: Instant,
}

impl PendingOpen {
    pub(super) fn new(order: OpenRequest) -> Self {
        Self { kind: order.kind, channel: None, reply: Some(order.reply), since: Instant::now() }
    }

    /// Continues to open the channel; returns it once its program is started, `None` if the call must be
    /// repeated.
    pub(super) fn go_on(&mut self, session: &Session) -> Result<Option<Channel>, Error> {
        match self.step(session) {
            Ok(channel) => Ok(Some(channel)),
            Err(error) if error.code() == WOULD_BLOCK => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn step(&mut self, session: &Session) -> Result<Channel, Error> {
        let line = match &self.kind {
            ChannelKind::Tunnel { host, port } => return session.channel_direct_tcpip(host, *port, None),
            ChannelKind::Program(line) => line,
        };
        let mut channel = self.channel.take().map_or_else(|| session.channel_session(), Ok)?;
        match channel.exec(line.text()) {
            Ok(()) => Ok(channel),
            Err(error) => {
                self.channel = Some(channel);
                Err(error)
            }
        }
    }

    /// Returns the time left until the next deadline of the request; `None` after the last one.
    pub(super) fn patience(&self) -> Option<Duration> {
        let limit = if self.is_slow() { PATIENCE } else { SLOW_AFTER };
        self.reply.is_some().then(|| limit.saturating_sub(self.since.elapsed()))
    }

    /// Returns `true` if other requests should not wait behind this one.
    pub(super) fn is_slow(&self) -> bool {
        self.since.elapsed() >= SLOW_AFTER
    }

    /// Fails the waiting caller after the timeout, and returns `true` if it did so. The request itself cannot
    /// be cancelled.
    pub(super) fn give_up(&mut self) -> bool {
        if self.since.elapsed() < PATIENCE {
            return false;
        }
        self.reply.take().is_some_and(|reply| {
            drop(reply.send(Err(OpenError::TimedOut)));
            true
        })
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.reply.is_none()
    }

    /// Sends the stream to the caller; if the caller is gone, the stream is dropped, which ends its pump.
    pub(super) fn succeed(mut self, stream: ProgramStream) {
        self.answer(Ok(stream));
    }

    pub(super) fn fail(mut self, why: OpenError) {
        self.answer(Err(why));
    }

    fn answer(&mut self, answer: Result<ProgramStream, OpenError>) {
        if let Some(reply) = self.reply.take() {
            drop(reply.send(answer));
        }
    }
}
