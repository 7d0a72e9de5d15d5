//! Hosts that are reached over SSH.

use super::relay::{Dial, RemoteHost};
use crate::open_files::allow;
use crate::transport::{
    Bastions, OpenSsh, Placed, ProgramDigest, Ssh, Target, Transport, TransportError, User, Word,
};
use dtrain_recipes::{Host, Network, Transport as Way};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

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

/// A host that cannot be used now, and why.
#[derive(Debug)]
pub struct Unusable {
    /// The host as the recipe names it.
    pub host: String,
    /// Why.
    pub error: TransportError,
}

/// Files that a connection with a host needs: sockets, pipes, and what wakes the threads of both.
const FILES_OF_A_HOST: u64 = 8;

/// Lets this process open as many files as connections with so many hosts need. `Err` says how many are allowed, and what to do.
pub fn connections(hosts: usize) -> Result<(), String> {
    allow(FILES_OF_A_CONTROLLER + FILES_OF_A_HOST * hosts as u64, "a controller of so many hosts")
}

/// Files of a controller whatever it does.
const FILES_OF_A_CONTROLLER: u64 = 128;

/// Connects to all hosts at the same time and puts `program` on each, in their order.
///
/// A host that cannot be used now is tried again when it is asked for something. `Err` when the program cannot be read.
pub fn reach_all(
    hosts: &[Host],
    way: Way,
    user: &User,
    program: &Path,
    network: Option<Network>,
) -> io::Result<Vec<(RemoteHost, Result<Arrival, Unusable>)>> {
    let digest = ProgramDigest::of(program)?;
    let bastions = Arc::new(Bastions::default());
    let line = |host: &Host| Line {
        host: host.clone(),
        way,
        user: user.clone(),
        bastions: Arc::clone(&bastions),
        program: program.to_owned(),
        digest,
        transport: None,
    };
    let connect = |mut line: Line| {
        let name = line.host.address.clone();
        let arrival = line.connect().map_err(|error| Unusable { host: name.clone(), error });
        (RemoteHost::new(name, Box::new(line)).on(network), arrival)
    };
    Ok(thread::scope(|scope| {
        let lines = hosts.iter().map(line);
        let connecting: Vec<_> = lines.map(|line| scope.spawn(move || connect(line))).collect();
        connecting.into_iter().map(|thread| thread.join().expect("connecting does not panic")).collect()
    }))
}

/// A connection that is made when it is needed, and again when it was lost.
struct Line {
    host: Host,
    way: Way,
    user: User,
    bastions: Arc<Bastions>,
    program: PathBuf,
    digest: ProgramDigest,
    transport: Option<Box<dyn Transport>>,
}

impl Line {
    fn connect(&mut self) -> Result<Arrival, TransportError> {
        let since = Instant::now();
        let mut transport: Box<dyn Transport> = match self.way {
            Way::Ssh2 => {
                let target = Target::resolve(&self.host, &self.user)?;
                Box::new(Ssh::through(&target, &self.bastions)?)
            }
            Way::OpenSsh => Box::new(OpenSsh::connect(&self.host, &self.user)?),
        };
        let connected = since.elapsed();
        let sent = match transport.put(&self.program, &self.digest)? {
            Placed::AlreadyThere => None,
            Placed::Sent { bytes, seconds } => Some((bytes, seconds)),
        };
        self.transport = Some(transport);
        Ok(Arrival { host: self.host.address.clone(), connected, sent })
    }

    /// Starts the program there, over the connection that stands.
    fn open(&mut self) -> Option<UnixStream> {
        let stream = self.transport.as_mut()?.open(&self.digest, Word::Stdio).ok()?;
        stream.pipe().try_clone().ok()
    }
}

impl Dial for Line {
    fn dial(&mut self) -> io::Result<UnixStream> {
        if let Some(stream) = self.open() {
            return Ok(stream);
        }
        self.transport = None;
        self.connect().map_err(io::Error::other)?;
        self.open().ok_or_else(|| io::Error::other("the connection was lost immediately after it was made"))
    }
}
