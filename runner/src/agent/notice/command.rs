//! A command whose exit code 0 is a notice.

use super::{PolledRanks, RunningCommand};
use crate::descendants::rank_markers;
use crate::process::{bind_to_this_thread, kill_group, pid};
use rustix::process::Signal;
use std::convert::Infallible;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest time that the command may run.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Time between two looks at whether the command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The command of the recipe, which runs once for each poll, without a shell.
pub(super) struct NoticeCommand {
    argv: Vec<String>,
    folder: Option<PathBuf>,
    markers: [(&'static str, String); 2],
    running: Arc<RunningCommand>,
}

impl NoticeCommand {
    pub(super) fn new(argv: &[String], ranks: PolledRanks<'_>, running: &Arc<RunningCommand>) -> Self {
        Self {
            argv: argv.to_vec(),
            folder: Some(ranks.folder.to_owned()).filter(|folder| folder.is_dir()),
            markers: rank_markers(&ranks.trial.0, ranks.attempt),
            running: Arc::clone(running),
        }
    }

    /// Runs the command; returns `true` if its exit code is 0. It and what it started are killed at the time limit, and
    /// when the sender of `stopped` is dropped. `Err` says why there is no answer.
    pub(super) fn run(&self, stopped: &Receiver<Infallible>) -> Result<bool, String> {
        let name = self.argv.first().map_or("", String::as_str);
        let mut child = self.start().map_err(|error| format!("{name:?} cannot be started: {error}"))?;
        let until = Instant::now() + TIME_LIMIT;
        let ended = loop {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => break Ok(status),
                Err(error) => break Err(format!("{name:?} cannot be waited for: {error}")),
            }
            if stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                break Err("the attempt is over".to_owned());
            }
            if Instant::now() >= until {
                break Err(format!("{name:?} ran for longer than {} s", TIME_LIMIT.as_secs()));
            }
        };
        self.end(&mut child, ended.is_ok());
        answer(name, ended?)
    }

    fn start(&self) -> std::io::Result<Child> {
        let (name, arguments) = self.argv.split_first().ok_or(std::io::ErrorKind::NotFound)?;
        let mut command = Command::new(name);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .envs(self.markers.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        bind_to_this_thread(&mut command, Vec::new());
        let mut running = self.running.lock();
        let child = command.spawn()?;
        *running = Some(child.id());
        Ok(child)
    }

    /// Kills what is left of the command, and reaps it.
    fn end(&self, child: &mut Child, has_ended: bool) {
        if has_ended {
            // The id of the group may be that of another one by now, but not in this session.
            kill_group(child.id(), std::process::id());
        } else {
            if let Some(group) = pid(child.id()) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            // Fails only if it is reaped already.
            drop(child.wait());
        }
        *self.running.lock() = None;
    }
}

/// Returns `true` if the command said that there is a notice.
fn answer(name: &str, status: ExitStatus) -> Result<bool, String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(true),
        // A shell ends in this way if it cannot run a program.
        (Some(code @ (126 | 127)), _) => {
            Err(format!("{name:?} ended with code {code}: a program is missing"))
        }
        (Some(_), _) => Ok(false),
        (None, signal) => Err(format!("{name:?} was killed by signal {}", signal.unwrap_or_default())),
    }
}
