//! The client of the relay: the controller's side of the connection to a host.

use super::super::timeouts::{LAUNCH_SILENCE_TIMEOUT, STALL_TIMEOUT};
use super::super::{AgentContact, ConnectedAgent};
use super::spool_remainder::SpoolRemainder;
use super::{Reply, Request};
use crate::control_protocol::{AgentCard, AgentOrder, FollowerOrder, LaunchError};
use crate::controller_claim::HeldClaim;
use crate::engine_environment::EngineEnvironment;
use dtrain_protocol::{AttemptId, HostFacts, Placement, Rank, TrialId, frame};
use dtrain_recipes::{Subnet, TrainingEngine};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum size in bytes of a reply; a larger one is an error.
const MAX_REPLY_BYTES: u64 = 1 << 30;

/// A way to start the relay's server on a host.
pub trait Connector: Send {
    /// Starts the server; the stream is its standard input and output.
    fn dial(&mut self) -> io::Result<UnixStream>;

    /// Returns the last error of the connection, such as why it ended.
    fn last_words(&self) -> Option<String> {
        None
    }
}

/// A host on which the controller acts through a relay.
pub struct RemoteHost {
    /// Name of the host in messages.
    pub name: String,
    dial: Box<dyn Connector>,
    stream: Option<UnixStream>,
    disconnect: Disconnect,
    network: Option<Subnet>,
    /// Claim of the controller that asks; empty for a user.
    pub(super) claim: HeldClaim,
}

/// A handle that closes the connection to a host from another thread.
#[derive(Clone, Default)]
pub(in crate::launch) struct Disconnect(Arc<Mutex<Option<UnixStream>>>);

impl Disconnect {
    /// Closes the connection, which ends a wait for an answer.
    pub(in crate::launch) fn disconnect(&self) {
        if let Some(stream) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    fn set(&self, stream: &UnixStream) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stream.try_clone().ok();
    }
}

impl RemoteHost {
    /// Creates a host that is reached through `dial`.
    pub fn new(name: impl Into<String>, dial: Box<dyn Connector>) -> Self {
        let (name, disconnect, claim) = (name.into(), Disconnect::default(), HeldClaim::default());
        Self { name, dial, stream: None, disconnect, network: None, claim }
    }

    /// Sets the network for the host's communication with other hosts.
    #[must_use]
    pub fn on(self, network: Option<Subnet>) -> Self {
        Self { network, ..self }
    }

    /// Returns the network for the host's communication with other hosts; `None` for the one over which it
    /// was reached.
    pub fn network(&self) -> Option<Subnet> {
        self.network
    }

    pub(in crate::launch) fn disconnect(&self) -> Disconnect {
        self.disconnect.clone()
    }

    fn connect(&mut self) -> io::Result<UnixStream> {
        let stream = self.dial.dial()?;
        self.disconnect.set(&stream);
        Ok(stream)
    }

    /// Asks for the address under which other hosts reach this host.
    pub(crate) fn address(&mut self) -> Result<String, String> {
        match self.ask(&Request::Address { network: self.network })? {
            Reply::Address(address) => Ok(address),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Asks for the facts about the host that the planner needs.
    pub fn facts(&mut self) -> Result<HostFacts, String> {
        match self.ask(&Request::Facts)? {
            Reply::Facts(facts) => Ok(facts),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Checks that the host has the interpreter and the packages of an engine, and returns what it found; see
    /// [`crate::engine_environment::examine`].
    pub fn engine(
        &mut self,
        engine: TrainingEngine,
        python: Option<&str>,
    ) -> Result<EngineEnvironment, String> {
        match self.ask(&Request::Engine { engine, python: python.map(str::to_owned) })? {
            Reply::Engine(environment) => Ok(environment),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Installs the Python environment of an engine on the host; see [`crate::engine_environment::install`].
    pub fn install_engine(
        &mut self,
        engine: TrainingEngine,
        wheels: Option<&Path>,
        say: &mut dyn FnMut(&str),
    ) -> Result<EngineEnvironment, String> {
        let mut reply = self.ask(&Request::InstallEngine { engine, wheels: wheels.map(Path::to_owned) })?;
        loop {
            match (reply, &self.stream) {
                (Reply::Installing { line }, Some(stream)) => {
                    say(&line);
                    reply = frame::read(&mut &*stream).map_err(|error| error.to_string())?;
                }
                (Reply::Engine(environment), _) => return Ok(environment),
                (other, _) => return Err(unexpected_reply(&other)),
            }
        }
    }

    /// Starts a measuring rank on the host; returns the rank's standard input and output.
    pub(crate) fn measure(&mut self, placement: &Placement) -> Result<UnixStream, String> {
        let stream = self.dial.dial().map_err(|error| error.to_string())?;
        match exchange(&stream, &Request::Measure { placement: placement.clone() })? {
            Reply::Measuring => Ok(stream),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(in crate::launch) fn lead(&mut self, order: AgentOrder) -> Result<AgentCard, LaunchError> {
        match self.ask_once(&Request::Lead { order: Box::new(order), claim: self.claim.own() }) {
            Ok(Reply::Leading(card)) => Ok(card),
            Ok(Reply::NoCheckpoint { reason }) => Err(LaunchError::Checkpoint(reason)),
            Ok(Reply::FailedOn { host, reason }) => Err(LaunchError::OnHost { host, reason }),
            Ok(other) => Err(unexpected_reply(&other).into()),
            Err(RequestError::NotSent(reason)) => Err(reason.into()),
            Err(RequestError::MaybeSent(reason)) => Err(LaunchError::Unknown(reason)),
        }
    }

    pub(in crate::launch) fn follow(&mut self, order: FollowerOrder) -> Result<String, String> {
        match self.ask_once(&Request::Follow { order: Box::new(order), claim: self.claim.own() }) {
            Ok(Reply::Following { address }) => Ok(address),
            Ok(other) => Err(unexpected_reply(&other)),
            // A follower without a leader ends by itself.
            Err(RequestError::NotSent(reason) | RequestError::MaybeSent(reason)) => Err(reason),
        }
    }

    /// Reaches the agent of `attempt` on the host. `Err` if the host cannot be asked.
    pub(in crate::launch) fn reach(
        &mut self,
        trial: &TrialId,
        attempt: AttemptId,
        from: u64,
    ) -> Result<AgentContact, String> {
        let reply = self.ask(&Request::Reach { trial: trial.clone(), attempt, from })?;
        Ok(match (reply, self.stream.take()) {
            (Reply::Connected(card), Some(stream)) => {
                let spool = stream.try_clone().map_err(|error| error.to_string())?;
                // Processes of another host cannot be inspected from here.
                AgentContact::Connected(ConnectedAgent {
                    agent: card.agent.id,
                    ranks: Vec::new(),
                    spool: Box::new(spool),
                    requests: Box::new(stream),
                })
            }
            (Reply::Gone, stream) => {
                self.stream = stream;
                AgentContact::Gone
            }
            (Reply::Failed { reason }, stream) => {
                self.stream = stream;
                AgentContact::Away { reason: format!("{}: {reason}", self.name), is_at_work: false }
            }
            (_, stream) => {
                self.stream = stream;
                AgentContact::Silent
            }
        })
    }

    /// Reads the spool of a dead agent, or the mirror of one. `Err` if the host cannot be asked or cannot
    /// read it.
    pub(in crate::launch) fn spool_remainder(
        &mut self,
        trial: &TrialId,
        attempt: AttemptId,
        from: u64,
        is_mirror: bool,
    ) -> Result<SpoolRemainder, String> {
        let reply = self.ask(&Request::Leftover { trial: trial.clone(), attempt, from, is_mirror })?;
        match (reply, self.stream.take()) {
            // The reader owns the stream: the next request opens another.
            (Reply::Bytes { bytes }, Some(stream)) => {
                SpoolRemainder::new(stream, bytes, STALL_TIMEOUT).map_err(|error| error.to_string())
            }
            (other, stream) => {
                self.stream = stream;
                Err(unexpected_reply(&other))
            }
        }
    }

    /// Lists a trial's logs on the host: each of a rank in an attempt, or (`None`) of the agents.
    pub fn logs(&mut self, trial: &TrialId) -> Result<Vec<Option<(AttemptId, Rank)>>, String> {
        match self.ask(&Request::Logs { trial: trial.clone() })? {
            Reply::Logs(logs) => Ok(logs),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Reads a piece of a log on the host from byte `from`.
    pub fn log(
        &mut self,
        trial: &TrialId,
        of: Option<(AttemptId, Rank)>,
        from: u64,
    ) -> Result<Vec<u8>, String> {
        self.bytes(&Request::Log { trial: trial.clone(), of, from })
    }

    pub(super) fn bytes(&mut self, request: &Request) -> Result<Vec<u8>, String> {
        match (self.ask(request)?, &self.stream) {
            (Reply::Bytes { bytes }, _) if bytes > MAX_REPLY_BYTES => {
                self.stream = None;
                Err(format!("it answers with {bytes} bytes, of which at most {MAX_REPLY_BYTES} are read"))
            }
            (Reply::Bytes { bytes }, Some(stream)) => {
                let mut all = Vec::new();
                Read::take(stream, bytes).read_to_end(&mut all).map_err(|error| error.to_string())?;
                Ok(all)
            }
            (other, _) => Err(unexpected_reply(&other)),
        }
    }

    /// Removes the state of a trial that is not running from the host; returns the number of bytes freed.
    pub fn remove(&mut self, trial: &TrialId) -> Result<u64, String> {
        match self.ask(&Request::Remove { trial: trial.clone() })? {
            Reply::Removed { bytes } => Ok(bytes),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(in crate::launch) fn is_alive(
        &mut self,
        trial: &TrialId,
        attempt: AttemptId,
    ) -> Result<bool, String> {
        match self.ask(&Request::IsAlive { trial: trial.clone(), attempt })? {
            Reply::Alive(is_alive) => Ok(is_alive),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Kills attempts before `attempt` for good; returns the one that was alive, if any.
    pub fn fence(&mut self, trial: &TrialId, attempt: AttemptId) -> Result<Option<AttemptId>, String> {
        match self.ask(&Request::Fence { trial: trial.clone(), attempt, claim: self.claim.own() })? {
            Reply::Fenced { ended } => Ok(ended),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(in crate::launch) fn kill(&mut self, trial: &TrialId, attempt: AttemptId) -> Result<bool, String> {
        match self.ask(&Request::Kill { trial: trial.clone(), attempt, claim: self.claim.own() })? {
            Reply::Killed { is_gone } => Ok(is_gone),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends a request over the open stream, or over a new one if there is none or the host closed it. `Err` if another
    /// controller took over.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Reply, String> {
        let reply = self.reply_to(request)?;
        self.unless_superseded(reply)
    }

    fn reply_to(&mut self, request: &Request) -> Result<Reply, String> {
        if let Some(stream) = self.stream.take()
            && let Ok(reply) = exchange(&stream, request)
        {
            self.stream = Some(stream);
            return Ok(reply);
        }
        let stream = self.connect().map_err(|error| error.to_string())?;
        let reply = exchange(&stream, request).map_err(|error| self.with_last_words(error))?;
        self.stream = Some(stream);
        Ok(reply)
    }

    /// Sends a request that must not be repeated if the connection breaks, since the host may act twice.
    fn ask_once(&mut self, request: &Request) -> Result<Reply, RequestError> {
        // A stream that the host closed would lose the request; this question may be repeated.
        self.address().map_err(RequestError::NotSent)?;
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect().map_err(|error| RequestError::NotSent(error.to_string()))?,
        };
        // The server ignores a request that was not written completely.
        frame::write(&mut &stream, request).map_err(|error| RequestError::NotSent(error.to_string()))?;
        drop(stream.set_read_timeout(Some(LAUNCH_SILENCE_TIMEOUT)));
        let reply = loop {
            match frame::read(&mut &stream) {
                Ok(Reply::Launching) => {}
                Ok(reply) => break reply,
                Err(error) => return Err(RequestError::MaybeSent(self.with_last_words(error.to_string()))),
            }
        };
        drop(stream.set_read_timeout(None));
        self.stream = Some(stream);
        self.unless_superseded(reply).map_err(RequestError::NotSent)
    }

    fn with_last_words(&self, error: String) -> String {
        match self.dial.last_words() {
            Some(words) => format!("{error} ({words})"),
            None => error,
        }
    }
}

/// The reason why a request that is not retried has no answer.
enum RequestError {
    /// The request did not reach the host, or was refused.
    NotSent(String),
    /// The host may have received the request and may act on it.
    MaybeSent(String),
}

fn exchange(stream: &UnixStream, request: &Request) -> Result<Reply, String> {
    let mut to = stream;
    frame::write(&mut to, request).map_err(|error| error.to_string())?;
    frame::read(&mut &*stream).map_err(|error| error.to_string())
}

pub(super) fn unexpected_reply(reply: &Reply) -> String {
    match reply {
        Reply::Failed { reason } => reason.clone(),
        other => format!("unexpected answer: {other:?}"),
    }
}

#[cfg(test)]
mod tests;
