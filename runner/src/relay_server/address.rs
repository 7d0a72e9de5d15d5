//! The address under which other hosts reach this host.

use dtrain_recipes::Subnet;
use std::ffi::OsString;
use std::net::{IpAddr, UdpSocket};
use sysinfo::Networks;

/// Returns this host's address on `network`; without a network, its address on the controller's network, else
/// the loopback address.
pub(super) fn address(network: Option<Subnet>) -> Result<String, String> {
    match network {
        Some(network) => address_on(network, &own_addresses()),
        None => Ok(default_address()),
    }
}

fn default_address() -> String {
    let ssh = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let over_ssh = || ssh.split(' ').nth(2)?.parse::<IpAddr>().ok();
    let address = over_ssh().or_else(|| source_address_to(&std::env::var("SLURM_LAUNCH_NODE_IPADDR").ok()?));
    address.map_or_else(|| "127.0.0.1".to_owned(), |address| address.to_string())
}

/// Returns the source address of packets to `other`, without sending any.
fn source_address_to(other: &str) -> Option<IpAddr> {
    let any = if other.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((other, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns this host's addresses, each with its interface, sorted by interface.
fn own_addresses() -> Vec<(String, IpAddr)> {
    let Ok(networks) = Networks::new_with_refreshed_list() else { return Vec::new() };
    let of = |(name, data): (&OsString, &sysinfo::NetworkData)| {
        let name = name.to_string_lossy().into_owned();
        data.ip_networks().iter().map(move |one| (name.clone(), one.addr)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = networks.iter().flat_map(of).collect();
    all.sort();
    all
}

/// Returns the first of the addresses in `own` that is on `network`.
fn address_on(network: Subnet, own: &[(String, IpAddr)]) -> Result<String, String> {
    let found = own.iter().find(|(_, address)| network.contains(*address));
    found.map(|(_, address)| address.to_string()).ok_or_else(|| {
        let all: Vec<String> = own.iter().map(|(name, address)| format!("{address} ({name})")).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        format!("it has no address on cluster.network = \"{network}\"; its addresses are {all}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_on_the_fabric_is_taken_and_a_host_without_one_says_what_it_has() {
        let own = [("eth0", "192.168.1.5"), ("ib0", "10.0.3.4")];
        let own = own.map(|(name, address)| (name.to_owned(), address.parse().expect("an address")));
        let network = |text: &str| text.parse::<Subnet>().expect("a network");
        assert_eq!(address_on(network("10.0.0.0/16"), &own), Ok("10.0.3.4".into()));
        let error = address_on(network("172.16.0.0/12"), &own).expect_err("it has none");
        assert_eq!(
            error,
            "it has no address on cluster.network = \"172.16.0.0/12\"; its addresses are 192.168.1.5 (eth0), 10.0.3.4 (ib0)"
        );
        assert_eq!(address(Some(network("127.0.0.0/8"))), Ok("127.0.0.1".into()), "every machine has it");
    }
}
