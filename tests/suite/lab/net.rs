//! The networks of the lab: two bridges, and who is connected to them.

use super::Options;
use super::machine::Machine;
use std::fmt::Write;
use std::net::Ipv4Addr;

/// Most hosts of a lab.
pub(super) const MOST: usize = 32;

/// One of the two networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Net {
    /// Controller and bastion.
    Outer,
    /// Bastion and hosts.
    Inner,
}

impl Net {
    /// Its bridge in the switch.
    pub(super) fn bridge(self) -> &'static str {
        match self {
            Self::Outer => "outer",
            Self::Inner => "inner",
        }
    }
}

/// A machine's connection to a network.
#[derive(Clone, Debug)]
pub(super) struct Port {
    /// The network.
    pub(super) net: Net,
    /// The name of the interface within the machine.
    pub(super) interface: &'static str,
    /// The address in its network of 256.
    pub(super) address: Ipv4Addr,
}

impl Port {
    /// The other end of the cable, in the switch.
    pub(super) fn in_switch(&self, machine: &str) -> String {
        format!("{machine}-{}", &self.net.bridge()[..3])
    }
}

/// The machines of a lab, off: controller, bastion, node1 and so on.
pub(super) fn machines(options: &Options) -> Vec<Machine> {
    assert!((1..=MOST).contains(&options.hosts), "a lab has 1 to {MOST} hosts, not {}", options.hosts);
    let outer = |last| (Net::Outer, Ipv4Addr::new(10, 77, 0, last));
    let inner = |last| (Net::Inner, Ipv4Addr::new(10, 78, 0, last));
    let machine = |name: &str, places: &[(Net, Ipv4Addr)]| {
        let ports = places.iter().zip(["eth0", "eth1"]);
        let ports = ports.map(|(&(net, address), interface)| Port { net, interface, address });
        Machine::new(name, ports.collect())
    };
    let controller = if options.direct { vec![outer(1), inner(1)] } else { vec![outer(1)] };
    let mut all = vec![machine("controller", &controller), machine("bastion", &[outer(2), inner(2)])];
    let hosts = (1..=options.hosts).zip(11..);
    all.extend(hosts.map(|(number, last)| machine(&format!("node{number}"), &[inner(last)])));
    all
}

/// The script that makes bridges, networks and cables.
pub(super) fn script(machines: &[Machine]) -> String {
    let mut script = String::from(
        "if [ -e /proc/sys/net/ipv6 ]; then echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; fi\n",
    );
    let mut switch = String::new();
    for net in [Net::Outer, Net::Inner] {
        let bridge = net.bridge();
        writeln!(switch, "link add name {bridge} type bridge\nlink set {bridge} up").expect("to a string");
    }
    let mut own = String::new();
    for machine in machines {
        let name = &machine.name;
        writeln!(script, "ip netns add {name}").expect("to a string");
        writeln!(own, "ip -n {name} -batch - <<'.'\nlink set lo up").expect("to a string");
        for port in &machine.ports {
            let (far, near, address) = (port.in_switch(name), port.interface, port.address);
            writeln!(
                switch,
                "link add name {far} type veth peer name {near} netns {name}\nlink set {far} master {} up",
                port.net.bridge()
            )
            .expect("to a string");
            writeln!(own, "addr add {address}/24 dev {near}\nlink set {near} up").expect("to a string");
        }
        own.push_str(".\n");
    }
    script + "ip -batch - <<'.'\n" + &switch + ".\n" + &own
}

/// The lines of a machine's `/etc/hosts`: itself, and its neighbours as it sees them.
///
/// A controller that only reaches the bastion does not know the hosts' names, as at a site with names of its own.
pub(super) fn hosts_file(machine: &Machine, machines: &[Machine]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n");
    for other in machines {
        if let Some((_, port)) = roads(machine, other).pop() {
            writeln!(text, "{} {}", port.address, other.name).expect("to a string");
        }
    }
    text
}

/// How packets get from one machine to another: by which port of the first, to which of the second.
pub(super) fn roads<'a>(from: &'a Machine, to: &'a Machine) -> Vec<(&'a Port, &'a Port)> {
    let pairs = from.ports.iter().flat_map(|near| to.ports.iter().map(move |far| (near, far)));
    pairs.filter(|(near, far)| near.net == far.net).collect()
}
