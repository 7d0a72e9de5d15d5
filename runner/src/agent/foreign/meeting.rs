//! Where foreign ranks meet.

use super::store;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, TcpListener};
use sysinfo::Networks;

/// Where foreign ranks meet: addresses that were free, and that ranks bind themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct Rendezvous {
    /// Address of the host of rank 0 …
    pub(super) address: String,
    /// … and a port there, on which rank 0 may listen; under Horovod its [`store`] does.
    pub(super) port: u16,
    /// Hosts of the attempt.
    pub(super) hosts: u32,
    /// An address and a port for each rank, on its own host.
    pub(super) peers: Vec<String>,
}

impl Rendezvous {
    /// A meeting at this host, whose first ranks are here and all others at `elsewhere`.
    pub(in crate::agent) fn at(
        address: &str,
        hosts: u32,
        here: u32,
        elsewhere: Vec<String>,
    ) -> io::Result<Self> {
        let mut peers = free_ports(address, here + 1)?;
        let (_, port) = peers[0].rsplit_once(':').expect("an address with its port");
        let port = port.parse().map_err(io::Error::other)?;
        peers.remove(0);
        peers.extend(elsewhere);
        Ok(Self { address: address.into(), port, hosts, peers })
    }

    /// With a store at the port, in place of rank 0.
    pub(in crate::agent) fn with_a_store(self) -> io::Result<Self> {
        Ok(Self { port: store::serve(&self.address)?, ..self })
    }
}

/// So many different ports of an address of this host that are free now, as `address:port`.
pub(in crate::agent) fn free_ports(address: &str, count: u32) -> io::Result<Vec<String>> {
    let bound: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((address, 0))).collect::<io::Result<_>>()?;
    bound.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

/// The network interface of this host that has an address.
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
        let there = vec!["10.0.0.2:77".to_owned()];
        let meeting = Rendezvous::at("127.0.0.1", 2, 2, there).expect("ports are free");
        assert_eq!((meeting.peers.len(), meeting.peers[2].as_str()), (3, "10.0.0.2:77"));
        let own = format!("127.0.0.1:{}", meeting.port);
        let all: BTreeSet<&String> = meeting.peers.iter().chain([&own]).collect();
        assert_eq!(all.len(), 4, "{meeting:?}");
        assert!(meeting.peers[..2].iter().all(|peer| peer.starts_with("127.0.0.1:")));
    }

    #[test]
    fn an_interface_is_found_by_its_address() {
        assert_eq!(interface_of("127.0.0.1").as_deref(), Some("lo"));
        assert_eq!(interface_of("203.0.113.7"), None);
        assert_eq!(interface_of("node1"), None);
    }
}
