//! The client of the relay: a host as the controller asks it.

use super::super::{AgentContact, ConnectedAgent, LaunchError};
use super::spool_remainder::{STALL_TIMEOUT, SpoolRemainder};
use super::{Reply, Request};
use crate::agent::{AgentCard, AgentOrder, FollowerOrder};
use dtrain_protocol::{AttemptId, HostFacts, Placement, Rank, TrialId, frame};
use dtrain_recipes::Subnet;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most bytes that a host may answer with at once: no more than this is kept of what it says.
const MAX_REPLY_BYTES: u64 = 1 << 30;

/// How long a host that launches an agent may say nothing; it says every few seconds that it is at it.
const LAUNCH_SILENCE_TIMEOUT: Duration = Duration::from_secs(90);

/// A way to start the far end on a host.
pub trait Connector: Send {
    /// Starts it; the stream is its standard input and output.
    fn dial(&mut self) -> io::Result<UnixStream>;

    /// What the way itself said last, such as why it ended.
    fn last_words(&self) -> Option<String> {
        None
    }
}

/// The near end: a host that something else than this process must work on.
pub struct RemoteHost {
    /// What people call it.
    pub name: String,
    dial: Box<dyn Connector>,
    stream: Option<UnixStream>,
    disconnect: Disconnect,
    network: Option<Subnet>,
}

/// Ends the conversation with a host, from another thread.
#[derive(Clone, Default)]
pub(in crate::launch) struct Disconnect(Arc<Mutex<Option<UnixStream>>>);

impl Disconnect {
    /// Whoever waits for the answer of the host waits no longer.
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
    /// A host that `dial` reaches.
    pub fn new(name: impl Into<String>, dial: Box<dyn Connector>) -> Self {
        Self { name: name.into(), dial, stream: None, disconnect: Disconnect::default(), network: None }
    }

    /// The same, which communicates with other hosts over `network`.
    #[must_use]
    pub fn on(self, network: Option<Subnet>) -> Self {
        Self { network, ..self }
    }

    /// The network over which it communicates with other hosts; `None` for the one over which it was reached.
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

    /// Under which address others reach it.
    pub(crate) fn address(&mut self) -> Result<String, String> {
        match self.ask(&Request::Address { network: self.network })? {
            Reply::Address(address) => Ok(address),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// What the planner must know of it.
    pub fn facts(&mut self) -> Result<HostFacts, String> {
        match self.ask(&Request::Facts)? {
            Reply::Facts(facts) => Ok(facts),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Starts a rank that measures there; its standard input and output.
    pub(crate) fn measure(&mut self, placement: &Placement) -> Result<UnixStream, String> {
        let stream = self.dial.dial().map_err(|error| error.to_string())?;
        match exchange(&stream, &Request::Measure { placement: placement.clone() })? {
            Reply::Measuring => Ok(stream),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(in crate::launch) fn lead(&mut self, order: AgentOrder) -> Result<AgentCard, LaunchError> {
        match self.ask_once(&Request::Lead(Box::new(order))) {
            Ok(Reply::Leading(card)) => Ok(card),
            Ok(Reply::NoCheckpoint { reason }) => Err(LaunchError::Checkpoint(reason)),
            Ok(Reply::FailedOn { host, reason }) => Err(LaunchError::OnHost { host, reason }),
            Ok(other) => Err(unexpected_reply(&other).into()),
            Err(RequestError::NotSent(reason)) => Err(reason.into()),
            Err(RequestError::MaybeSent(reason)) => Err(LaunchError::Unknown(reason)),
        }
    }

    pub(in crate::launch) fn follow(&mut self, order: FollowerOrder) -> Result<String, String> {
        match self.ask_once(&Request::Follow(Box::new(order))) {
            Ok(Reply::Following { address }) => Ok(address),
            Ok(other) => Err(unexpected_reply(&other)),
            // One that was started and that nobody leads ends by itself.
            Err(RequestError::NotSent(reason) | RequestError::MaybeSent(reason)) => Err(reason),
        }
    }

    /// `Err` when the host cannot be asked.
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
                // What runs on another host cannot be looked at from here.
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

    /// What an agent that is gone left behind, of its own record or of its leader's. `Err` when the host cannot be asked, or cannot read it.
    pub(in crate::launch) fn spool_remainder(
        &mut self,
        trial: &TrialId,
        attempt: AttemptId,
        from: u64,
        is_mirror: bool,
    ) -> Result<SpoolRemainder, String> {
        let reply = self.ask(&Request::Leftover { trial: trial.clone(), attempt, from, is_mirror })?;
        match (reply, self.stream.take()) {
            // The stream is the reader's: what is asked next comes over another one.
            (Reply::Bytes { bytes }, Some(stream)) => {
                SpoolRemainder::new(stream, bytes, STALL_TIMEOUT).map_err(|error| error.to_string())
            }
            (other, stream) => {
                self.stream = stream;
                Err(unexpected_reply(&other))
            }
        }
    }

    /// Whose logs of a trial lie there: of a rank in an attempt, or of the agents.
    pub fn logs(&mut self, trial: &TrialId) -> Result<Vec<Option<(AttemptId, Rank)>>, String> {
        match self.ask(&Request::Logs { trial: trial.clone() })? {
            Reply::Logs(logs) => Ok(logs),
            other => Err(unexpected_reply(&other)),
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

    /// Removes what is there of a trial that does not run; bytes that are free now.
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

    /// Kills what lives there of attempts before `attempt`, and lets none of it live again; the attempt that lived.
    pub fn fence(&mut self, trial: &TrialId, attempt: AttemptId) -> Result<Option<AttemptId>, String> {
        match self.ask(&Request::Fence { trial: trial.clone(), attempt })? {
            Reply::Fenced { ended } => Ok(ended),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(in crate::launch) fn kill(&mut self, trial: &TrialId, attempt: AttemptId) -> Result<bool, String> {
        match self.ask(&Request::Kill { trial: trial.clone(), attempt })? {
            Reply::Killed { is_gone } => Ok(is_gone),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Asks over the stream that is open; over a new one when there is none, or when the host dropped it meanwhile.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Reply, String> {
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

    /// Asks what is not asked again when the conversation breaks: the host may do it twice.
    fn ask_once(&mut self, request: &Request) -> Result<Reply, RequestError> {
        // Over a stream that was dropped meanwhile it would be lost; this question may be asked twice.
        self.address().map_err(RequestError::NotSent)?;
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect().map_err(|error| RequestError::NotSent(error.to_string()))?,
        };
        // What was not written whole is not understood at the other end.
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
        Ok(reply)
    }

    fn with_last_words(&self, error: String) -> String {
        match self.dial.last_words() {
            Some(words) => format!("{error} ({words})"),
            None => error,
        }
    }
}

/// Why there is no answer to what must be asked once only.
enum RequestError {
    /// The host was not reached.
    NotSent(String),
    /// The host may have been reached, and may do what it was asked.
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
mod tests {
    use super::*;
    use crate::agent::{LinkChoice, Program};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    /// A host that answers every request in the same way.
    struct Stubborn(fn() -> Vec<u8>);

    impl Connector for Stubborn {
        fn dial(&mut self) -> io::Result<UnixStream> {
            let (near, far) = UnixStream::pair()?;
            let answer = self.0();
            thread::spawn(move || {
                while frame::read::<Request>(&mut &far).is_ok() {
                    drop(io::Write::write_all(&mut &far, &answer));
                }
            });
            Ok(near)
        }
    }

    #[test]
    fn a_host_cannot_say_more_than_is_kept() {
        let asked = |answer: fn() -> Vec<u8>| {
            let mut host = RemoteHost::new("node1", Box::new(Stubborn(answer)));
            host.log(&TrialId("01T".into()), None, 0)
        };
        let endless = asked(|| frame::encode(&Reply::Bytes { bytes: u64::MAX }));
        assert!(endless.as_ref().is_err_and(|words| words.contains("at most")), "{endless:?}");
        assert!(asked(|| vec![0xff; 64]).is_err_and(|words| words.contains("16777217")), "no frame");
        assert!(asked(|| frame::encode(&Reply::Silent)).is_err());
        let right = || [frame::encode(&Reply::Bytes { bytes: 3 }), b"log".to_vec()].concat();
        assert_eq!(asked(right), Ok(b"log".to_vec()));
    }

    /// A host that hangs up when it is told to lead, and counts how often it was.
    struct HangsUp(Arc<AtomicU32>);

    impl Connector for HangsUp {
        fn dial(&mut self) -> io::Result<UnixStream> {
            let (near, far) = UnixStream::pair()?;
            let led = Arc::clone(&self.0);
            thread::spawn(move || {
                while let Ok(request) = frame::read::<Request>(&mut &far) {
                    if matches!(request, Request::Lead(_) | Request::Follow(_)) {
                        led.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    drop(frame::write(&mut &far, &Reply::Address("10.0.0.1".into())));
                }
            });
            Ok(near)
        }
    }

    #[test]
    fn a_host_is_told_once_to_lead_and_then_nobody_knows_whether_it_does() {
        let led = Arc::new(AtomicU32::new(0));
        let mut host = RemoteHost::new("node1", Box::new(HangsUp(Arc::clone(&led))));
        host.address().expect("it answers");
        let order = AgentOrder {
            trial: TrialId("01T".into()),
            attempt: AttemptId(1),
            folder: PathBuf::new(),
            worker: Program::new("", []),
            assignments: Vec::new(),
            link: LinkChoice::SharedMemory,
            keep: 2,
            seat: None,
            others: Vec::new(),
        };
        let answer = host.lead(order);
        assert!(matches!(&answer, Err(LaunchError::Unknown(_))), "{answer:?}");
        assert_eq!(led.load(Ordering::SeqCst), 1, "it may be at work on the first order");
        host.address().expect("it is asked again over another stream");
    }
}
