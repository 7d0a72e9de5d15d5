//! Control of the terminal: enters the full screen, suspends to the shell, and always restores the terminal.

use super::bounded_backend::BoundedBackend;
use super::key_decoder::KeyDecoder;
use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use ratatui::Terminal;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::KeyEvent;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGWINCH};
use std::io::{self, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time for which a lone escape waits for the rest of a key sequence.
const ESCAPE: Duration = Duration::from_millis(50);

/// The terminal in full-screen mode, which is restored on drop.
pub(super) struct Screen {
    pub(super) terminal: Terminal<BoundedBackend>,
    signals: SignalFlags,
    keys: KeyDecoder,
}

/// Flags of the signals received since the last check.
struct SignalFlags {
    end: Arc<AtomicBool>,
    suspend: Arc<AtomicBool>,
    resumed: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
}

/// Request that a signal makes to the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalRequest {
    End,
    Suspend,
    /// The program was stopped and resumed; another program may have written to the terminal.
    Resumed,
    Resized,
}

impl Screen {
    /// Enters full-screen mode.
    pub(super) fn open() -> Result<Self, CommandError> {
        let signals = SignalFlags::listen().map_err(|error| failure(&error))?;
        // A panic restores the terminal before its message is printed.
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore_terminal();
            tell(panic);
        }));
        enter_raw_mode().map_err(|error| failure(&error))?;
        let terminal = Terminal::new(BoundedBackend::new()).map_err(|error| failure(&error))?;
        Ok(Self { terminal, signals, keys: KeyDecoder::default() })
    }

    /// Returns the request of a signal that arrived since the last call; `None` without one.
    pub(super) fn signalled(&self) -> Option<SignalRequest> {
        let came = |flag: &AtomicBool| flag.swap(false, Ordering::SeqCst);
        if came(&self.signals.end) {
            Some(SignalRequest::End)
        } else if came(&self.signals.suspend) {
            Some(SignalRequest::Suspend)
        } else {
            let resumed = came(&self.signals.resumed).then_some(SignalRequest::Resumed);
            resumed.or_else(|| came(&self.signals.resized).then_some(SignalRequest::Resized))
        }
    }

    /// Waits at most `pause` for keys, and returns them; a signal ends the wait. `Err` if the terminal is
    /// gone.
    pub(super) fn keys(&mut self, pause: Duration) -> Result<Vec<KeyEvent>, CommandError> {
        let pause = if self.keys.is_waiting() { ESCAPE } else { pause };
        let stdin = stdin();
        let mut found = [PollFd::new(&stdin, PollFlags::IN)];
        let pause = Timespec::try_from(pause).ok();
        match poll(&mut found, pause.as_ref()) {
            Ok(0) => return Ok(self.keys.flush().into_iter().collect()),
            Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(failure(&error.into())),
        }
        let mut bytes = [0; 1024];
        match read(&stdin, &mut bytes) {
            Ok(0) => Err(failure(&io::Error::other("it is gone"))),
            Ok(count) => Ok(self.keys.read(&bytes[..count])),
            Err(Errno::INTR | Errno::AGAIN) => Ok(Vec::new()),
            Err(error) => Err(failure(&error.into())),
        }
    }

    /// Restores the terminal, stops this process until the shell resumes it, and enters full-screen mode
    /// again.
    pub(super) fn suspend(&mut self) -> Result<(), CommandError> {
        restore_terminal();
        // SIGSTOP cannot be caught, so the process stops here.
        kill_process(getpid(), Signal::STOP).map_err(|error| failure(&error.into()))?;
        self.reenter()
    }

    /// Enters full-screen mode again, and clears the screen.
    pub(super) fn reenter(&mut self) -> Result<(), CommandError> {
        self.signals.resumed.store(false, Ordering::SeqCst);
        enter_raw_mode().map_err(|error| failure(&error))?;
        self.clear()
    }

    /// Clears the screen. Unlike `Terminal::clear`, does not ask for the cursor position, which not every
    /// terminal answers.
    pub(super) fn clear(&mut self) -> Result<(), CommandError> {
        let size = self.terminal.size().map_err(|error| failure(&error))?;
        self.terminal.resize(size.into()).map_err(|error| failure(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore_terminal();
    }
}

impl SignalFlags {
    fn listen() -> io::Result<Self> {
        let [end, suspend, resumed, resized]: [Arc<AtomicBool>; 4] = Default::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&end))?;
        }
        // A terminal that is gone needs no restoring.
        let code = ExitReason::Detached.exit_code().into();
        signal_hook::flag::register_conditional_shutdown(SIGHUP, code, Arc::new(AtomicBool::new(true)))?;
        signal_hook::flag::register(SIGTSTP, Arc::clone(&suspend))?;
        signal_hook::flag::register(SIGCONT, Arc::clone(&resumed))?;
        signal_hook::flag::register(SIGWINCH, Arc::clone(&resized))?;
        Ok(Self { end, suspend, resumed, resized })
    }
}

fn enter_raw_mode() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal to its state before the full screen; errors are ignored.
fn restore_terminal() {
    drop(execute!(stdout(), Show, LeaveAlternateScreen));
    drop(disable_raw_mode());
}

pub(super) fn failure(error: &io::Error) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, "cannot use the terminal").cause(error.to_string())
}
