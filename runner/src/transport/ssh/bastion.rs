//! Bastions (jump hosts): each has one session, for any number of hosts behind it.
//!
//! A bastion's sshd refuses most of many simultaneous connections (`MaxStartups`), but takes any number of
//! tunnels over one.

use super::super::ssh_session::{ChannelKind, OpenError, SharedSession};
use super::super::ssh_target::SshTarget;
use super::super::{PATIENCE, Transport, TransportError};
use super::{Ssh, open_session};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The sessions with all bastions, each opened on first use.
#[derive(Default)]
pub struct Bastions {
    slots: Mutex<BTreeMap<String, Arc<Mutex<BastionSession>>>>,
}

/// State of the session with one bastion.
#[derive(Default)]
enum BastionSession {
    #[default]
    Unknown,
    Open(Arc<SharedSession>),
    /// The session could not be opened at this time. Not retried immediately: other hosts wait for the same
    /// answer.
    Failed(Instant, Arc<TransportError>),
}

impl Bastions {
    /// Opens a tunnel to `host` through `bastion`.
    pub(super) fn tunnel(&self, bastion: &SshTarget, host: &SshTarget) -> Result<UnixStream, TransportError> {
        let slot = Arc::clone(lock(&self.slots).entry(bastion.route()).or_default());
        loop {
            let what = ChannelKind::Tunnel { host: host.host.clone(), port: host.port };
            let (session, is_new) = self
                .session(bastion, &slot)
                .map_err(|source| TransportError::Bastion { host: host.name(), source })?;
            let why = match session.open(what) {
                Ok(stream) => return Ok(stream.into_pipe()),
                Err(why) => why,
            };
            match why {
                // Another host keeps the session busy, or the session ended while it was idle.
                OpenError::Stuck => {}
                OpenError::Gone(_) if !is_new => forget(&slot, &session),
                why => {
                    let (host, bastion) = (host.name(), bastion.name());
                    return Err(TransportError::Tunnel { host, bastion, source: why.into_io() });
                }
            }
        }
    }

    /// Returns the session with a bastion, and `true` if it was opened by this call.
    fn session(
        &self,
        bastion: &SshTarget,
        slot: &Mutex<BastionSession>,
    ) -> Result<(Arc<SharedSession>, bool), Arc<TransportError>> {
        let mut slot = lock(slot);
        match &*slot {
            BastionSession::Open(session) if !session.is_stuck() => return Ok((Arc::clone(session), false)),
            BastionSession::Failed(since, error) if since.elapsed() < PATIENCE => {
                return Err(Arc::clone(error));
            }
            _ => {}
        }
        match open_session(bastion, self) {
            Ok(session) => {
                let session = Arc::new(session);
                *slot = BastionSession::Open(Arc::clone(&session));
                Ok((session, true))
            }
            Err(error) => {
                let error = Arc::new(error);
                *slot = BastionSession::Failed(Instant::now(), Arc::clone(&error));
                Err(error)
            }
        }
    }
}

/// Drops a broken session, so that the next caller opens a new one.
fn forget(slot: &Mutex<BastionSession>, session: &Arc<SharedSession>) {
    let mut slot = lock(slot);
    if matches!(&*slot, BastionSession::Open(held) if Arc::ptr_eq(held, session)) {
        *slot = BastionSession::Unknown;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connected host and the time that the connection took, or the error.
pub type ConnectResult = Result<(Box<dyn Transport>, Duration), TransportError>;

/// Connects to all hosts at the same time, with one thread each; returns results in the order of `targets`.
pub fn connect_all(targets: &[SshTarget], bastions: &Bastions) -> Vec<ConnectResult> {
    let connect = |target: &SshTarget| -> ConnectResult {
        let since = Instant::now();
        let ssh = Ssh::through(target, bastions)?;
        Ok((Box::new(ssh), since.elapsed()))
    };
    thread::scope(|scope| {
        let running: Vec<_> = targets.iter().map(|target| scope.spawn(move || connect(target))).collect();
        let join = |(target, thread): (&SshTarget, thread::ScopedJoinHandle<'_, ConnectResult>)| {
            thread.join().unwrap_or_else(|_| {
                let source = std::io::Error::other("the connecting thread failed");
                Err(TransportError::Connect { host: target.name(), source })
            })
        };
        targets.iter().zip(running).map(join).collect()
    })
}
