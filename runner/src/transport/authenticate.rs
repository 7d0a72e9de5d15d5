//! SSH user authentication: with the keys of the SSH agent, then with key files.

use super::TransportError;
use super::ssh_target::SshTarget;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ssh2::{Agent, Error, PublicKey, Session};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Authenticates a session with the keys of the SSH agent, then with the key files.
pub(super) fn authenticate(session: &Session, target: &SshTarget) -> Result<(), TransportError> {
    // A missing or silent agent is no reason to stop.
    if by_agent(session, target).unwrap_or(false) {
        return Ok(());
    }
    let mut tried = vec!["the SSH agent".to_owned()];
    for key in target.keys.iter().filter(|key| key.exists()) {
        if let Some(mode) =
            key.metadata().ok().map(|found| found.mode() & 0o777).filter(|mode| mode & 0o077 != 0)
        {
            tried.push(format!("{}, not used as it has mode {mode:o}: others can read it", key.display()));
            continue;
        }
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

/// Tries the keys of the SSH agent, those configured for this host first: a host accepts only a few tries.
fn by_agent(session: &Session, target: &SshTarget) -> Result<bool, Error> {
    let mut agent: Agent = session.agent()?;
    if let Some(socket) = &target.agent {
        agent.set_identity_path(socket)?;
    }
    agent.connect()?;
    agent.list_identities()?;
    let ours: Vec<_> = target.keys.iter().filter_map(|key| public(key)).collect();
    let is_ours = |key: &PublicKey| ours.iter().any(|ours| ours == key.blob());
    let (first, others): (Vec<_>, Vec<_>) = agent.identities()?.into_iter().partition(is_ours);
    let others = if target.is_keys_only { Vec::new() } else { others };
    Ok(first.iter().chain(&others).any(|key| agent.userauth(&target.user, key).is_ok()))
}

/// Returns the public key of a key file, from the `.pub` file beside it or from the file itself.
fn public(key: &Path) -> Option<Vec<u8>> {
    let mut beside = key.as_os_str().to_owned();
    beside.push(".pub");
    let text = std::fs::read_to_string(beside).or_else(|_| std::fs::read_to_string(key)).ok()?;
    STANDARD.decode(text.split_whitespace().nth(1)?).ok()
}
