//! Hosts that the launcher reaches over SSH.

use super::relay::{Connector, RemoteHost};
use crate::open_file_limit::raise_open_file_limit;
use crate::transport::{
    Bastions, OpenSsh, ProgramDigest, ProgramMode, Ssh, SshTarget, Transport, TransportError, UploadOutcome,
    User,
};
use dtrain_recipes::{Host, SshBackend as Way, Subnet};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A report on the connection to a host.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectReport {
    /// The host as the recipe names it.
    pub host: String,
    /// Time until the host had authenticated the user, since the start of the connection.
    pub connected: Duration,
    /// The upload of the program.
    pub upload: UploadOutcome,
}

/// A host that cannot be used now.
#[derive(Debug)]
pub struct HostUnavailable {
    /// The host as the recipe names it.
    pub host: String,
    /// The reason why the host cannot be used.
    pub error: TransportError,
}

/// Number of file descriptors for each host: sockets, pipes, and the wakers of both threads.
const FILES_PER_HOST: u64 = 8;

/// Raises the open-file limit to what `hosts` connections need. `Err` tells the limit and a remedy.
pub fn allow_connections(hosts: usize) -> Result<(), String> {
    raise_open_file_limit(CONTROLLER_FILES + FILES_PER_HOST * hosts as u64, "a controller of so many hosts")
}

/// Number of file descriptors that a controller needs besides those for hosts.
const CONTROLLER_FILES: u64 = 128;

/// Connects to all hosts at the same time and uploads `program` to each; returns them in order.
///
/// A host that cannot be used now is retried when it is next asked. `Err` if the program cannot be read.
pub fn reach_all(
    hosts: &[Host],
    way: Way,
    user: &User,
    program: &Path,
    network: Option<Subnet>,
) -> io::Result<Vec<(RemoteHost, Result<ConnectReport, HostUnavailable>)>> {
    let digest = ProgramDigest::of(program)?;
    let bastions = Arc::new(Bastions::default());
    let connector = |host: &Host| SshConnector {
        host: host.clone(),
        way,
        user: user.clone(),
        bastions: Arc::clone(&bastions),
        program: program.to_owned(),
        digest,
        transport: None,
    };
    let connect = |mut connector: SshConnector| {
        let name = connector.host.address.clone();
        let arrival = connector.connect().map_err(|error| HostUnavailable { host: name.clone(), error });
        (RemoteHost::new(name, Box::new(connector)).on(network), arrival)
    };
    Ok(thread::scope(|scope| {
        let connectors = hosts.iter().map(connector);
        let connecting: Vec<_> =
            connectors.map(|connector| scope.spawn(move || connect(connector))).collect();
        connecting.into_iter().map(|thread| thread.join().expect("connecting does not panic")).collect()
    }))
}

/// A connector to an SSH host that connects when needed, and again after the connection is lost.
struct SshConnector {
    host: Host,
    way: Way,
    user: User,
    bastions: Arc<Bastions>,
    program: PathBuf,
    digest: ProgramDigest,
    transport: Option<Box<dyn Transport>>,
}

impl SshConnector {
    fn connect(&mut self) -> Result<ConnectReport, TransportError> {
        let since = Instant::now();
        let mut transport: Box<dyn Transport> = match self.way {
            Way::Ssh2 => {
                let target = SshTarget::resolve(&self.host, &self.user)?;
                Box::new(Ssh::through(&target, &self.bastions)?)
            }
            Way::OpenSsh => Box::new(OpenSsh::connect(&self.host, &self.user)?),
        };
        let connected = since.elapsed();
        let upload = transport.upload(&self.program, &self.digest)?;
        self.transport = Some(transport);
        Ok(ConnectReport { host: self.host.address.clone(), connected, upload })
    }

    /// Starts the relay's program over the open connection.
    fn open(&mut self) -> Option<UnixStream> {
        let stream = self.transport.as_mut()?.open(&self.digest, ProgramMode::Stdio).ok()?;
        stream.pipe().try_clone().ok()
    }
}

impl Connector for SshConnector {
    fn dial(&mut self) -> io::Result<UnixStream> {
        if let Some(stream) = self.open() {
            return Ok(stream);
        }
        self.transport = None;
        self.connect().map_err(io::Error::other)?;
        self.open().ok_or_else(|| io::Error::other("the connection was lost immediately after it was made"))
    }
}
