//! Drives one trial: feeds the machine what happens, carries out what it decides, keeps what became true.
//!
//! Everything that waits, reads a clock, starts a process or touches a disk is here or below; nothing here
//! decides what a failure means.

mod agent_connection;
mod anomaly;
mod controller;
mod lock;
mod training_time;
mod viewer;

pub use anomaly::AnomalyDetector;
pub use viewer::{Viewer, outcome_of};

pub(crate) use lock::{TrialLock, acquire as take_lock};

use crate::agent::{LinkChoice, Log, Program};
use crate::audit::AuditLog;
use crate::fact::{Ledger, LedgerError, Verdict};
use crate::home::Home;
use crate::interrupts::Interrupts;
use crate::launch::{Launcher, LocalLauncher};
use crate::machine::TrialInput;
use crate::trial_event::Observer;
use controller::TrialController;
use dtrain_protocol::{Assignment, AttemptId, Rank, ResumePoint, TrialId};
use rustix::process::Signal;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// One trial and all that its driver needs.
pub struct Drive<'a> {
    /// Where state lies.
    pub home: &'a Home,
    /// The trial; the ledger already knows it.
    pub trial: &'a TrialId,
    /// Turns an attempt into what each of its ranks must know; `Err` says why it cannot be.
    pub lower: &'a dyn Fn(&LaunchContext) -> Result<Vec<Assignment>, String>,
    /// The programs that are started.
    pub programs: &'a Programs,
    /// How agents are started and reached; `None` on this machine.
    pub launcher: Option<Box<dyn Launcher>>,
    /// Where it is written down what is launched and killed; `None` for tests and benches, whose trials are nobody's.
    pub audit: Option<AuditLog>,
    /// What the user chose.
    pub options: &'a Options,
    /// Where facts and points are kept.
    pub ledger: &'a mut dyn Ledger,
    /// Who watches.
    pub observer: &'a mut dyn Observer,
    /// The user's wish to stop: once lets the ranks finish their step and save, twice kills them.
    pub interrupts: Arc<Interrupts>,
}

/// An attempt that is about to be launched.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchContext {
    /// The attempt.
    pub attempt: AttemptId,
    /// Where it goes on from.
    pub from: Option<ResumePoint>,
    /// Seconds of training in all earlier attempts together.
    pub spent_seconds: f64,
    /// The folder of the trial's checkpoints.
    pub checkpoints: PathBuf,
    /// Hosts that can be used: [`dtrain_protocol::Placement::host`] is below it.
    pub hosts: u32,
}

/// The programs that a driver starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The agent: reads an [`crate::agent::AgentOrder`] and runs [`crate::agent::run`].
    pub agent: Program,
    /// A rank.
    pub worker: Program,
}

impl Programs {
    /// `agent` and `worker` of the running program itself, so that no two versions meet.
    pub fn of_this_program() -> io::Result<Self> {
        let path = std::env::current_exe()?;
        Ok(Self { agent: Program::new(&path, ["agent"]), worker: Program::new(&path, ["worker"]) })
    }
}

/// What the user chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Return as soon as the agent confirmed the launch.
    pub detach: bool,
    /// What an interrupt means.
    pub on_interrupt: OnInterrupt,
    /// Ask the trial to stop as soon as it is taken over.
    pub stop: bool,
    /// Committed checkpoints that are kept.
    pub keep: u32,
    /// How the ranks reach each other.
    pub link: LinkChoice,
    /// How long what an attempt left behind may be out of reach, with no byte of it coming, before its host is given up.
    pub patience: Duration,
    /// How long no host of an attempt may be within reach before the one that leads is given up for lost.
    pub lost_after: Duration,
    /// How long ranks may take to stop before their agent kills them, where it is told: [`crate::agent::STOP_GRACE_PERIOD`] for a foreign program.
    pub killed_after: Option<Duration>,
}

/// What an interrupt means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInterrupt {
    /// The trial stops.
    Stop,
    /// The controller leaves, and the trial goes on.
    Leave,
}

impl Default for Options {
    fn default() -> Self {
        let (detach, stop) = (false, false);
        let (on_interrupt, link) = (OnInterrupt::Stop, LinkChoice::SharedMemory);
        let (patience, lost_after) = (Duration::from_secs(30), Duration::from_secs(600));
        Self { detach, on_interrupt, stop, keep: 3, link, patience, lost_after, killed_after: None }
    }
}

/// How a drive ended.
#[derive(Clone, Debug, PartialEq)]
pub enum DriveOutcome {
    /// The trial is over.
    Ended {
        /// How.
        verdict: Verdict,
        /// The newest durable checkpoint.
        checkpoint: Option<ResumePoint>,
        /// Attempts launched so far.
        attempts: u64,
    },
    /// The trial goes on without a controller.
    Detached {
        /// Process id of the agent; `None` when the next attempt was still waited for.
        agent: Option<u32>,
    },
}

/// Launches a new trial and drives it to its end.
pub fn start(drive: Drive<'_>) -> Result<DriveOutcome, DriveError> {
    let mut controller = TrialController::take_over(drive)?;
    if controller.was_launched() {
        return Err(DriveError::Launched(controller.trial()));
    }
    controller.feed(TrialInput::Resume)?;
    controller.run()
}

/// Goes on with a trial, whatever became of its controller, agent and ranks: takes over what still runs,
/// otherwise launches from the newest durable checkpoint. A completed trial is returned as it ended.
pub fn resume(drive: Drive<'_>) -> Result<DriveOutcome, DriveError> {
    let mut controller = TrialController::take_over(drive)?;
    controller.recover_open_attempt(true)?;
    controller.feed(TrialInput::Resume)?;
    controller.run()
}

/// Takes over a trial that runs without a controller. `Err` when none of it runs.
///
/// A trial that ended since nobody looked is returned as it ended.
pub fn attach(drive: Drive<'_>) -> Result<DriveOutcome, DriveError> {
    let is_to_stop = drive.options.stop;
    let mut controller = TrialController::take_over(drive)?;
    if !controller.may_run() {
        return Err(DriveError::NothingRuns(controller.trial()));
    }
    controller.recover_open_attempt(false)?;
    if is_to_stop {
        controller.feed(TrialInput::Stop)?;
    }
    if controller.runs_or_is_over() {
        controller.run()
    } else {
        Err(DriveError::NothingRuns(controller.trial()))
    }
}

/// Asks a running trial to finish its step, save and stop; returns at once.
///
/// Reaches the agent, or, while none runs, the controller that waits before the next attempt.
pub fn stop(home: &Home, trial: &TrialId) -> Result<(), DriveError> {
    let folder = home.trial(trial);
    if LocalLauncher::new(&folder).ask_to_stop() {
        return Ok(());
    }
    let controller = lock::holder(&folder).and_then(crate::process::pid);
    match controller.map(|controller| rustix::process::kill_process(controller, Signal::INT)) {
        Some(Ok(())) => Ok(()),
        Some(Err(_)) | None => Err(DriveError::NothingRuns(trial.clone())),
    }
}

/// Whether an agent of the trial lives. Of one on other hosts that is not known here: it counts as alive until a controller has
/// found out otherwise.
pub fn is_running(home: &Home, trial: &TrialId) -> bool {
    let folder = home.trial(trial);
    folder.remote_hosts_file().exists() || LocalLauncher::new(&folder).is_running()
}

/// Process ids of the controller and the agent of a trial, as far as they live on this machine and are not this process.
pub fn processes(home: &Home, trial: &TrialId) -> Vec<u32> {
    let folder = home.trial(trial);
    let agent = LocalLauncher::new(&folder).agent();
    let all = lock::holder(&folder).into_iter().chain(agent);
    all.filter(|process| *process != std::process::id()).collect()
}

/// Process id of the controller of a trial, where it has one.
pub fn controller(home: &Home, trial: &TrialId) -> Option<u32> {
    lock::holder(&home.trial(trial))
}

/// All logs of a trial, by attempt and rank; that of the agents is last.
pub fn logs(home: &Home, trial: &TrialId) -> io::Result<Vec<Log>> {
    let folder = home.trial(trial);
    let mut logs: Vec<Log> = Vec::new();
    for entry in fs::read_dir(folder.logs())? {
        let entry = entry?;
        if let Some(of) = entry.file_name().to_str().and_then(parse_log_name) {
            logs.push(Log { of: Some(of), path: entry.path() });
        }
    }
    logs.sort_by_key(|log| log.of);
    if folder.agent_log().exists() {
        logs.push(Log { of: None, path: folder.agent_log() });
    }
    Ok(logs)
}

/// Attempt and rank of `attempt-<attempt>.rank-<rank>.log`.
fn parse_log_name(name: &str) -> Option<(AttemptId, Rank)> {
    let (attempt, rank) = name.strip_prefix("attempt-")?.strip_suffix(".log")?.split_once(".rank-")?;
    Some((AttemptId(attempt.parse().ok()?), Rank(rank.parse().ok()?)))
}

/// Why a trial cannot be driven.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// Another controller drives it.
    #[error("trial {trial} already has a controller, process {process}")]
    Busy {
        /// The trial.
        trial: TrialId,
        /// Its process id.
        process: u32,
    },
    /// The audit log cannot be written: nothing is launched.
    #[error("cannot write the audit log {path}, so that nothing is launched")]
    Audit {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is being removed, and its checkpoints are gone.
    #[error("trial {0} is partly removed: its checkpoints are gone")]
    Removed(TrialId),
    /// Nothing of it runs.
    #[error("trial {0} is not running")]
    NothingRuns(TrialId),
    /// An agent neither answers nor goes.
    #[error("the agent of attempt {0} is alive but does not respond and cannot be killed; see its log")]
    Unreachable(AttemptId),
    /// The hosts of a trial cannot be asked; it may go on there.
    #[error("cannot control attempt {attempt}: {reason}")]
    Away {
        /// The attempt.
        attempt: AttemptId,
        /// Why not.
        reason: String,
    },
    /// An attempt is over, and how cannot be read now.
    #[error("what attempt {attempt} left behind cannot be read now: {reason}")]
    Unread {
        /// The attempt.
        attempt: AttemptId,
        /// Why not.
        reason: String,
    },
    /// It has already been launched.
    #[error("trial {0} was launched before; it can be resumed, not started")]
    Launched(TrialId),
    /// The history could not be read or written. The agent goes on, and so can a later controller, unless the history is gone.
    #[error("the history of the trial could not be kept")]
    Ledger(#[from] LedgerError),
    /// A file of the trial could not be used.
    #[error("cannot {doing} {}", path.display())]
    Folder {
        /// What was tried, such as `create`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}
