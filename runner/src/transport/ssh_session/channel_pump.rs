//! One channel and our end of its stream.

use super::super::program_stream::{ExitSlot, ProgramExit, ProgramStream, StderrTail};
use super::pending_bytes::{MOST, PendingBytes};
use rustix::event::PollFlags;
use ssh2::{BlockDirections, Channel, Error, Session};
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// One channel and our end of its stream.
pub(super) struct ChannelPump {
    channel: Channel,
    is_tunnel: bool,
    pipe: UnixStream,
    exit_slot: Arc<ExitSlot>,
    /// From the stream to the channel.
    up: PendingBytes,
    /// From the channel to the stream.
    down: PendingBytes,
    stderr: StderrTail,
    /// A write was begun that libssh2 wants to be made again.
    is_writing: bool,
    /// The user wrote all there is.
    has_input_ended: bool,
    /// The user neither reads nor writes any more.
    is_abandoned: bool,
    is_eof_sent: bool,
    /// The host wrote all there is.
    has_output_ended: bool,
    /// The host closed the channel.
    is_over: bool,
    is_closing: bool,
    /// The channel is closed on both sides, or the session is gone.
    is_closed: bool,
}

/// What the pumps of a session share during a round.
pub(super) struct PumpRound<'a> {
    pub(super) session: &'a Session,
    /// The pump that may tell the host the end of input.
    ///
    /// libssh2 keeps that packet on its stack, so that two of them that are sent by half cannot be told apart.
    pub(super) eof_turn: &'a mut Option<u64>,
    /// Something was sent by half.
    pub(super) is_half_sent: bool,
    /// Why the session cannot be used any more.
    pub(super) broken: Option<String>,
}

impl PumpRound<'_> {
    /// To be called before another call may make libssh2 forget it.
    pub(super) fn look(&mut self) {
        let directions = self.session.block_directions();
        self.is_half_sent |= matches!(directions, BlockDirections::Outbound | BlockDirections::Both);
    }

    /// Notes that the session failed, unless the error only says that it is too early.
    fn failed(&mut self, error: &io::Error) -> bool {
        let is_final = !is_for_later(error);
        if is_final {
            self.broken.get_or_insert_with(|| error.to_string());
        }
        is_final
    }
}

impl ChannelPump {
    /// A pump for an open channel, and the stream for its user.
    pub(super) fn new(channel: Channel, is_tunnel: bool) -> io::Result<(Self, ProgramStream)> {
        let (pipe, theirs) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let exit_slot = Arc::new(ExitSlot::default());
        let stream = ProgramStream::new(theirs, Arc::clone(&exit_slot));
        let pump = Self {
            channel,
            is_tunnel,
            pipe,
            exit_slot,
            up: PendingBytes::default(),
            down: PendingBytes::default(),
            stderr: StderrTail::default(),
            is_writing: false,
            has_input_ended: false,
            is_abandoned: false,
            is_eof_sent: false,
            has_output_ended: false,
            is_over: false,
            is_closing: false,
            is_closed: false,
        };
        Ok((pump, stream))
    }

    /// Our end of the stream.
    pub(super) fn pipe(&self) -> &UnixStream {
        &self.pipe
    }

    /// What to wait for on our end; `None` when nothing there matters now.
    pub(super) fn waits_for(&self) -> Option<PollFlags> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.up.is_empty() && !self.has_input_ended && !self.is_over);
        events.set(PollFlags::OUT, !self.down.is_empty());
        // Without events the user's leaving is still told, which must not be asked for while nothing follows from it.
        (!self.is_abandoned && (!events.is_empty() || self.has_input_ended)).then_some(events)
    }

    /// The user left.
    pub(super) fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Whether the channel is still to be heard.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed
    }

    /// Whether nothing is left to be done.
    pub(super) fn is_finished(&self) -> bool {
        self.is_closed && (self.down.is_empty() || self.is_abandoned)
    }

    /// Whether only the host's goodbye is waited for, and by nobody.
    pub(super) fn is_idle(&self) -> bool {
        self.is_closing && self.is_abandoned
    }

    /// Moves what can be moved; tells whether anything was.
    pub(super) fn turn(&mut self, round: &mut PumpRound<'_>, id: u64) -> bool {
        if self.is_closed {
            return self.deliver();
        }
        let mut has_moved = false;
        if !self.is_closing {
            has_moved |= self.take_input() | self.send_up(round);
            has_moved |= self.hear_stderr(round) | self.fetch(round) | self.deliver() | self.hear_end(round);
            round.look();
        }
        has_moved |= self.say_goodbye(round, id);
        round.look();
        has_moved
    }

    /// Ends the pump because the session is gone.
    pub(super) fn break_off(&mut self, reason: &str) {
        let (stderr, broken) = (self.stderr.text(), Some(reason.to_owned()));
        self.exit_slot.set(ProgramExit { stderr, broken, ..ProgramExit::default() });
        (self.is_over, self.is_closed) = (true, true);
    }

    /// Reads what the user wrote, unless something is still on its way.
    fn take_input(&mut self) -> bool {
        if !self.up.is_empty() || self.has_input_ended {
            return false;
        }
        match self.up.fill(&mut self.pipe) {
            Ok(0) => self.has_input_ended = true,
            Ok(_) => {}
            Err(error) if is_for_later(&error) => return false,
            // The user left with something unread; what was written before that can still be read, once.
            Err(_) => self.has_input_ended = std::mem::replace(&mut self.is_abandoned, true),
        }
        true
    }

    fn send_up(&mut self, round: &mut PumpRound<'_>) -> bool {
        if self.is_over && !self.is_writing {
            self.up.clear();
        }
        if self.up.is_empty() {
            return false;
        }
        let poured = self.up.pour(&mut self.channel);
        // Without room at the host nothing was begun.
        let is_early = poured.as_ref().is_err_and(is_for_later);
        self.is_writing = is_early && self.channel.write_window().remaining > 0;
        match poured {
            Ok(count) => count > 0,
            Err(error) => round.failed(&error),
        }
    }

    /// Reads standard error, which a tunnel has not: but it also takes from the socket what others will read, so that
    /// there is no wait for a socket that nobody reads.
    fn hear_stderr(&mut self, round: &mut PumpRound<'_>) -> bool {
        if self.has_output_ended {
            return false;
        }
        // As long as any other read, for libssh2 counts by it how much more the host may send.
        let mut bytes = [0; MOST];
        match self.channel.stderr().read(&mut bytes) {
            Ok(count) => {
                self.stderr.push(&bytes[..count]);
                count > 0
            }
            Err(error) => round.failed(&error),
        }
    }

    /// Reads what the host wrote, unless something is still on its way.
    fn fetch(&mut self, round: &mut PumpRound<'_>) -> bool {
        if !self.down.is_empty() || self.has_output_ended {
            return false;
        }
        match self.down.fill(&mut self.channel) {
            Ok(0) => {
                self.has_output_ended = self.channel.eof();
                self.has_output_ended
            }
            Ok(_) => true,
            Err(error) => round.failed(&error),
        }
    }

    /// Hands the user what was read.
    fn deliver(&mut self) -> bool {
        if self.is_abandoned {
            self.down.clear();
        }
        if self.down.is_empty() {
            return false;
        }
        match self.down.pour(&mut self.pipe) {
            Ok(count) => count > 0,
            Err(error) if is_for_later(&error) => false,
            Err(_) => !std::mem::replace(&mut self.is_abandoned, true),
        }
    }

    /// Learns how the program ended. A tunnel ends with what comes out of it.
    fn hear_end(&mut self, round: &mut PumpRound<'_>) -> bool {
        if !self.has_output_ended || self.is_over {
            return false;
        }
        if !self.is_tunnel
            && let Err(error) = self.channel.wait_close()
        {
            return round.failed(&error.into());
        }
        let signal = self.channel.exit_signal().ok().and_then(|signal| signal.exit_signal);
        let status = self.channel.exit_status().ok().filter(|_| signal.is_none());
        self.exit_slot.set(ProgramExit { status, signal, stderr: self.stderr.text(), broken: None });
        self.is_over = true;
        true
    }

    /// Whether what the last read began, to let the host send more, is still sent by half.
    ///
    /// Asked only when nothing more is to be read: libssh2 would count what the host may send wrongly.
    fn is_reading(&mut self) -> bool {
        let is_asked = !self.is_closing && (self.has_output_ended || self.is_abandoned);
        is_asked && would_block(self.channel.adjust_receive_window(0, false).map(|_| ()))
    }

    /// Tells the host the end of input, and closes the channel, as far as it is time for that.
    fn say_goodbye(&mut self, round: &mut PumpRound<'_>, id: u64) -> bool {
        let is_reading = self.is_reading();
        round.look();
        let is_said = self.has_input_ended && self.up.is_empty();
        let mut has_moved = false;
        if !self.is_eof_sent && (is_said || self.is_over) && round.eof_turn.is_none_or(|holder| holder == id)
        {
            // The only call of its kind: libssh2 knows that packet, once sent by half, by its place on the stack.
            self.is_eof_sent = !would_block(self.channel.send_eof());
            *round.eof_turn = (!self.is_eof_sent).then_some(id);
            has_moved |= self.is_eof_sent;
        }
        let is_wanted = self.is_eof_sent && (self.is_over || self.is_abandoned);
        // What this pump sent by half comes first: nothing but the closing is done from now on.
        self.is_closing |= is_wanted && !is_reading && !self.is_writing;
        if self.is_closing {
            self.is_closed = !would_block(self.channel.close());
            has_moved |= self.is_closed;
        }
        has_moved
    }
}

impl Drop for ChannelPump {
    fn drop(&mut self) {
        // Only the first ending counts: this one is for a thread that ended before its work.
        self.break_off("the session has ended");
        // What the user wrote in vain must not turn the end of the stream into an error.
        drop(self.pipe.shutdown(Shutdown::Read));
        while let Ok(1..) = self.pipe.read(&mut [0; MOST]) {}
    }
}

/// Whether a call has to be made again later.
fn would_block(result: Result<(), Error>) -> bool {
    result.is_err_and(|error| is_for_later(&error.into()))
}

/// Whether an error only says that it is too early.
fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
