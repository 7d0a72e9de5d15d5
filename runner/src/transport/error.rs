//! Errors from connecting to a host and running commands on it.

use super::known_hosts::HostKeyError;
use dtrain_recipes::Bytes;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The reason why a host could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The name or address of a host is invalid.
    #[error("`{0}` is not a host: {1}")]
    Name(String, &'static str),
    /// The user's SSH configuration cannot be read.
    #[error("`ssh -G {host}` failed: {said}")]
    Config {
        /// The host as the user wrote it.
        host: String,
        /// Error output of the program `ssh`.
        said: String,
    },
    /// The user's SSH configuration needs an unsupported option.
    #[error(
        "the SSH configuration reaches {host} by `ProxyCommand {command}`, which is not supported: \
         use `ProxyJump` where it does the same, or write `transport = \"openssh\"` below `[cluster]`"
    )]
    ProxyCommand {
        /// The host as the user wrote it.
        host: String,
        /// Value of the `ProxyCommand` option.
        command: String,
    },
    /// The TCP connection failed.
    #[error("cannot connect to {host}")]
    Connect {
        /// Host and port.
        host: String,
        /// The cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The bastion in front of the host cannot be used.
    #[error("cannot reach {host} through its bastion")]
    Bastion {
        /// Host and port.
        host: String,
        /// The bastion's error, shared by every host behind it.
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
        /// The cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The host's key is not trusted.
    #[error("{host}: {problem}; its key is {fingerprint}")]
    HostKey {
        /// Host and port.
        host: String,
        /// The problem: the key is unknown, changed or revoked.
        problem: HostKeyError,
        /// SHA-256 fingerprint of the key, as `ssh-keygen -l` prints it.
        fingerprint: String,
    },
    /// A file that may revoke the host's key cannot be read.
    #[error("{host} is refused: {path} may revoke its key and cannot be read")]
    KeyFile {
        /// Host and port.
        host: String,
        /// A known_hosts file, or one that `RevokedHostKeys` of the SSH configuration names.
        path: PathBuf,
        /// The cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The host accepted none of the user's keys.
    #[error("{host} accepted none of the keys tried for user {user}: {tried}")]
    Authentication {
        /// Host and port.
        host: String,
        /// User name on the host.
        user: String,
        /// The authentication methods tried.
        tried: String,
    },
    /// An operation of the SSH library failed.
    #[error("ssh to {host} failed while {doing}")]
    Ssh {
        /// Host and port.
        host: String,
        /// The operation that failed.
        doing: &'static str,
        /// The cause of the failure.
        #[source]
        source: ssh2::Error,
    },
    /// The stream to a program on the host failed.
    #[error("the connection to {host} failed")]
    Stream {
        /// Host and port.
        host: String,
        /// The cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The program to upload cannot be read on this machine.
    #[error("cannot read the program {path}")]
    Program {
        /// Path of the program.
        path: PathBuf,
        /// The cause of the failure.
        #[source]
        source: io::Error,
    },
    /// One of dtrain's fixed commands failed on the host.
    #[error("{host}: {doing} failed: {said}")]
    Command {
        /// Host and port.
        host: String,
        /// The operation that failed.
        doing: &'static str,
        /// Standard error and exit status of the command.
        said: String,
    },
    /// The host has not enough disk space for the program.
    #[error(
        "not enough disk space on {host}: the program needs {wanted} in ~/.cache/dtrain, {found} are \
            free"
    )]
    Room {
        /// Host and port.
        host: String,
        /// Size of the program.
        wanted: Bytes,
        /// Free space on the host.
        found: Bytes,
    },
    /// The upload of the program is incomplete; the partial file was removed.
    #[error(
        "the upload of the program to {host} is incomplete: sent {sent}, found {found} ({free} are \
        free there){said}"
    )]
    Damaged {
        /// Host and port.
        host: String,
        /// Size of the program sent.
        sent: Bytes,
        /// Size of the file that arrived.
        found: Bytes,
        /// Free disk space on the host afterwards.
        free: Bytes,
        /// Error output of the host after a colon; empty if there is none.
        said: String,
    },
    /// The uploaded program printed a wrong digest; it was removed.
    #[error("the program sent to {host} does not run there or has another digest: {said}")]
    Unfit {
        /// Host and port.
        host: String,
        /// Output of the uploaded program.
        said: String,
    },
}
