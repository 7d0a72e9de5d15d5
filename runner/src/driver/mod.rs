//! Drives one trial: feeds events to the state machine, carries out its effects and stores its records.
//!
//! All waiting, clocks, processes and disk access are here or below; the decisions about failures are in the
//! state machine.

mod agent_connection;
mod anomaly;
mod controller;
mod lock;
mod straggler;
mod training_time;
mod viewer;

pub use anomaly::AnomalyDetector;
pub use viewer::{Viewer, outcome_of};

pub(crate) use lock::{TrialLock, acquire as take_lock};

use crate::audit::AuditLog;
use crate::control_protocol::{LinkChoice, Program};
use crate::controller_claim::ControllerClaim;
use crate::fact::{Ledger, LedgerError, Verdict};
use crate::home::Home;
use crate::interrupts::Interrupts;
use crate::launch::{Launcher, LocalLauncher};
use crate::ledger::TrialActivity;
use crate::machine::TrialInput;
use crate::trial_event::Observer;
use controller::TrialController;
use dtrain_protocol::{Assignment, AttemptId, ResumePoint, TrialId};
use dtrain_recipes::NoticePoll;
use rustix::process::Signal;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// One trial, with everything that is needed to drive it.
pub struct Drive<'a> {
    /// The user's state folder.
    pub home: &'a Home,
    /// Id of the trial, which the ledger already knows.
    pub trial: &'a TrialId,
    /// Lowers the plan for an attempt to the assignments of its ranks; `Err` says why that is impossible.
    pub lower: &'a dyn Fn(&LaunchContext) -> Result<Vec<Assignment>, String>,
    /// Predicts the steps of the training on a number of hosts; `None` if that is impossible.
    pub predict: &'a dyn Fn(u32) -> Option<HostsPrediction>,
    /// Programs of agents and ranks.
    pub programs: &'a Programs,
    /// Launcher of agents on several hosts; `None` for this machine.
    pub launcher: Option<Box<dyn Launcher>>,
    /// Audit log of launches and kills; `None` in tests and benches.
    pub audit: Option<AuditLog>,
    /// Options of the user.
    pub options: &'a Options,
    /// Ledger that stores records and points.
    pub ledger: &'a mut dyn Ledger,
    /// Observer to which all events and statuses of the trial are shown.
    pub observer: &'a mut dyn Observer,
    /// The user's interrupts: one lets the ranks finish their step and save, two kill them.
    pub interrupts: Arc<Interrupts>,
}

/// Context of an attempt that is about to be launched.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchContext {
    /// Number of the attempt.
    pub attempt: AttemptId,
    /// Checkpoint to resume from; `None` starts from step 0.
    pub from: Option<ResumePoint>,
    /// Total training time of all earlier attempts, in seconds.
    pub spent_seconds: f64,
    /// Folder of the trial's checkpoints.
    pub checkpoints: PathBuf,
    /// Number of usable hosts: every [`dtrain_protocol::Placement::host`] must be below it.
    pub hosts: u32,
}

/// Prediction of the steps of a training on a number of hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostsPrediction {
    /// Number of hosts that the layout uses.
    pub hosts: u32,
    /// Time of a step, in seconds.
    pub step_seconds: f64,
    /// Ends of the 80 % interval of that time.
    pub interval: (f64, f64),
}

/// Limits of the number of hosts of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Number of hosts below which no attempt is launched, at least 1.
    pub least: u32,
    /// Number of hosts above which the others are spares.
    pub most: u32,
    /// True if a running attempt may end so that the next one uses more hosts.
    pub grows: bool,
}

/// Programs that a driver starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// Program of an agent: reads an [`crate::control_protocol::AgentOrder`] and runs [`crate::agent::run`].
    pub agent: Program,
    /// Program of a rank.
    pub worker: Program,
}

impl Programs {
    /// Uses the running program itself as agent and worker, so that their versions match.
    pub fn of_this_program() -> io::Result<Self> {
        let path = std::env::current_exe()?;
        Ok(Self { agent: Program::new(&path, ["agent"]), worker: Program::new(&path, ["worker"]) })
    }
}

/// Options of the user for driving a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Return as soon as the agent has confirmed the launch.
    pub detach: bool,
    /// The reaction to an interrupt.
    pub on_interrupt: OnInterrupt,
    /// Ask the trial to stop as soon as this process controls it.
    pub stop: bool,
    /// Number of committed checkpoints to retain.
    pub keep: u32,
    /// Connection between the ranks: shared memory or mutual TLS.
    pub link: LinkChoice,
    /// Longest time without a byte from an attempt's spool before its host is given up.
    pub patience: Duration,
    /// Longest time without any reachable host of an attempt before the leader is given up as lost.
    pub lost_after: Duration,
    /// Limits of the number of hosts.
    pub hosts: HostLimits,
    /// Time that ranks have to stop before their agent kills them, to be shown to the user;
    /// [`crate::control_protocol::STOP_GRACE_PERIOD`] for a foreign program, `None` otherwise.
    pub killed_after: Option<Duration>,
    /// How each host learns that its machine will be taken away; `None` if it does not ask.
    pub notice: Option<NoticePoll>,
}

/// The reaction of a controller to an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInterrupt {
    /// The trial stops.
    Stop,
    /// The controller detaches, and the trial continues.
    Leave,
}

impl Default for Options {
    fn default() -> Self {
        let (detach, stop) = (false, false);
        let (on_interrupt, link) = (OnInterrupt::Stop, LinkChoice::SharedMemory);
        let (patience, lost_after) = (Duration::from_secs(30), Duration::from_secs(600));
        let hosts = HostLimits { least: 1, most: u32::MAX, grows: false };
        let (killed_after, notice) = (None, None);
        Self { detach, on_interrupt, stop, keep: 3, link, patience, lost_after, hosts, killed_after, notice }
    }
}

/// Outcome of driving a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum DriveOutcome {
    /// The trial has ended.
    Ended {
        /// Verdict of the trial.
        verdict: Verdict,
        /// Newest durable checkpoint, if there is one.
        checkpoint: Option<ResumePoint>,
        /// Number of attempts launched so far.
        attempts: u64,
    },
    /// The trial continues without a controller.
    Detached {
        /// Process id of the agent; `None` during a pause between attempts.
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

/// Resumes a trial: attaches to it if it still runs, otherwise launches it from the newest durable
/// checkpoint. A completed trial returns its outcome immediately.
pub fn resume(drive: Drive<'_>) -> Result<DriveOutcome, DriveError> {
    let mut controller = TrialController::take_over(drive)?;
    controller.recover_open_attempt(true)?;
    controller.feed(TrialInput::Resume)?;
    controller.run()
}

/// Supervises a trial that was launched before, until it ends: continues with its open attempt, or launches the
/// next one. Unlike [`resume`], it launches nothing if the trial has ended, for whatever reason.
pub fn supervise(drive: Drive<'_>) -> Result<DriveOutcome, DriveError> {
    let mut controller = TrialController::take_over(drive)?;
    controller.recover_open_attempt(true)?;
    if let Some(outcome) = controller.outcome() {
        // The controller that recorded the end may have died before it asked the hosts.
        controller.fence_at_end()?;
        return Ok(outcome);
    }
    if controller.is_idle() {
        controller.feed(TrialInput::Resume)?;
    }
    controller.run()
}

/// Attaches to a trial that runs without a controller. `Err` if no process of it runs.
///
/// A trial that ended unobserved returns its outcome.
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
/// The request goes to the agent, or, if none runs, to the controller that waits before the next attempt.
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

/// Returns what works on a trial that has not ended. Agents on other hosts count as alive until a controller has found
/// out otherwise.
pub fn activity(home: &Home, trial: &TrialId) -> TrialActivity {
    let folder = home.trial(trial);
    let may_run = || folder.remote_hosts_file().exists() || LocalLauncher::new(&folder).is_running();
    match lock::state(&folder) {
        Some(state) if state.is_waiting => TrialActivity::Waiting,
        Some(_) => TrialActivity::Running,
        None if may_run() => TrialActivity::Unattended,
        None => TrialActivity::None,
    }
}

/// Returns the process ids of a trial's controller and agent that are alive on this machine, except this
/// process.
pub fn processes(home: &Home, trial: &TrialId) -> Vec<u32> {
    let folder = home.trial(trial);
    let agent = LocalLauncher::new(&folder).agent();
    let all = lock::holder(&folder).into_iter().chain(agent);
    all.filter(|process| *process != std::process::id()).collect()
}

/// Returns the process id of a trial's controller, if it has one.
pub fn controller(home: &Home, trial: &TrialId) -> Option<u32> {
    lock::holder(&home.trial(trial))
}

/// Returns [`DriveError::Superseded`] if the last controller on this machine ended because one on another machine took
/// over.
pub fn superseded(home: &Home, trial: &TrialId) -> Option<DriveError> {
    let newest = ControllerClaim::read(&home.trial(trial)).ok()??;
    newest.is_of_another_machine().then(|| DriveError::Superseded {
        trial: trial.clone(),
        host: newest.host,
        process: newest.process,
    })
}

/// The reason why a trial cannot be driven.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// Another controller drives the trial.
    #[error("trial {trial} already has a controller, process {process}")]
    Busy {
        /// Id of the trial.
        trial: TrialId,
        /// Process id of the other controller.
        process: u32,
    },
    /// Another controller of the trial, with a copy of its history, took over on the hosts.
    #[error(
        "another controller of this trial, process {process} on {host}, took over; this one ends and changes nothing"
    )]
    Superseded {
        /// Id of the trial.
        trial: TrialId,
        /// Name of the other controller's machine.
        host: String,
        /// Process id of the other controller there.
        process: u32,
    },
    /// The audit log cannot be written, so nothing is launched.
    #[error("cannot write the audit log {path}, so that nothing is launched")]
    Audit {
        /// Path of the audit log.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The trial is being removed, and its checkpoints are gone.
    #[error("trial {0} is partly removed: its checkpoints are gone")]
    Removed(TrialId),
    /// No process of the trial runs, so there is nothing to attach to or stop.
    #[error("trial {0} is not running")]
    NothingRuns(TrialId),
    /// An agent neither answers nor ends.
    #[error("the agent of attempt {0} is alive but does not respond and cannot be killed; see its log")]
    Unreachable(AttemptId),
    /// The hosts of a trial are unreachable; it may continue there.
    #[error("cannot control attempt {attempt}: {reason}")]
    Away {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Error of the last attempt to reach the hosts.
        reason: String,
    },
    /// An attempt is over, but its result cannot be read at the moment.
    #[error("what attempt {attempt} left behind cannot be read now: {reason}")]
    Unread {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Error of the last attempt to read the result.
        reason: String,
    },
    /// The trial has already been launched.
    #[error("trial {0} was launched before; it can be resumed, not started")]
    Launched(TrialId),
    /// The history could not be read or written. The agent continues, and a later controller can too, unless
    /// the history is gone.
    #[error("the history of the trial could not be kept")]
    Ledger(#[from] LedgerError),
    /// A file of the trial could not be used.
    #[error("cannot {doing} {}", path.display())]
    Folder {
        /// The operation that failed, such as `create`.
        doing: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_superseded_by_one_on_another_machine() {
        let root = tempfile::tempdir().expect("a folder");
        let (home, trial) = (Home::at(root.path()), TrialId("01T".into()));
        let folder = home.trial(&trial);
        folder.create().expect("room on disk");
        assert!(superseded(&home, &trial).is_none(), "no controller claimed it");
        let own = ControllerClaim::newer_than([]);
        own.store(&folder).expect("room on disk");
        assert!(superseded(&home, &trial).is_none(), "another one here may take over");
        let other = ControllerClaim { epoch: 2, host: "another machine".into(), process: 7 };
        other.store(&folder).expect("room on disk");
        let words = superseded(&home, &trial).expect("it took over").to_string();
        let told = "another controller of this trial, process 7 on another machine, took over";
        assert!(words.starts_with(told), "{words}");
        ControllerClaim::newer_than([other]).store(&folder).expect("room on disk");
        assert!(superseded(&home, &trial).is_none(), "the user took it back");
    }
}
