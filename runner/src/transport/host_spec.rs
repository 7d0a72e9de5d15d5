//! A host as the user wrote it, and the user whose SSH files are used.

use super::TransportError;
use dtrain_recipes::Host;
use std::net::Ipv6Addr;
use std::path::PathBuf;

/// The user on this machine whose SSH files are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User name on this machine.
    pub name: String,
    /// Home folder of the user, which contains `.ssh`.
    pub home: PathBuf,
    /// Path of a configuration file that replaces `~/.ssh/config` and the machine's configuration, if any.
    pub config: Option<PathBuf>,
}

/// A validated host as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostSpec {
    pub(super) user: Option<String>,
    pub(super) name: String,
    pub(super) port: Option<u16>,
}

impl HostSpec {
    pub(super) fn of(host: &Host) -> Result<Self, TransportError> {
        let address = host.address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let name = address.unwrap_or(&host.address).to_owned();
        let port = (host.port != 22).then_some(host.port);
        Self { user: host.user.clone(), name, port }.checked(&host.address)
    }

    /// Parses `[user@]host[:port]`; an IPv6 address stands in brackets. The last `@` ends the user name.
    pub(super) fn parse(text: &str) -> Result<Self, TransportError> {
        let refuse = |why| TransportError::Name(text.to_owned(), why);
        let (user, rest) =
            text.rsplit_once('@').map_or((None, text), |(user, rest)| (Some(user.to_owned()), rest));
        let bracketed = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (name, port) = match bracketed {
            Some((name, "")) => (name, None),
            Some((name, port)) => (name, Some(port.strip_prefix(':').unwrap_or(port))),
            None if rest.matches(':').count() == 1 => {
                rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)))
            }
            None => (rest, None),
        };
        let port =
            port.map(|port| port.parse().map_err(|_| refuse("the port is not a number"))).transpose()?;
        Self { user, name: name.to_owned(), port }.checked(text)
    }

    fn checked(self, text: &str) -> Result<Self, TransportError> {
        if !self.user.as_deref().is_none_or(is_user) {
            return Err(TransportError::Name(
                text.to_owned(),
                "the user is not a name: expected letters, digits, and any of `. - _ @ + \\`, not `-` first",
            ));
        }
        if is_host(&self.name) {
            return Ok(self);
        }
        let why = "expected [user@]host[:port] of letters, digits, `.`, `-` and `_`";
        Err(TransportError::Name(text.to_owned(), why))
    }
}

pub(super) fn is_host(name: &str) -> bool {
    is_plain(name) || name.parse::<Ipv6Addr>().is_ok()
}

/// Returns `true` if `word` is a user name of this machine or of a directory service, such as
/// `me@corp.example` or `CORP\me`. Refuses characters that are special to a shell or to `ssh`.
pub(super) fn is_user(word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@' | '+' | '\\');
    !word.is_empty()
        && !word.starts_with(['-', '@'])
        && !word.ends_with(['\\', '@'])
        && word.chars().all(is_part)
}

fn is_plain(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain)
}
