//! The one request of a session that is under way.

use super::super::PATIENCE;
use super::super::program_stream::ProgramStream;
use super::{ChannelKind, OpenError, OpenRequest};
use ssh2::{Channel, Error, ErrorCode, Session};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The code of libssh2 for a call that has to be made again later.
const WOULD_BLOCK: ErrorCode = ErrorCode::Session(-37);

/// How long a request may keep others waiting that could be made over another session.
const SLOW_AFTER: Duration = Duration::from_secs(2);

/// The one request that is under way.
pub(super) struct PendingOpen {
    pub(super) kind: ChannelKind,
    /// Open, and the program not started yet.
    pub(super) channel: Option<Channel>,
    /// Nobody when it took too long.
    reply: Option<Sender<Result<ProgramStream, OpenError>>>,
    since: Instant,
}

impl PendingOpen {
    pub(super) fn new(order: OpenRequest) -> Self {
        Self { kind: order.kind, channel: None, reply: Some(order.reply), since: Instant::now() }
    }

    /// The channel once it is open and its program started; `None` when it is too early.
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

    /// How long until its being late matters; `None` when that cannot matter any more.
    pub(super) fn patience(&self) -> Option<Duration> {
        let limit = if self.is_slow() { PATIENCE } else { SLOW_AFTER };
        self.reply.is_some().then(|| limit.saturating_sub(self.since.elapsed()))
    }

    /// Whether nobody should wait behind it.
    pub(super) fn is_slow(&self) -> bool {
        self.since.elapsed() >= SLOW_AFTER
    }

    /// Tells who asked when it takes too long, and whether that was so. The request itself cannot be taken back.
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

    /// Hands the stream over; one that nobody takes is dropped, which ends its pump.
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
