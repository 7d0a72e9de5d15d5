//! The near end: a host as the controller asks it.

use super::super::{Connection, NotLaunched, Reached};
use super::{Reply, Request};
use crate::agent::{AgentCard, AgentOrder, FollowerOrder};
use dtrain_protocol::{AttemptId, HostFacts, Rank, TrialId, frame};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;

/// Most bytes that a host may answer with at once: no more than this is kept of what it says.
const MOST: u64 = 1 << 30;

/// A way to start the far end on a host.
pub trait Dial: Send {
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

    pub(in crate::launch) fn lead(&mut self, order: AgentOrder) -> Result<AgentCard, NotLaunched> {
        match self.ask(&Request::Lead(Box::new(order)))? {
            Reply::Leading(card) => Ok(card),
            Reply::NoCheckpoint { reason } => Err(NotLaunched::Checkpoint(reason)),
            other => Err(unexpected(&other).into()),
        }
    }

    pub(in crate::launch) fn follow(&mut self, order: FollowerOrder) -> Result<String, String> {
        match self.ask(&Request::Follow(Box::new(order)))? {
            Reply::Following { address } => Ok(address),
            other => Err(unexpected(&other)),
        }
    }

    /// `Err` when the host cannot be asked.
    pub(in crate::launch) fn reach(
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

    pub(in crate::launch) fn leftover(
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

    pub(super) fn bytes(&mut self, request: &Request) -> Result<Vec<u8>, String> {
        match (self.ask(request)?, &self.stream) {
            (Reply::Bytes { bytes }, _) if bytes > MOST => {
                self.stream = None;
                Err(format!("it answers with {bytes} bytes, of which at most {MOST} are read"))
            }
            (Reply::Bytes { bytes }, Some(stream)) => {
                let mut all = Vec::new();
                Read::take(stream, bytes).read_to_end(&mut all).map_err(|error| error.to_string())?;
                Ok(all)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    pub(in crate::launch) fn is_alive(
        &mut self,
        trial: &TrialId,
        attempt: AttemptId,
    ) -> Result<bool, String> {
        match self.ask(&Request::IsAlive { trial: trial.clone(), attempt })? {
            Reply::Alive(is_alive) => Ok(is_alive),
            other => Err(unexpected(&other)),
        }
    }

    pub(in crate::launch) fn kill(&mut self, trial: &TrialId, attempt: AttemptId) -> Result<bool, String> {
        match self.ask(&Request::Kill { trial: trial.clone(), attempt })? {
            Reply::Killed { is_gone } => Ok(is_gone),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks over the stream that is open; over a new one when there is none, or when the host dropped it meanwhile.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Reply, String> {
        if let Some(stream) = self.stream.take()
            && let Ok(reply) = converse(&stream, request)
        {
            self.stream = Some(stream);
            return Ok(reply);
        }
        let stream = self.dial.dial().map_err(|error| error.to_string())?;
        let reply = converse(&stream, request).map_err(|error| {
            self.dial.last_words().map_or(error.clone(), |words| format!("{error} ({words})"))
        })?;
        self.stream = Some(stream);
        Ok(reply)
    }
}

fn converse(stream: &UnixStream, request: &Request) -> Result<Reply, String> {
    let mut to = stream;
    frame::write(&mut to, request).map_err(|error| error.to_string())?;
    frame::read(&mut &*stream).map_err(|error| error.to_string())
}

pub(super) fn unexpected(reply: &Reply) -> String {
    match reply {
        Reply::Failed { reason } => reason.clone(),
        other => format!("unexpected answer: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// A host that answers every request in the same way.
    struct Stubborn(fn() -> Vec<u8>);

    impl Dial for Stubborn {
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
}
