//! A host over SSH, through libssh2.
//!
//! Strict: an unknown, changed or revoked host key is refused before any key of ours is offered. No agent
//! forwarding, no pty, no environment; the only command line is [`SHELL`].

use super::known_hosts::KnownHosts;
use super::{Output, SHELL, Script, Transport, TransportError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ssh2::{HashType, MethodType, Session};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a connection, and every answer, may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Host key types in the order we prefer them, when known_hosts has no opinion.
const KEY_KINDS: &str =
    "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256";

/// Where to connect, as whom, and with which files of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// User name.
    pub user: String,
    /// Private keys to try after the SSH agent, in order.
    pub keys: Vec<PathBuf>,
    /// known_hosts files; missing ones are skipped.
    pub known_hosts: Vec<PathBuf>,
}

impl Target {
    /// Reads `[user@]host[:port]`, with keys and known_hosts of the user whose home is `home`.
    ///
    /// Refuses names that begin with `-` or hold anything but letters, digits, `.`, `-`, `_` and `:`.
    pub fn parse(text: &str, user: &str, home: &Path) -> Result<Self, TransportError> {
        let refuse = |why| TransportError::Name(text.to_owned(), why);
        let (user, rest) = text.split_once('@').unwrap_or((user, text));
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| refuse("the port is not a number"))?),
            None => (rest, 22),
        };
        for word in [user, host] {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if word.is_empty() || word.starts_with('-') || !word.chars().all(is_plain) {
                return Err(refuse("expected [user@]host[:port] of letters, digits, `.`, `-` and `_`"));
            }
        }
        let ssh = home.join(".ssh");
        Ok(Self {
            host: host.into(),
            port,
            user: user.into(),
            keys: ["id_ed25519", "id_ecdsa", "id_rsa"].iter().map(|name| ssh.join(name)).collect(),
            known_hosts: vec![ssh.join("known_hosts"), "/etc/ssh/ssh_known_hosts".into()],
        })
    }

    fn name(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// An authenticated session with one host.
pub struct Ssh {
    session: Session,
    name: String,
}

impl Ssh {
    /// Connects, checks the host's key, and authenticates with the SSH agent, then with the key files.
    pub fn connect(target: &Target) -> Result<Self, TransportError> {
        let name = target.name();
        let failed = |doing| {
            let host = name.clone();
            move |source| TransportError::Ssh { host, doing, source }
        };
        let stream = dial(target)?;
        let mut session = Session::new().map_err(failed("starting a session"))?;
        session.set_timeout(u32::try_from(PATIENCE.as_millis()).unwrap_or(u32::MAX));
        session.set_tcp_stream(stream);
        let mut known = KnownHosts::default();
        for path in &target.known_hosts {
            known.read(&std::fs::read_to_string(path).unwrap_or_default());
        }
        let kinds = known.kinds(&target.host, target.port);
        session
            .method_pref(MethodType::HostKey, &preference(&kinds))
            .map_err(failed("choosing key types"))?;
        session.handshake().map_err(failed("shaking hands"))?;
        check_host_key(&session, &known, target)?;
        authenticate(&session, target)?;
        Ok(Self { session, name })
    }
}

impl Transport for Ssh {
    fn run(&mut self, script: Script) -> Result<Output, TransportError> {
        let failed = |doing| {
            let host = self.name.clone();
            move |source| TransportError::Ssh { host, doing, source }
        };
        let broken = |source| TransportError::Stream { host: self.name.clone(), source };
        let mut channel = self.session.channel_session().map_err(failed("opening a channel"))?;
        channel.exec(SHELL).map_err(failed("starting the shell"))?;
        channel.write_all(script.0.as_bytes()).map_err(broken)?;
        channel.send_eof().map_err(failed("ending the script"))?;
        let (mut stdout, mut stderr) = (String::new(), String::new());
        channel.read_to_string(&mut stdout).map_err(broken)?;
        channel.stderr().read_to_string(&mut stderr).map_err(broken)?;
        channel.wait_close().map_err(failed("waiting for the end"))?;
        let status = channel.exit_status().map_err(failed("reading the exit status"))?;
        Ok(Output { status, stdout, stderr })
    }
}

/// The first address of the host that answers in time.
fn dial(target: &Target) -> Result<TcpStream, TransportError> {
    let failed = |source| TransportError::Connect { host: target.name(), source };
    let mut last = std::io::Error::other("the name has no address");
    for address in (target.host.as_str(), target.port).to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// The key types to ask for: those on record first; an RSA key on record is asked for by its SHA-2 signatures.
fn preference(kinds: &[&str]) -> String {
    let known = kinds.iter().map(|kind| if *kind == "ssh-rsa" { "rsa-sha2-512,rsa-sha2-256" } else { kind });
    let known: Vec<_> = known.collect();
    if known.is_empty() { KEY_KINDS.to_owned() } else { known.join(",") }
}

fn check_host_key(session: &Session, known: &KnownHosts, target: &Target) -> Result<(), TransportError> {
    let key = session.host_key().map(|(key, _)| key.to_vec()).unwrap_or_default();
    known.check(&target.host, target.port, &key).map_err(|problem| TransportError::HostKey {
        host: target.name(),
        problem,
        fingerprint: session
            .host_key_hash(HashType::Sha256)
            .map_or_else(|| "unknown".to_owned(), |hash| format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))),
    })
}

fn authenticate(session: &Session, target: &Target) -> Result<(), TransportError> {
    let mut tried = Vec::new();
    if session.userauth_agent(&target.user).is_ok() {
        return Ok(());
    }
    tried.push("the SSH agent".to_owned());
    for key in target.keys.iter().filter(|key| key.exists()) {
        if session.userauth_pubkey_file(&target.user, None, key, None).is_ok() {
            return Ok(());
        }
        tried.push(key.display().to_string());
    }
    Err(TransportError::Authentication {
        host: target.name(),
        user: target.user.clone(),
        tried: tried.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_dangerous_names_refused() {
        let parse = |text| Target::parse(text, "me", Path::new("/home/me"));
        let target = parse("train@gpu-01:2222").expect("a target");
        assert_eq!((target.user.as_str(), target.host.as_str(), target.port), ("train", "gpu-01", 2222));
        assert_eq!(parse("gpu-01").expect("a target").user, "me");
        for bad in ["-oProxyCommand=x", "me@-h", "a b", "h:x", "", "@h", "h;reboot", "$(x)", "h\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_host_known_by_rsa_is_asked_for_sha2_signatures() {
        assert_eq!(preference(&["ssh-rsa"]), "rsa-sha2-512,rsa-sha2-256");
        assert_eq!(preference(&["ecdsa-sha2-nistp256"]), "ecdsa-sha2-nistp256");
        assert!(preference(&[]).starts_with("ssh-ed25519"));
    }
}
