//! The terminal while a page is on it: taken, lent to a shell, given back whatever happens.

use crate::failure::{Exit, Failure};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use std::io::{self, Stdout, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The terminal, which is given back when this is dropped.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
    signals: Signals,
}

/// Signals that came since they were last asked for.
struct Signals {
    end: Arc<AtomicBool>,
    suspend: Arc<AtomicBool>,
    resumed: Arc<AtomicBool>,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signalled {
    End,
    Suspend,
    /// The program was stopped, and somebody else may have written to the terminal.
    Resumed,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn take() -> Result<Self, Failure> {
        let signals = Signals::listen().map_err(|error| failure(&error))?;
        // A panic is told on a terminal that can show it.
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            tell(panic);
        }));
        enter().map_err(|error| failure(&error))?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout())).map_err(|error| failure(&error))?;
        Ok(Self { terminal, signals })
    }

    /// The signal that came, if any.
    pub(super) fn signalled(&self) -> Option<Signalled> {
        let came = |flag: &AtomicBool| flag.swap(false, Ordering::SeqCst);
        if came(&self.signals.end) {
            Some(Signalled::End)
        } else if came(&self.signals.suspend) {
            Some(Signalled::Suspend)
        } else {
            came(&self.signals.resumed).then_some(Signalled::Resumed)
        }
    }

    /// Gives the terminal back, stops this program until a shell lets it go on, and takes the terminal again.
    pub(super) fn suspend(&mut self) -> Result<(), Failure> {
        give_back();
        // SIGSTOP cannot be caught, so that it stops us here.
        kill_process(getpid(), Signal::STOP).map_err(|error| failure(&error.into()))?;
        self.again()
    }

    /// Takes the terminal again, and forgets what is on it.
    pub(super) fn again(&mut self) -> Result<(), Failure> {
        self.signals.resumed.store(false, Ordering::SeqCst);
        enter().map_err(|error| failure(&error))?;
        self.clear()
    }

    /// Forgets what is on the terminal. It does not ask where the cursor is, as `Terminal::clear` does: not every terminal answers.
    pub(super) fn clear(&mut self) -> Result<(), Failure> {
        let size = self.terminal.size().map_err(|error| failure(&error))?;
        self.terminal.resize(size.into()).map_err(|error| failure(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let (end, suspend, resumed) = (Arc::default(), Arc::default(), Arc::default());
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&end))?;
        }
        signal_hook::flag::register(SIGTSTP, Arc::clone(&suspend))?;
        signal_hook::flag::register(SIGCONT, Arc::clone(&resumed))?;
        Ok(Self { end, suspend, resumed })
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Gives the terminal back. One that is gone needs nothing.
fn give_back() {
    drop(execute!(stdout(), Show, LeaveAlternateScreen));
    drop(disable_raw_mode());
}

pub(super) fn failure(error: &io::Error) -> Failure {
    Failure::new(Exit::Infrastructure, "cannot use the terminal").cause(error.to_string())
}
