//! The transport over SSH through libssh2.
//!
//! Strict: an unknown, changed or revoked host key is refused before a user key is offered. No agent
//! forwarding, no pty, no environment.

mod bastion;

pub use bastion::{Bastions, ConnectResult, connect_all};

use super::command_line::CommandLine;
use super::known_hosts::KnownHosts;
use super::program_stream::ProgramStream;
use super::ssh_session::{ChannelKind, OpenError, SharedSession};
use super::ssh_target::SshTarget;
use super::{PATIENCE, Transport, TransportError, authenticate};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rustix::fd::OwnedFd;
use rustix::net::sockopt;
use ssh2::{HashType, MethodType, Session};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time without an acknowledgment after which the connection counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(15);

/// Idle time before a TCP keepalive, and time between two keepalives.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Host key types in order of preference, for hosts that known_hosts does not list.
const KEY_KINDS: &str =
    "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256";

/// The transport to a host over SSH through libssh2: an authenticated session.
pub struct Ssh {
    session: SharedSession,
    name: String,
}

impl Ssh {
    /// Connects, verifies the host key, and authenticates with the SSH agent, then with the key files.
    pub fn connect(target: &SshTarget) -> Result<Self, TransportError> {
        Self::through(target, &Bastions::default())
    }

    /// Connects like [`Ssh::connect`], through `bastions`, which other hosts may share.
    pub fn through(target: &SshTarget, bastions: &Bastions) -> Result<Self, TransportError> {
        Ok(Self { session: open_session(target, bastions)?, name: target.name() })
    }
}

impl Transport for Ssh {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&mut self, line: &CommandLine) -> Result<ProgramStream, TransportError> {
        let host = self.name.clone();
        self.session.open(ChannelKind::Program(line.clone())).map_err(|why| match why {
            OpenError::Refused(source) => TransportError::Ssh { host, doing: "starting a program", source },
            why => TransportError::Stream { host, source: why.into_io() },
        })
    }
}

/// Opens an authenticated session, served by its own thread.
fn open_session(target: &SshTarget, bastions: &Bastions) -> Result<SharedSession, TransportError> {
    let failed =
        |doing: &'static str| move |source| TransportError::Ssh { host: target.name(), doing, source };
    let broken = |source| TransportError::Stream { host: target.name(), source };
    let socket: OwnedFd = match &target.via {
        Some(bastion) => bastions.tunnel(bastion, target)?.into(),
        None => connect_tcp(target)?.into(),
    };
    let held = socket.try_clone().map_err(broken)?;
    let mut session = Session::new().map_err(failed("starting a session"))?;
    session.set_timeout(u32::try_from(PATIENCE.as_millis()).unwrap_or(u32::MAX));
    session.set_tcp_stream(socket);
    let known = KnownHosts::of(&target.known_hosts, &target.revoked_keys)
        .map_err(|(path, source)| TransportError::KeyFile { host: target.name(), path, source })?;
    let (name, port) = target.known_as();
    let kinds = host_key_preference(&known.kinds(name, port));
    session.method_pref(MethodType::HostKey, &kinds).map_err(failed("choosing key types"))?;
    session.handshake().map_err(failed("shaking hands"))?;
    check_host_key(&session, &known, target)?;
    authenticate::authenticate(&session, target)?;
    SharedSession::start(session, held).map_err(broken)
}

/// Connects to the first address of the host that accepts a connection in time.
fn connect_tcp(target: &SshTarget) -> Result<TcpStream, TransportError> {
    let failed = |source| TransportError::Connect { host: target.name(), source };
    let mut last = io::Error::other("the name has no address");
    for address in (target.host.as_str(), target.port).to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, PATIENCE).and_then(with_keepalive) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// Enables TCP keepalive, as libssh2 never notices that a host is gone.
fn with_keepalive(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let lost = u32::try_from(LOST_AFTER.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(&stream, lost)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, ASK_EVERY)?;
    sockopt::set_tcp_keepintvl(&stream, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(&stream, 3)?;
    Ok(stream)
}

/// Returns the host key types to request, those in known_hosts first. An RSA key is requested with SHA-2
/// signatures.
fn host_key_preference(kinds: &[&str]) -> String {
    let known = kinds.iter().map(|kind| if *kind == "ssh-rsa" { "rsa-sha2-512,rsa-sha2-256" } else { kind });
    let known: Vec<_> = known.collect();
    if known.is_empty() { KEY_KINDS.to_owned() } else { known.join(",") }
}

fn check_host_key(session: &Session, known: &KnownHosts, target: &SshTarget) -> Result<(), TransportError> {
    let key = session.host_key().map(|(key, _)| key.to_vec()).unwrap_or_default();
    let (name, port) = target.known_as();
    known.check(name, port, &key).map_err(|problem| TransportError::HostKey {
        host: target.name(),
        problem,
        fingerprint: session
            .host_key_hash(HashType::Sha256)
            .map_or_else(|| "unknown".to_owned(), |hash| format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_whose_host_is_gone_ends_after_a_while() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("it listens")).expect("it listens");
        let stream = with_keepalive(stream).expect("Linux");
        assert_eq!(sockopt::tcp_user_timeout(&stream), Ok(15_000));
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(true));
    }

    #[test]
    fn a_host_known_by_rsa_is_asked_for_sha2_signatures() {
        assert_eq!(host_key_preference(&["ssh-rsa"]), "rsa-sha2-512,rsa-sha2-256");
        assert_eq!(host_key_preference(&["ecdsa-sha2-nistp256"]), "ecdsa-sha2-nistp256");
        assert!(host_key_preference(&[]).starts_with("ssh-ed25519"));
    }
}
