//! An SSH target: address, user name, key files and bastions.

use super::TransportError;
use super::host_spec::{HostSpec, User, is_host, is_user};
use super::ssh_config::SshConfig;
use dtrain_recipes::Host;
use std::path::{Path, PathBuf};

/// Maximum number of bastions on the way to a host.
const MOST_HOPS: usize = 8;

/// A host to reach over SSH: its address, user name, key files and bastions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshTarget {
    /// Name or address of the host.
    pub host: String,
    /// TCP port of the host's SSH server.
    pub port: u16,
    /// User name on the host.
    pub user: String,
    /// Private keys to try after the SSH agent, in order.
    pub keys: Vec<PathBuf>,
    /// True to offer only those keys of the SSH agent that are in `keys`.
    pub is_keys_only: bool,
    /// Socket of the SSH agent; `None` for the one in the environment.
    pub agent: Option<PathBuf>,
    /// Paths of known_hosts files; missing ones are skipped.
    pub known_hosts: Vec<PathBuf>,
    /// Paths of files of revoked keys. If one cannot be read, every host is refused.
    pub revoked_keys: Vec<PathBuf>,
    /// Name of the host in known_hosts; `None` if it is `host`.
    pub key_alias: Option<String>,
    /// The bastion to connect through; `None` to connect directly.
    pub via: Option<Box<Self>>,
}

impl SshTarget {
    /// Resolves a host of the recipe with the user's SSH configuration.
    ///
    /// The recipe takes precedence: a user name, a port other than 22, a bastion (`none` is none). Without
    /// the program `ssh`, its defaults apply. A name that begins with `-`, or has other characters than
    /// letters, digits, `.`, `-` and `_` or an IPv6 address, is refused before a program runs. A user name
    /// may also have `@`, `+` and `\`.
    pub fn resolve(host: &Host, user: &User) -> Result<Self, TransportError> {
        resolve_route(&HostSpec::of(host)?, host.via.as_deref(), user, 0)
    }

    /// Parses `[user@]host[:port]`, and completes it as [`resolve`](Self::resolve) does.
    pub fn parse(text: &str, user: &User) -> Result<Self, TransportError> {
        resolve_route(&HostSpec::parse(text)?, None, user, 0)
    }

    /// Returns the host and its port, for messages.
    pub fn name(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Returns a text that identifies a bastion together with the route to it.
    pub(super) fn route(&self) -> String {
        let before = self.via.as_ref().map_or_else(String::new, |via| format!(" via {}", via.route()));
        format!("{}@{}{before}", self.user, self.name())
    }

    /// Returns the name and port under which known_hosts lists the host.
    pub(super) fn known_as(&self) -> (&str, u16) {
        self.key_alias.as_deref().map_or((&self.host, self.port), |alias| (alias, 22))
    }
}

/// Resolves a target. `via` is a list of bastions that takes precedence over the configuration.
fn resolve_route(
    host_spec: &HostSpec,
    via: Option<&str>,
    user: &User,
    hops: usize,
) -> Result<SshTarget, TransportError> {
    if hops > MOST_HOPS {
        let why = "more than 8 bastions one after the other: does `ProxyJump` lead back to itself?";
        return Err(TransportError::Name(host_spec.name.clone(), why));
    }
    let config = SshConfig::of(host_spec, user)?;
    let target = merge_config(host_spec, config.as_ref(), user)?;
    let config = config.unwrap_or_default();
    if let (None, None, Some(command)) = (via, &config.proxy_jump, config.proxy_command) {
        return Err(TransportError::ProxyCommand { host: host_spec.name.clone(), command });
    }
    let via = via.or(config.proxy_jump.as_deref()).filter(|via| !via.eq_ignore_ascii_case("none"));
    let via = via.map(|via| bastion(via, user, hops + 1)).transpose()?;
    Ok(SshTarget { via: via.map(Box::new), ..target })
}

/// Resolves the last bastion of a list, which is reached through those before it.
fn bastion(list: &str, user: &User, hops: usize) -> Result<SshTarget, TransportError> {
    let (before, last) = list.rsplit_once(',').map_or((None, list), |(before, last)| (Some(before), last));
    let last = last.trim();
    let last = last.strip_prefix("ssh://").unwrap_or(last);
    resolve_route(&HostSpec::parse(last)?, before, user, hops)
}

/// Returns a target without its bastion, merged from the host as written and the user's configuration.
fn merge_config(
    host_spec: &HostSpec,
    config: Option<&SshConfig>,
    user: &User,
) -> Result<SshTarget, TransportError> {
    let ssh = user.home.join(".ssh");
    let empty = SshConfig::default();
    let said = config.unwrap_or(&empty);
    let host = said.host_name.clone().unwrap_or_else(|| host_spec.name.clone());
    if !is_host(&host) {
        let why = "the SSH configuration gives it a `HostName` that is neither a plain name nor an address";
        return Err(TransportError::Name(host_spec.name.clone(), why));
    }
    let login = host_spec.user.clone().or_else(|| said.user.clone()).unwrap_or_else(|| user.name.clone());
    if !is_user(&login) {
        let why = "the SSH configuration gives it a `User` that is not the name of a user";
        return Err(TransportError::Name(host_spec.name.clone(), why));
    }
    let mut target = SshTarget {
        host,
        port: host_spec.port.or(said.port).unwrap_or(22),
        user: login,
        keys: ["id_ed25519", "id_ecdsa", "id_rsa"].iter().map(|name| ssh.join(name)).collect(),
        is_keys_only: said.is_identities_only,
        agent: None,
        known_hosts: vec![ssh.join("known_hosts"), "/etc/ssh/ssh_known_hosts".into()],
        revoked_keys: Vec::new(),
        key_alias: said.host_key_alias.clone(),
        via: None,
    };
    if config.is_some() {
        let path = |text: &String| path(text, host_spec, &target, user);
        let (keys, agent) = (said.identity_files.iter().filter_map(path).collect(), &said.identity_agent);
        // A value that is no path, such as `none` or `$NAME`, disables the agent.
        let agent = agent
            .as_ref()
            .filter(|agent| *agent != "SSH_AUTH_SOCK")
            .map(|agent| path(agent).unwrap_or_default());
        let known_hosts = said.known_hosts.iter().map(|file| in_home(file, &user.home)).collect();
        // A path that cannot be parsed is kept: it does not exist, which refuses the host.
        let revoked = |text: &str| path(&text.to_owned()).unwrap_or_else(|| text.into());
        let revoked_keys = match said.revoked_keys.as_deref() {
            None => Vec::new(),
            // One path with blanks, or several paths.
            Some(text) if revoked(text).exists() => vec![revoked(text)],
            Some(text) => text.split_whitespace().map(revoked).collect(),
        };
        (target.keys, target.agent, target.known_hosts) = (keys, agent, known_hosts);
        target.revoked_keys = revoked_keys;
    }
    Ok(target)
}

/// Expands `~` and the usual tokens of a path; `None` if it has others.
fn path(text: &str, host_spec: &HostSpec, target: &SshTarget, user: &User) -> Option<PathBuf> {
    let home = user.home.to_string_lossy();
    let text = text.strip_prefix("~/").map_or_else(|| text.to_owned(), |rest| format!("%d/{rest}"));
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        match after.chars().next()? {
            '%' => out.push('%'),
            'd' => out.push_str(&home),
            'h' => out.push_str(&target.host),
            'n' => out.push_str(&host_spec.name),
            'p' => out.push_str(&target.port.to_string()),
            'r' => out.push_str(&target.user),
            'u' => out.push_str(&user.name),
            _ => return None,
        }
        rest = &after[1..];
    }
    out.push_str(rest);
    Some(out.into())
}

/// Replaces the default known_hosts files by those in `home`, because `ssh` takes the home from the user
/// database.
fn in_home(file: &str, home: &Path) -> PathBuf {
    let default =
        ["known_hosts", "known_hosts2"].into_iter().find(|name| file.ends_with(&format!("/.ssh/{name}")));
    default.map_or_else(|| file.into(), |name| home.join(".ssh").join(name))
}

#[cfg(test)]
mod tests;
