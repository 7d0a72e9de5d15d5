//! A launcher at the other end of a stream: what the controller cannot do on a host itself, this program does there for it.
//!
//! The stream carries requests and replies in turn, as frames. A stream that was connected with an agent belongs to
//! that agent from then on.

use super::{Connection, Launcher, LocalLauncher, NotLaunched, Reached};
use crate::agent::{AgentCard, AgentOrder, FollowerOrder, Program};
use crate::driver::{Programs, logs};
use crate::home::{Home, TrialFolder};
use crate::process::bind_to_this_thread;
use dtrain_protocol::{AttemptId, HostFacts, Rank, TrialId, frame};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Most bytes of a log that are given at once.
const LOG_PIECE: u64 = 1 << 20;

/// What is asked of the far end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// Under which address others reach the host.
    Address,
    /// Start the agent that leads. Folders and programs of the order are those of the host.
    Lead(Box<AgentOrder>),
    /// Start an agent that follows.
    Follow(Box<FollowerOrder>),
    /// Connect this stream with an agent that leads.
    Reach { trial: TrialId, attempt: AttemptId, from: u64 },
    /// What an agent that is gone left behind.
    Leftover { trial: TrialId, attempt: AttemptId, from: u64 },
    /// What the planner must know of the host.
    Facts,
    /// Start a rank that measures, with so many threads; this stream is its standard input and output from then on.
    Measure { threads: u32 },
    /// Whose logs of a trial there are: of a rank in an attempt, or of the agents.
    Logs { trial: TrialId },
    /// What one of them says.
    Log { trial: TrialId, of: Option<(AttemptId, Rank)>, from: u64 },
    /// Whether the agent of an attempt lives.
    IsAlive { trial: TrialId, attempt: AttemptId },
    /// Kill what lives of an attempt.
    Kill { trial: TrialId, attempt: AttemptId },
}

/// What the far end answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Address(String),
    Leading(AgentCard),
    Following {
        address: String,
    },
    /// The stream is the agent's from here on.
    Connected(AgentCard),
    Silent,
    Gone,
    /// So many bytes follow.
    Bytes {
        bytes: u64,
    },
    Logs(Vec<Option<(AttemptId, Rank)>>),
    Killed {
        is_gone: bool,
    },
    Facts(HostFacts),
    /// The stream is the rank's from here on.
    Measuring,
    Alive(bool),
    /// The checkpoint that was to be gone on from cannot be had.
    NoCheckpoint {
        reason: String,
    },
    Failed {
        reason: String,
    },
}

/// The entry of the far end: serves requests from standard input until it ends. `host` is what the planner must know of this host.
pub fn run(home: &Home, programs: &Programs, host: impl Fn() -> HostFacts) -> io::Result<()> {
    let (mut stdin, mut stdout) = (io::stdin(), io::stdout());
    let starting = |trial: &TrialId| LocalLauncher::starting(&home.trial(trial), &programs.agent);
    loop {
        let request = match frame::read(&mut stdin) {
            Ok(request) => request,
            Err(frame::FrameError::Closed) => return Ok(()),
            Err(error) => return Err(io::Error::other(error)),
        };
        let reply = match request {
            Request::Address => Reply::Address(own_address()),
            Request::Lead(order) => {
                let order = at_home(*order, home, programs);
                let trial = home.trial(&order.trial);
                let mut launcher = starting(&order.trial);
                launcher.fence(order.attempt);
                made(&trial).and_then(|()| launcher.launch(&order)).map_or_else(failed, Reply::Leading)
            }
            Request::Follow(order) => {
                let trial = home.trial(&order.trial);
                let order = FollowerOrder {
                    folder: trial.path().to_owned(),
                    worker: programs.worker.clone(),
                    ..*order
                };
                let mut launcher = starting(&order.trial);
                launcher.fence(order.attempt);
                let address = made(&trial).and_then(|()| launcher.follow(&order));
                address.map_or_else(failed, |address| Reply::Following { address })
            }
            Request::Reach { trial, attempt, from } => match starting(&trial).connect(attempt, from) {
                Ok((card, stream)) => {
                    frame::write(&mut stdout, &Reply::Connected(card))?;
                    let to = stream.try_clone()?;
                    return pass_on(stream, to);
                }
                Err(Reached::Gone) => Reply::Gone,
                Err(_) => Reply::Silent,
            },
            Request::Leftover { trial, attempt, from } => match starting(&trial).leftover(attempt, from) {
                Ok(mut leftover) => {
                    give(&mut stdout, &mut leftover)?;
                    continue;
                }
                Err(error) => Reply::Failed { reason: error.to_string() },
            },
            Request::Logs { trial } => match logs(home, &trial) {
                Ok(logs) => Reply::Logs(logs.into_iter().map(|log| log.of).collect()),
                Err(error) => Reply::Failed { reason: error.to_string() },
            },
            Request::Log { trial, of, from } => match log(&home.trial(&trial), of, from) {
                Ok(mut log) => {
                    give(&mut stdout, &mut log)?;
                    continue;
                }
                Err(error) => Reply::Failed { reason: error.to_string() },
            },
            Request::IsAlive { trial, attempt } => Reply::Alive(starting(&trial).is_alive(attempt)),
            Request::Facts => Reply::Facts(host()),
            Request::Measure { threads } => match probing(&programs.worker, threads) {
                Ok(mut child) => {
                    frame::write(&mut stdout, &Reply::Measuring)?;
                    let pipes = child.stdin.take().zip(child.stdout.take());
                    let (to, from) = pipes.expect("both are piped");
                    let passed = pass_on(from, to);
                    drop(child.kill());
                    drop(child.wait());
                    return passed;
                }
                Err(error) => {
                    Reply::Failed { reason: format!("{}: {error}", programs.worker.path.display()) }
                }
            },
            Request::Kill { trial, attempt } => Reply::Killed { is_gone: starting(&trial).kill(attempt) },
        };
        frame::write(&mut stdout, &reply)?;
    }
}

/// Answers with bytes.
fn give(to: &mut impl Write, from: &mut impl Read) -> io::Result<()> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    frame::write(to, &Reply::Bytes { bytes: bytes.len() as u64 })?;
    to.write_all(&bytes)?;
    to.flush()
}

/// A piece of a log.
fn log(trial: &TrialFolder, of: Option<(AttemptId, Rank)>, from: u64) -> io::Result<impl Read + use<>> {
    let path = of.map_or_else(|| trial.agent_log(), |(attempt, rank)| trial.rank_log(attempt, rank));
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    Ok(file.take(LOG_PIECE))
}

fn failed(not_launched: NotLaunched) -> Reply {
    match not_launched {
        NotLaunched::Checkpoint(reason) => Reply::NoCheckpoint { reason },
        NotLaunched::Other(reason) => Reply::Failed { reason },
    }
}

fn made(trial: &TrialFolder) -> Result<(), NotLaunched> {
    trial.create().map_err(|error| format!("{}: {error}", trial.path().display()).into())
}

/// The order with the folders and programs of this host.
fn at_home(order: AgentOrder, home: &Home, programs: &Programs) -> AgentOrder {
    let trial = home.trial(&order.trial);
    let checkpoints = trial.checkpoints();
    let mut order = AgentOrder { folder: trial.path().to_owned(), worker: programs.worker.clone(), ..order };
    for assignment in &mut order.assignments {
        assignment.checkpoints.clone_from(&checkpoints);
        if let Some(point) = &mut assignment.resume
            && let Some(name) = point.folder.file_name()
        {
            point.folder = checkpoints.join(name);
        }
    }
    order
}

/// The address of this host on the network that the controller came by; without one this machine's own.
fn own_address() -> String {
    let ssh = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let address = ssh.split(' ').nth(2).and_then(|word| word.parse::<IpAddr>().ok());
    address.map_or_else(|| "127.0.0.1".to_owned(), |address| address.to_string())
}

/// Starts a rank that measures. It ends with this process.
fn probing(worker: &Program, threads: u32) -> io::Result<Child> {
    let mut command = Command::new(&worker.path);
    command.args(&worker.arguments).arg("probe").stdin(Stdio::piped()).stdout(Stdio::piped());
    for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"] {
        command.env(variable, threads.to_string());
    }
    bind_to_this_thread(&mut command, None);
    command.spawn()
}

/// Carries bytes between the controller and somebody here until that one ends, or the controller does: then this process ends.
fn pass_on(mut from: impl Read, mut to: impl Write + Send + 'static) -> io::Result<()> {
    thread::spawn(move || {
        drop(io::copy(&mut io::stdin(), &mut to));
        std::process::exit(0);
    });
    let mut stdout = io::stdout();
    let mut room = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut room)?;
        if length == 0 {
            return Ok(());
        }
        stdout.write_all(&room[..length])?;
        stdout.flush()?;
    }
}

/// A way to start the far end on a host.
pub trait Dial: Send {
    /// Starts it; the stream is its standard input and output.
    fn dial(&mut self) -> io::Result<UnixStream>;
}

/// The near end: a host that something else than this process must work on.
pub struct RemoteHost {
    /// What people call it.
    pub name: String,
    dial: Box<dyn Dial>,
    stream: Option<UnixStream>,
}

impl RemoteHost {
    /// A host that `dial` reaches.
    pub fn new(name: impl Into<String>, dial: Box<dyn Dial>) -> Self {
        Self { name: name.into(), dial, stream: None }
    }

    /// Under which address others reach it.
    pub(crate) fn address(&mut self) -> Result<String, String> {
        match self.ask(&Request::Address)? {
            Reply::Address(address) => Ok(address),
            other => Err(unexpected(&other)),
        }
    }

    /// What the planner must know of it.
    pub fn facts(&mut self) -> Result<HostFacts, String> {
        match self.ask(&Request::Facts)? {
            Reply::Facts(facts) => Ok(facts),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts a rank that measures there; its standard input and output.
    pub(crate) fn measure(&mut self, threads: u32) -> Result<UnixStream, String> {
        let stream = self.dial.dial().map_err(|error| error.to_string())?;
        match converse(&stream, &Request::Measure { threads })? {
            Reply::Measuring => Ok(stream),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn lead(&mut self, order: AgentOrder) -> Result<AgentCard, NotLaunched> {
        match self.ask(&Request::Lead(Box::new(order)))? {
            Reply::Leading(card) => Ok(card),
            Reply::NoCheckpoint { reason } => Err(NotLaunched::Checkpoint(reason)),
            other => Err(unexpected(&other).into()),
        }
    }

    pub(super) fn follow(&mut self, order: FollowerOrder) -> Result<String, String> {
        match self.ask(&Request::Follow(Box::new(order)))? {
            Reply::Following { address } => Ok(address),
            other => Err(unexpected(&other)),
        }
    }

    /// `Err` when the host cannot be asked.
    pub(super) fn reach(
        &mut self,
        trial: &TrialId,
        attempt: AttemptId,
        from: u64,
    ) -> Result<Reached, String> {
        let reply = self.ask(&Request::Reach { trial: trial.clone(), attempt, from })?;
        Ok(match (reply, self.stream.take()) {
            (Reply::Connected(card), Some(stream)) => {
                let spool = stream.try_clone().map_err(|error| error.to_string())?;
                // What runs on another host cannot be looked at from here.
                Reached::Connected(Connection {
                    agent: card.agent.id,
                    ranks: Vec::new(),
                    spool: Box::new(spool),
                    requests: Box::new(stream),
                })
            }
            (Reply::Gone, stream) => {
                self.stream = stream;
                Reached::Gone
            }
            (_, stream) => {
                self.stream = stream;
                Reached::Silent
            }
        })
    }

    pub(super) fn leftover(
        &mut self,
        trial: &TrialId,
        attempt: AttemptId,
        from: u64,
    ) -> Result<Vec<u8>, String> {
        self.bytes(&Request::Leftover { trial: trial.clone(), attempt, from })
    }

    /// Whose logs of a trial lie there: of a rank in an attempt, or of the agents.
    pub fn logs(&mut self, trial: &TrialId) -> Result<Vec<Option<(AttemptId, Rank)>>, String> {
        match self.ask(&Request::Logs { trial: trial.clone() })? {
            Reply::Logs(logs) => Ok(logs),
            other => Err(unexpected(&other)),
        }
    }

    /// What one of them says from byte `from` on, a piece of it.
    pub fn log(
        &mut self,
        trial: &TrialId,
        of: Option<(AttemptId, Rank)>,
        from: u64,
    ) -> Result<Vec<u8>, String> {
        self.bytes(&Request::Log { trial: trial.clone(), of, from })
    }

    fn bytes(&mut self, request: &Request) -> Result<Vec<u8>, String> {
        match (self.ask(request)?, &self.stream) {
            (Reply::Bytes { bytes }, Some(stream)) => {
                let mut all = Vec::new();
                Read::take(stream, bytes).read_to_end(&mut all).map_err(|error| error.to_string())?;
                Ok(all)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    pub(super) fn is_alive(&mut self, trial: &TrialId, attempt: AttemptId) -> Result<bool, String> {
        match self.ask(&Request::IsAlive { trial: trial.clone(), attempt })? {
            Reply::Alive(is_alive) => Ok(is_alive),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn kill(&mut self, trial: &TrialId, attempt: AttemptId) -> Result<bool, String> {
        match self.ask(&Request::Kill { trial: trial.clone(), attempt })? {
            Reply::Killed { is_gone } => Ok(is_gone),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks over the stream that is open; over a new one when there is none, or when the host dropped it meanwhile.
    fn ask(&mut self, request: &Request) -> Result<Reply, String> {
        if let Some(stream) = self.stream.take()
            && let Ok(reply) = converse(&stream, request)
        {
            self.stream = Some(stream);
            return Ok(reply);
        }
        let stream = self.dial.dial().map_err(|error| error.to_string())?;
        let reply = converse(&stream, request)?;
        self.stream = Some(stream);
        Ok(reply)
    }
}

fn converse(stream: &UnixStream, request: &Request) -> Result<Reply, String> {
    let mut to = stream;
    frame::write(&mut to, request).map_err(|error| error.to_string())?;
    frame::read(&mut &*stream).map_err(|error| error.to_string())
}

fn unexpected(reply: &Reply) -> String {
    match reply {
        Reply::Failed { reason } => reason.clone(),
        other => format!("it answers something else than it was asked: {other:?}"),
    }
}
