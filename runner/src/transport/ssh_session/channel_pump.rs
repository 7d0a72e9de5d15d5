//! The pump of one SSH channel: it moves bytes between the channel and a socket.

use super::super::program_stream::{ExitSlot, ProgramExit, ProgramStream, StderrTail};
use super::pending_bytes::{MOST, PendingBytes};
use rustix::event::PollFlags;
use ssh2::{BlockDirections, Channel, Error, Session};
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A pump: one SSH channel and this end of the stream of its user.
pub(super) struct ChannelPump {
    channel: Channel,
    is_tunnel: bool,
    pipe: UnixStream,
    exit_slot: Arc<ExitSlot>,
    /// Bytes on the way from the stream to the channel.
    up: PendingBytes,
    /// Bytes on the way from the channel to the stream.
    down: PendingBytes,
    stderr: StderrTail,
    /// True if libssh2 has started a write and requires the same call again.
    is_writing: bool,
    /// True if the user of the stream has closed the input of the program.
    has_input_ended: bool,
    /// True if the user has closed the stream.
    is_abandoned: bool,
    is_eof_sent: bool,
    /// True if the host has closed its output.
    has_output_ended: bool,
    /// True if the host has closed the channel.
    is_over: bool,
    is_closing: bool,
    /// True if the channel is closed on both sides, or the session is gone.
    is_closed: bool,
}

/// State shared by all pumps of a session during one round of work.
pub(super) struct PumpRound<'a> {
    pub(super) session: &'a Session,
    /// Id of the pump that may send the end of input, if one has begun to.
    ///
    /// libssh2 keeps that packet on its stack, so two half-sent ones cannot be told apart.
    pub(super) eof_turn: &'a mut Option<u64>,
    /// True if a packet is half-sent.
    pub(super) is_half_sent: bool,
    /// The error that ended the session, if it has ended.
    pub(super) broken: Option<String>,
}

impl PumpRound<'_> {
    /// Records if a packet is half-sent; call it before another libssh2 call resets the state.
    pub(super) fn look(&mut self) {
        let directions = self.session.block_directions();
        self.is_half_sent |= matches!(directions, BlockDirections::Outbound | BlockDirections::Both);
    }

    /// Records a failure of the session and returns `true`, unless the error only means that the call must be
    /// repeated later.
    fn failed(&mut self, error: &io::Error) -> bool {
        let is_final = !is_for_later(error);
        if is_final {
            self.broken.get_or_insert_with(|| error.to_string());
        }
        is_final
    }
}

impl ChannelPump {
    /// Creates the pump of an open channel, and the stream for its user.
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

    /// Returns this end of the stream, to be polled.
    pub(super) fn pipe(&self) -> &UnixStream {
        &self.pipe
    }

    /// Returns the events to poll for on the stream; `None` if none matter now.
    pub(super) fn waits_for(&self) -> Option<PollFlags> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.up.is_empty() && !self.has_input_ended && !self.is_over);
        events.set(PollFlags::OUT, !self.down.is_empty());
        // Poll reports a hang-up even without events, so do not poll while a hang-up has no effect.
        (!self.is_abandoned && (!events.is_empty() || self.has_input_ended)).then_some(events)
    }

    /// Marks the stream as closed by its user.
    pub(super) fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Returns `true` while the channel may still carry data.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed
    }

    /// Returns `true` if the pump has no work left.
    pub(super) fn is_finished(&self) -> bool {
        self.is_closed && (self.down.is_empty() || self.is_abandoned)
    }

    /// Returns `true` if only the host's close is outstanding, and the user is gone.
    pub(super) fn is_idle(&self) -> bool {
        self.is_closing && self.is_abandoned
    }

    /// Moves all bytes of the channel that can move; returns `true` if any did.
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

    /// Closes the pump with `reason`, because the session is gone.
    pub(super) fn break_off(&mut self, reason: &str) {
        let (stderr, broken) = (self.stderr.text(), Some(reason.to_owned()));
        self.exit_slot.set(ProgramExit { stderr, broken, ..ProgramExit::default() });
        (self.is_over, self.is_closed) = (true, true);
    }

    /// Reads bytes from the user, unless earlier ones are still pending.
    fn take_input(&mut self) -> bool {
        if !self.up.is_empty() || self.has_input_ended {
            return false;
        }
        match self.up.fill(&mut self.pipe) {
            Ok(0) => self.has_input_ended = true,
            Ok(_) => {}
            Err(error) if is_for_later(&error) => return false,
            // The user closed the stream with unread bytes; earlier input can still be read, once.
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
        // The host's window was full: no write was started.
        let is_early = poured.as_ref().is_err_and(is_for_later);
        self.is_writing = is_early && self.channel.write_window().remaining > 0;
        match poured {
            Ok(count) => count > 0,
            Err(error) => round.failed(&error),
        }
    }

    /// Reads the program's standard error. A tunnel has none, but the call also takes bytes of other channels
    /// from the socket, so that no poll waits for bytes already taken.
    fn hear_stderr(&mut self, round: &mut PumpRound<'_>) -> bool {
        if self.has_output_ended {
            return false;
        }
        // As long as any other read: libssh2 sizes the host's window by it.
        let mut bytes = [0; MOST];
        match self.channel.stderr().read(&mut bytes) {
            Ok(count) => {
                self.stderr.push(&bytes[..count]);
                count > 0
            }
            Err(error) => round.failed(&error),
        }
    }

    /// Reads bytes from the host, unless earlier ones are still pending.
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

    /// Writes pending bytes to the user.
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

    /// Reads the exit of the program at the end of its output. A tunnel ends with its output.
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

    /// Returns `true` if the window update that the last read started is still half-sent.
    ///
    /// Called only when reading is over: libssh2 would count the window wrongly.
    fn is_reading(&mut self) -> bool {
        let is_asked = !self.is_closing && (self.has_output_ended || self.is_abandoned);
        is_asked && would_block(self.channel.adjust_receive_window(0, false).map(|_| ()))
    }

    /// Sends the end of input and closes the channel, when each is due.
    fn say_goodbye(&mut self, round: &mut PumpRound<'_>, id: u64) -> bool {
        let is_reading = self.is_reading();
        round.look();
        let is_said = self.has_input_ended && self.up.is_empty();
        let mut has_moved = false;
        if !self.is_eof_sent && (is_said || self.is_over) && round.eof_turn.is_none_or(|holder| holder == id)
        {
            // Only one such call at a time: libssh2 knows a half-sent packet by its address on the stack.
            self.is_eof_sent = !would_block(self.channel.send_eof());
            *round.eof_turn = (!self.is_eof_sent).then_some(id);
            has_moved |= self.is_eof_sent;
        }
        let is_wanted = self.is_eof_sent && (self.is_over || self.is_abandoned);
        // This pump's half-sent packets come first; after that it only closes.
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
        // The first exit counts: this one is for a session thread that ended early.
        self.break_off("the session has ended");
        // Unread input must not turn the end of the stream into an error.
        drop(self.pipe.shutdown(Shutdown::Read));
        while let Ok(1..) = self.pipe.read(&mut [0; MOST]) {}
    }
}

/// Returns `true` if the call with this result must be repeated later.
fn would_block(result: Result<(), Error>) -> bool {
    result.is_err_and(|error| is_for_later(&error.into()))
}

/// Returns `true` if the error means that the call must be repeated later.
fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
