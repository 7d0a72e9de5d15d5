//! Hosts that are reached over SSH.

use super::relay::{Dial, RemoteHost};
use crate::transport::{
    Bastions, Placed, ProgramDigest, Ssh, Target, Transport, TransportError, User, Word, connect_all,
};
use dtrain_recipes::Host;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How a host came to be ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// The host as the recipe names it.
    pub host: String,
    /// Time until it knew who we are.
    pub connected: Duration,
    /// Bytes and seconds of sending it this program; `None` when it had it.
    pub sent: Option<(u64, f64)>,
}

/// A host that cannot be used, and why.
#[derive(Debug)]
pub struct Unusable {
    /// The host as the recipe names it.
    pub host: String,
    /// Why.
    pub error: TransportError,
}

/// Connects to all hosts at the same time and puts `program` on each; `Err` names every host that cannot be used.
pub fn arrive(
    hosts: &[Host],
    user: &User,
    program: &Path,
) -> Result<Vec<(RemoteHost, Arrival)>, Vec<Unusable>> {
    let unusable = |host: &Host, error| Unusable { host: host.address.clone(), error };
    let targets = hosts.iter().map(|host| Target::resolve(host, user).map_err(|error| unusable(host, error)));
    let targets = sorted(targets.collect())?;
    let digest = ProgramDigest::of(program).map_err(|source| {
        let path = program.to_owned();
        hosts
            .iter()
            .take(1)
            .map(|host| unusable(host, TransportError::Program { path: path.clone(), source: copy(&source) }))
            .collect::<Vec<_>>()
    })?;
    let bastions = Arc::new(Bastions::default());
    let connected = connect_all(&targets, &bastions);
    let ready: Vec<_> = thread::scope(|scope| {
        let placing = hosts.iter().zip(&targets).zip(connected).map(|((host, target), connected)| {
            let bastions = Arc::clone(&bastions);
            scope.spawn(move || {
                let (mut transport, connected) = connected.map_err(|error| unusable(host, error))?;
                let placed = transport.put(program, &digest).map_err(|error| unusable(host, error))?;
                let sent = match placed {
                    Placed::AlreadyThere => None,
                    Placed::Sent { bytes, seconds } => Some((bytes, seconds)),
                };
                let line =
                    Line { transport, target: target.clone(), bastions, program: program.to_owned(), digest };
                let arrival = Arrival { host: host.address.clone(), connected, sent };
                Ok((RemoteHost::new(host.address.clone(), Box::new(line)), arrival))
            })
        });
        let placing: Vec<_> = placing.collect();
        placing.into_iter().map(|thread| thread.join().expect("placing does not panic")).collect()
    });
    sorted(ready)
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// All that went well, or all that did not.
fn sorted<T>(results: Vec<Result<T, Unusable>>) -> Result<Vec<T>, Vec<Unusable>> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(one) => good.push(one),
            Err(one) => bad.push(one),
        }
    }
    if bad.is_empty() { Ok(good) } else { Err(bad) }
}

/// A connection that is made again when it was lost.
struct Line {
    transport: Box<dyn Transport>,
    target: Target,
    bastions: Arc<Bastions>,
    program: PathBuf,
    digest: ProgramDigest,
}

impl Line {
    fn open(&mut self) -> Result<UnixStream, TransportError> {
        let stream = self.transport.open(&self.digest, Word::Stdio)?;
        let host = self.transport.name().to_owned();
        stream.pipe().try_clone().map_err(|source| TransportError::Stream { host, source })
    }
}

impl Dial for Line {
    fn dial(&mut self) -> io::Result<UnixStream> {
        let again = |line: &mut Self| {
            line.transport = Box::new(Ssh::through(&line.target, &line.bastions)?);
            line.transport.put(&line.program, &line.digest)?;
            line.open()
        };
        self.open().or_else(|_| again(self)).map_err(io::Error::other)
    }
}
