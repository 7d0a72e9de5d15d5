//! The rendezvous of foreign ranks: the addresses and ports at which they meet.

use super::horovod_store;
use dtrain_recipes::Framework;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, TcpListener};
use sysinfo::Networks;

/// The rendezvous of foreign ranks: free addresses and ports, which the ranks bind themselves. dtrain's own
/// ranks need none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct Rendezvous {
    /// Address of rank 0's host.
    pub(super) address: String,
    /// Port on rank 0's host for rank 0 to listen on; with Horovod, that of its [`horovod_store`].
    pub(super) port: u16,
    /// Number of hosts of the attempt.
    pub(super) hosts: u32,
    /// Address and port for each rank, on its own host.
    pub(super) peers: Vec<String>,
}

impl Rendezvous {
    /// Creates a rendezvous at `address`, the host of rank 0, with the port in `meeting` and an address and
    /// port for each rank.
    pub(in crate::agent) fn at(
        address: &str,
        meeting: &str,
        hosts: u32,
        peers: Vec<String>,
    ) -> Result<Self, String> {
        let port = meeting.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port = port.ok_or_else(|| format!("{meeting:?} is not an address with its port"))?;
        Ok(Self { address: address.into(), port, hosts, peers })
    }
}

/// Returns `count` different free ports of an address of this host, as `address:port`.
pub(in crate::agent) fn free_ports(address: &str, count: u32) -> io::Result<Vec<String>> {
    let bound: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((address, 0))).collect::<io::Result<_>>()?;
    bound.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

/// Returns the rendezvous port on this host: a free one for rank 0, or with Horovod that of its store.
pub(in crate::agent) fn rendezvous_port(address: &str, framework: Framework) -> io::Result<String> {
    match framework {
        Framework::Horovod => Ok(format!("{address}:{}", horovod_store::serve(address)?)),
        _ => free_ports(address, 1).map(|mut ports| ports.remove(0)),
    }
}

/// Returns the name of this host's network interface that has the IP address `address`.
pub(super) fn interface_of(address: &str) -> Option<String> {
    let address: IpAddr = address.parse().ok()?;
    let networks = Networks::new_with_refreshed_list().ok()?;
    let mut all = networks.iter();
    let found = all.find(|(_, data)| data.ip_networks().iter().any(|network| network.addr == address));
    found.and_then(|(name, _)| name.to_str().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rank_has_a_port_and_the_meeting_one_more() {
        for framework in [Framework::Pytorch, Framework::Horovod] {
            let meeting = rendezvous_port("127.0.0.1", framework).expect("a port is free");
            let mut peers = free_ports("127.0.0.1", 2).expect("ports are free");
            peers.push("10.0.0.2:77".to_owned());
            let all: BTreeSet<&String> = peers.iter().chain([&meeting]).collect();
            assert_eq!(all.len(), 4, "{all:?}");
            let rendezvous = Rendezvous::at("127.0.0.1", &meeting, 2, peers.clone()).expect("a port");
            assert_eq!(format!("127.0.0.1:{}", rendezvous.port), meeting);
        }
        assert!(Rendezvous::at("127.0.0.1", "nowhere", 1, Vec::new()).is_err());
    }

    #[test]
    fn an_interface_is_found_by_its_address() {
        assert_eq!(interface_of("127.0.0.1").as_deref(), Some("lo"));
        assert_eq!(interface_of("203.0.113.7"), None);
        assert_eq!(interface_of("node1"), None);
    }
}
