//! Why a host could not be used.

use super::known_hosts::HostKeyError;
use dtrain_recipes::Bytes;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a host could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The name or address cannot be used at all.
    #[error("`{0}` is not a host: {1}")]
    Name(String, &'static str),
    /// The user's SSH configuration cannot be read.
    #[error("`ssh -G {host}` failed: {said}")]
    Config {
        /// Host as the user wrote it.
        host: String,
        /// What `ssh` said.
        said: String,
    },
    /// The user's SSH configuration asks for something that is not offered.
    #[error(
        "the SSH configuration reaches {host} by `ProxyCommand {command}`, which is not supported: \
         use `ProxyJump` where it does the same, or write `transport = \"openssh\"` below `[cluster]`"
    )]
    ProxyCommand {
        /// Host as the user wrote it.
        host: String,
        /// The command.
        command: String,
    },
    /// No connection.
    #[error("cannot connect to {host}")]
    Connect {
        /// Host and port.
        host: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The bastion in front of the host cannot be used.
    #[error("cannot reach {host} through its bastion")]
    Bastion {
        /// Host and port.
        host: String,
        /// What is wrong with the bastion; told to every host behind it.
        #[source]
        source: Arc<Self>,
    },
    /// The bastion cannot reach the host.
    #[error("the bastion {bastion} cannot connect to {host}")]
    Tunnel {
        /// Host and port.
        host: String,
        /// Host and port of the bastion.
        bastion: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The host's key is not to be trusted.
    #[error("{host}: {problem}; its key is {fingerprint}")]
    HostKey {
        /// Host and port.
        host: String,
        /// Unknown, changed or revoked.
        problem: HostKeyError,
        /// SHA-256 of the key, as `ssh-keygen -l` prints it.
        fingerprint: String,
    },
    /// A file that may revoke the host's key cannot be read.
    #[error("{host} is refused: {path} may revoke its key and cannot be read")]
    KeyFile {
        /// Host and port.
        host: String,
        /// A known_hosts file, or one that `RevokedHostKeys` of the SSH configuration names.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// No key of ours was accepted.
    #[error("{host} accepted none of the keys tried for user {user}: {tried}")]
    Authentication {
        /// Host and port.
        host: String,
        /// User name.
        user: String,
        /// What was tried.
        tried: String,
    },
    /// SSH failed.
    #[error("ssh to {host} failed while {doing}")]
    Ssh {
        /// Host and port.
        host: String,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        #[source]
        source: ssh2::Error,
    },
    /// The stream failed.
    #[error("the connection to {host} failed")]
    Stream {
        /// Host.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program to be sent cannot be read here.
    #[error("cannot read the program {path}")]
    Program {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A fixed command did not do what it always does.
    #[error("{host}: {doing} failed: {said}")]
    Command {
        /// Host.
        host: String,
        /// What was tried.
        doing: &'static str,
        /// Standard error and exit status.
        said: String,
    },
    /// No room for the program.
    #[error(
        "not enough disk space on {host}: the program needs {wanted} in ~/.cache/dtrain, {found} are \
            free"
    )]
    Room {
        /// Host.
        host: String,
        /// Length of the program.
        wanted: Bytes,
        /// Free space found.
        found: Bytes,
    },
    /// The program did not arrive whole; what arrived was removed.
    #[error(
        "the upload of the program to {host} is incomplete: sent {sent}, found {found} ({free} are \
        free there){said}"
    )]
    Damaged {
        /// Host.
        host: String,
        /// Length of the program.
        sent: Bytes,
        /// Length that arrived.
        found: Bytes,
        /// Free space afterwards.
        free: Bytes,
        /// What the host said, after a colon; empty when it said nothing.
        said: String,
    },
    /// The program arrived, and does not name itself as it should; it was removed.
    #[error("the program sent to {host} does not run there or has another digest: {said}")]
    Unfit {
        /// Host.
        host: String,
        /// What it said of itself.
        said: String,
    },
}
