//! Connections to hosts that a step of a command leaves to the next one, which need not connect again.

use dtrain_recipes::{Cluster, Host, SshBackend, Subnet};
use dtrain_runner::launch::relay::RemoteHost;
use dtrain_runner::launch::ssh::HostUnavailable;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a connection is kept. A host that did not answer for longer may be gone.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// The connections that a command does not use now. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct KeptConnections(Arc<Mutex<Vec<KeptConnection>>>);

struct KeptConnection {
    host: Host,
    transport: SshBackend,
    remote: RemoteHost,
    since: Instant,
}

impl KeptConnections {
    /// Takes the connection to `host` out, if there is one of this transport, for communication on this network.
    pub(crate) fn take(
        &self,
        host: &Host,
        transport: SshBackend,
        network: Option<Subnet>,
    ) -> Option<RemoteHost> {
        let mut all = self.lock();
        all.retain(|kept| kept.since.elapsed() < KEPT_FOR);
        let is_wanted = |kept: &KeptConnection| {
            kept.host == *host && kept.transport == transport && kept.remote.network() == network
        };
        let index = all.iter().position(is_wanted)?;
        Some(all.swap_remove(index).remote)
    }

    /// Lends the hosts of a cluster to a step of a command. When it ends, the connections to those that are not
    /// `silent` are kept.
    pub(crate) fn lend(
        &self,
        cluster: &Cluster,
        hosts: Vec<RemoteHost>,
        silent: &[HostUnavailable],
    ) -> LentHosts {
        let answers = |host: &&Host| silent.iter().all(|silent| silent.host != host.address);
        let answering = cluster.hosts.iter().filter(answers).cloned().collect();
        LentHosts { hosts, answering, transport: cluster.transport, kept: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<KeptConnection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeptConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptConnections").finish_non_exhaustive()
    }
}

/// Hosts that a step of a command uses. Their connections are kept when this value is dropped.
#[derive(Default)]
pub(crate) struct LentHosts {
    hosts: Vec<RemoteHost>,
    /// The hosts that answered, as the recipe names them; empty if they are not reached over SSH.
    answering: Vec<Host>,
    transport: SshBackend,
    kept: KeptConnections,
}

impl LentHosts {
    /// Gives back the hosts that are not wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl FnMut(&RemoteHost) -> bool) {
        let (wanted, others) = mem::take(&mut self.hosts).into_iter().partition(is_wanted);
        self.hosts = wanted;
        self.give_back(others);
    }

    fn give_back(&self, hosts: Vec<RemoteHost>) {
        for remote in hosts {
            let mut named = self.answering.iter().filter(|host| host.address == remote.name);
            // Two hosts may differ in the port alone.
            if let (Some(host), None) = (named.next(), named.next()) {
                let (host, transport) = (host.clone(), self.transport);
                self.kept.lock().push(KeptConnection { host, transport, remote, since: Instant::now() });
            }
        }
    }
}

impl Deref for LentHosts {
    type Target = [RemoteHost];

    fn deref(&self) -> &[RemoteHost] {
        &self.hosts
    }
}

impl DerefMut for LentHosts {
    fn deref_mut(&mut self) -> &mut [RemoteHost] {
        &mut self.hosts
    }
}

impl Drop for LentHosts {
    fn drop(&mut self) {
        let hosts = mem::take(&mut self.hosts);
        self.give_back(hosts);
    }
}
