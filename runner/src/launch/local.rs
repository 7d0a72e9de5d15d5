//! The launcher for this machine: the agent is a process in its own session.

use super::cancellation::{CANCEL_POLL_INTERVAL, CancellationToken};
use super::timeouts::{AGENT_START_TIMEOUT, EXIT_TIMEOUT};
use super::{
    AgentContact, CheckpointPlacement, ConnectedAgent, DiskSearch, HostPool, Launcher, SpoolUnreadable,
};
use crate::checkpoints;
use crate::control_protocol::{
    AgentCard, AgentOrder, AgentReply, AgentRequest, AgentTask, FollowerOrder, LaunchError, Program,
};
use crate::files;
use crate::home::TrialFolder;
use crate::process::{Process, kill_group};
use crate::spool::SpoolWriter;
use crate::{channel, descendants};
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, ResumePoint, StepId, frame};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{self, PipeReader, Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The launcher that starts agents on this machine.
pub struct LocalLauncher {
    folder: TrialFolder,
    agent: Option<Program>,
    /// True if agents end with the thread that starts them.
    is_bound: bool,
    /// Agents started by this launcher, to be reaped when they end.
    children: Vec<Child>,
    cancel: CancellationToken,
}

impl LocalLauncher {
    /// Creates a launcher that reaches agents of a trial but starts none.
    pub fn new(folder: &TrialFolder) -> Self {
        let (agent, cancel) = (None, CancellationToken::default());
        Self { folder: folder.clone(), agent, is_bound: false, children: Vec::new(), cancel }
    }

    /// Creates a launcher that reaches agents of a trial and starts them as `agent`.
    pub fn starting(folder: &TrialFolder, agent: &Program) -> Self {
        Self { agent: Some(agent.clone()), ..Self::new(folder) }
    }

    /// Makes agents end with the thread that starts them.
    pub(crate) fn bound_to_this_thread(self) -> Self {
        Self { is_bound: true, ..self }
    }

    /// Returns `true` if an agent of the trial is alive.
    pub fn is_running(&self) -> bool {
        self.is_locked()
    }

    /// Returns the process id of the newest agent; `None` if it is not alive.
    pub fn agent(&self) -> Option<u32> {
        let card = self.card().filter(|card| self.is_locked() && card.agent.is_alive())?;
        Some(card.agent.id)
    }

    /// Asks the newest agent to stop its ranks; returns `false` if it cannot be reached.
    pub fn ask_to_stop(&mut self) -> bool {
        let Some(card) = self.card() else { return false };
        let Some(mut stream) = connect(&card) else { return false };
        frame::write(&mut stream, &AgentRequest::Stop).is_ok()
    }

    /// Starts a follower and returns its address and port once it listens.
    pub fn follow(&mut self, order: &FollowerOrder) -> Result<String, LaunchError> {
        match self.start(order.attempt, &AgentTask::Follow(order.clone()), &|| {})? {
            AgentReply::Listening { address } => Ok(address),
            AgentReply::Running(_) | AgentReply::Launching | AgentReply::Refused { .. } => {
                Err("the agent answers as if it led".into())
            }
        }
    }

    /// Opens the spool, or this host's mirror of it, of an attempt whose agent is gone, at byte `from`;
    /// returns it with the remaining length. `None` if there is none: an attempt that was never launched has
    /// no spool.
    pub(crate) fn open_spool(
        &self,
        attempt: AttemptId,
        from: u64,
        is_mirror: bool,
    ) -> io::Result<Option<(File, u64)>> {
        if self.is_locked() && self.card().is_some_and(|card| card.attempt == attempt) {
            return Err(io::Error::other(format!("the agent of attempt {attempt} still writes it")));
        }
        let path = if is_mirror { self.folder.mirror(attempt) } else { self.folder.spool(attempt) };
        let mut spool = match files::open(&path) {
            Ok(spool) => spool,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        spool.seek(SeekFrom::Start(from))?;
        let length = spool.metadata()?.len();
        Ok(Some((spool, length.saturating_sub(from))))
    }

    /// Returns `true` if the agent of `attempt` is alive and not stopped by a signal.
    pub(crate) fn is_alive(&self, attempt: AttemptId) -> bool {
        let is_at_work = |card: AgentCard| card.attempt == attempt && card.agent.is_running();
        self.is_locked() && self.card().is_some_and(is_at_work)
    }

    /// Kills attempts before `attempt` for good: the caller launches `attempt` and so knows that they are
    /// over. Returns the attempt that was alive; `Err` if it still is.
    pub(crate) fn fence(&mut self, attempt: AttemptId) -> Result<Option<AttemptId>, String> {
        let Some(card) = self.card().filter(|card| card.attempt < attempt) else { return Ok(None) };
        let was_alive = self.is_locked();
        if !self.kill_for_good(card.attempt)? {
            return Err(format!("the agent of attempt {} still lives", card.attempt));
        }
        Ok(was_alive.then_some(card.attempt))
    }

    /// Starts the agent of an attempt; calls `going_on` every few seconds while its ranks start.
    pub(crate) fn launch_with_keepalive(
        &mut self,
        order: &AgentOrder,
        going_on: &dyn Fn(),
    ) -> Result<AgentCard, LaunchError> {
        match self.start(order.attempt, &AgentTask::Lead(order.clone()), going_on)? {
            AgentReply::Running(card) => Ok(card),
            AgentReply::Listening { .. } | AgentReply::Launching | AgentReply::Refused { .. } => {
                Err("the agent answers as if it followed".into())
            }
        }
    }

    /// Connects to the agent of `attempt`, which then sends its spool from byte `from`. `Err` is never
    /// [`AgentContact::Connected`].
    pub(crate) fn connect(
        &mut self,
        attempt: AttemptId,
        from: u64,
    ) -> Result<(AgentCard, UnixStream), AgentContact> {
        self.reap();
        if !self.is_locked() {
            return Err(match self.kill_for_good(attempt) {
                Ok(true) => AgentContact::Gone,
                Ok(false) => AgentContact::Silent,
                Err(reason) => AgentContact::Away { reason, is_at_work: false },
            });
        }
        let card = self.card().filter(|card| card.attempt == attempt).ok_or(AgentContact::Silent)?;
        let mut stream = connect(&card).ok_or(AgentContact::Silent)?;
        frame::write(&mut stream, &AgentRequest::Follow { from }).map_err(|_| AgentContact::Silent)?;
        Ok((card, stream))
    }

    /// Kills an attempt and prevents a late launch: it creates the attempt's spool, which a starting agent
    /// must create itself. Returns `true` if no process is alive.
    ///
    /// `Err` if the spool can neither be found nor created.
    pub(crate) fn kill_for_good(&mut self, attempt: AttemptId) -> Result<bool, String> {
        if !self.kill(attempt) {
            return Ok(false);
        }
        let path = self.folder.spool(attempt);
        SpoolWriter::prevent_creation(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        // A faster agent may have created it.
        Ok(!self.is_locked())
    }

    /// Starts an agent with `task` and returns its answer; a refusal is an error.
    fn start(
        &mut self,
        attempt: AttemptId,
        task: &AgentTask,
        going_on: &dyn Fn(),
    ) -> Result<AgentReply, LaunchError> {
        self.reap();
        let Some(agent) = self.agent.clone() else { return Err("this launcher starts nothing".into()) };
        let log = self.locked_log()?;
        let mut command = Command::new(&agent.path);
        // Output of libraries in the agent belongs in its log too. Only the agent has the lock once the
        // command is dropped.
        let printed = log.try_clone().map_err(|error| format!("the agent's log: {error}"))?;
        command
            .args(&agent.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::from(printed))
            .stderr(Stdio::from(log));
        let started =
            if self.is_bound { channel::spawn_bound(command, &[]) } else { channel::spawn(command) };
        let (mut child, answers) = started.map_err(|error| format!("{}: {error}", agent.path.display()))?;
        let answer = match hand_over_task(&mut child, answers, task, &self.cancel, going_on) {
            Ok(AgentReply::Refused { reason, is_of_checkpoint: true, .. }) => {
                Err(LaunchError::Checkpoint(reason))
            }
            Ok(AgentReply::Refused { reason, host: Some(host), .. }) => {
                Err(LaunchError::OnHost { host, reason })
            }
            Ok(AgentReply::Refused { reason, .. }) => Err(LaunchError::Other(reason)),
            answer => answer.map_err(LaunchError::Other),
        };
        if answer.is_err() {
            // It refused, or its state is unknown: kill it, which ends its ranks.
            drop(child.kill());
            drop(child.wait());
            self.kill(attempt);
        } else {
            self.children.push(child);
        }
        answer
    }

    fn card(&self) -> Option<AgentCard> {
        serde_json::from_slice(&files::read(&self.folder.agent_card()).ok()?).ok()
    }

    /// Opens the log of the trial's agents. The process that holds its lock is the agent: it inherits the
    /// file as standard error.
    fn log(&self) -> io::Result<File> {
        files::append(&self.folder.agent_log())
    }

    /// Returns `true` if an agent is alive, even one that has not answered yet.
    fn is_locked(&self) -> bool {
        let Ok(log) = files::open(&self.folder.agent_log()) else { return false };
        rustix::fs::flock(&log, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }

    fn locked_log(&self) -> Result<File, String> {
        let log = self.log().map_err(|error| format!("{}: {error}", self.folder.agent_log().display()))?;
        let until = Instant::now() + EXIT_TIMEOUT;
        loop {
            match rustix::fs::flock(&log, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(log),
                Err(rustix::io::Errno::WOULDBLOCK) if self.cancel.is_cancelled() => {
                    return Err("interrupted before it was started".into());
                }
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(format!("an agent of an earlier attempt still lives: {error}")),
            }
        }
    }

    /// Reaps the agents that have ended; returns `true` if this launcher started one that has not.
    pub(crate) fn has_children(&mut self) -> bool {
        self.reap();
        !self.children.is_empty()
    }

    fn reap(&mut self) {
        self.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

impl Launcher for LocalLauncher {
    fn cancel(&self) -> CancellationToken {
        self.cancel.clone()
    }

    fn pool(&mut self) -> Option<&mut dyn HostPool> {
        None
    }

    fn launch(&mut self, order: &AgentOrder) -> Result<AgentCard, LaunchError> {
        self.launch_with_keepalive(order, &|| {})
    }

    fn reach(&mut self, attempt: AttemptId, from: u64) -> AgentContact {
        let (card, stream) = match self.connect(attempt, from) {
            Ok(found) => found,
            Err(reached) => return reached,
        };
        match stream.try_clone() {
            Ok(spool) => AgentContact::Connected(ConnectedAgent {
                agent: card.agent.id,
                ranks: card.ranks.iter().map(|rank| rank.id).collect(),
                spool: Box::new(spool),
                requests: Box::new(stream),
            }),
            Err(_) => AgentContact::Silent,
        }
    }

    /// Always `true`: the kernel reports the end of an agent on this machine.
    fn is_responsive(&mut self, _attempt: AttemptId) -> bool {
        true
    }

    fn spool_remainder(
        &mut self,
        attempt: AttemptId,
        from: u64,
    ) -> Result<Box<dyn Read + Send>, SpoolUnreadable> {
        Ok(match self.open_spool(attempt, from, false).map_err(SpoolUnreadable::Failed)? {
            Some((spool, _)) => Box::new(io::BufReader::new(spool)),
            None => Box::new(io::empty()),
        })
    }

    fn kill(&mut self, attempt: AttemptId) -> bool {
        let Some(card) = self.card().filter(|card| card.attempt == attempt) else { return !self.is_locked() };
        let gone = [card.agent].iter().chain(&card.ranks).all(|process: &Process| process.kill(EXIT_TIMEOUT));
        // Child processes of ranks do not die with them.
        card.ranks.iter().for_each(|rank| kill_group(rank.id, card.agent.id));
        let trial = self.folder.path().file_name().unwrap_or_default().to_string_lossy();
        descendants::kill_marked(&trial, attempt);
        self.reap();
        gone
    }
}

impl CheckpointPlacement for LocalLauncher {
    fn complete_checkpoints(&mut self, is_wanted: &(dyn Fn(AttemptId, StepId) -> bool + Sync)) -> DiskSearch {
        let committed = checkpoints::committed(&self.folder.checkpoints()).unwrap_or_default();
        let is_whole = |point: &ResumePoint| checkpoints::verify(&point.folder).is_ok();
        let found = committed.into_iter().filter_map(|point| {
            let (step, attempt) = parse_folder_name(point.folder.file_name()?.to_str()?)?;
            (is_wanted(attempt, step) && is_whole(&point)).then_some((attempt, step))
        });
        DiskSearch { complete: found.collect(), silent: Vec::new() }
    }

    fn is_missing(&self, folder: &Path) -> bool {
        matches!(folder.try_exists(), Ok(false))
    }

    fn verify(&mut self, folder: &Path) -> Result<(), String> {
        checkpoints::verify(folder).map(drop)
    }
}

/// Connects to the control socket of a live agent.
fn connect(card: &AgentCard) -> Option<UnixStream> {
    UnixStream::connect(&card.socket).ok().filter(|_| card.agent.is_alive())
}

/// Sends an agent its task and waits for the answer, as long as the agent reports progress.
fn hand_over_task(
    child: &mut Child,
    mut answers: PipeReader,
    task: &AgentTask,
    cancel: &CancellationToken,
    going_on: &dyn Fn(),
) -> Result<AgentReply, String> {
    let mut stdin = child.stdin.take().expect("it is piped");
    let (sender, answer) = channel();
    let bytes = frame::encode(task);
    thread::spawn(move || {
        let told = io::Write::write_all(&mut stdin, &bytes);
        drop(stdin);
        let mut heard = told.map_err(Into::into).and_then(|()| frame::read(&mut answers));
        loop {
            let is_last = !matches!(heard, Ok(AgentReply::Launching));
            if sender.send(heard).is_err() || is_last {
                return;
            }
            heard = frame::read(&mut answers);
        }
    });
    let mut until = Instant::now() + AGENT_START_TIMEOUT;
    loop {
        match answer.recv_timeout(CANCEL_POLL_INTERVAL) {
            Ok(Ok(AgentReply::Launching)) => {
                going_on();
                until = Instant::now() + AGENT_START_TIMEOUT;
            }
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => return Err(format!("the agent did not answer: {error}")),
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                return Err("interrupted before the ranks were started".into());
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(format!("the agent did not answer within {} s", AGENT_START_TIMEOUT.as_secs()));
            }
        }
    }
}
