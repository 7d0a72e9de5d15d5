//! Faults of machines and cables. Every fault is silent, unless it says otherwise, and [`Lab::heal`] undoes
//! it.

use super::Lab;
use super::machine::Machine;
use super::net::roads;
use super::proc;
use rustix::process::Signal;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Write as _;
use std::time::{Duration, Instant};

/// A hardware address that no machine has: packets to it are lost, and the sender gets no error.
const NOBODY: &str = "02:00:00:00:00:ff";

/// The file that fills a disk.
const BALLAST: &str = ".ballast";

/// Which of the packets between a machine and all others are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Those to the machine: it is heard, and hears nothing.
    To,
    /// Those from the machine: it hears, and is not heard.
    From,
}

impl Lab {
    /// Ends all processes of a machine at once. Its disks stay; [`Lab::heal`] does not start it again.
    ///
    /// Its kernel lives on and answers for the dead: peers see their connections closed, as after a crash of the
    /// programs. Without power no machine answers: [`Lab::cut`] it first.
    pub(crate) fn kill_host(&self, host: &str) {
        self.machine(host).power_off(&self.space.name());
    }

    /// Shuts a machine down as an operating system does: every process is asked to end, and has some seconds for it.
    pub(crate) fn shut_down(&self, host: &str) {
        self.processes(host).iter().for_each(|process| proc::send(process.id, Signal::TERM));
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until && self.processes(host).iter().any(|one| one.is_hidden_command("agent"))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill_host(host);
    }

    /// Kills what runs of dtrain on a machine.
    pub(crate) fn kill_processes(&self, host: &str) {
        self.processes(host).iter().for_each(|process| proc::send(process.id, Signal::KILL));
    }

    /// Starts a machine that was killed, with its disks, its keys and a new boot id.
    pub(crate) fn start_host(&self, host: &str) {
        let machine = self.machine(host);
        assert!(machine.running().is_none(), "{host} is on; `kill_host` switches it off");
        machine.is_up(&self.space, machine.boot(&self.space));
    }

    /// Loses every packet from and to a machine, silently: no reset, no unreachable host, no link down.
    pub(crate) fn cut(&self, host: &str) {
        self.lose(&self.both_ways(host));
    }

    /// Loses every packet from a machine, or every packet to it.
    pub(crate) fn cut_one_way(&self, host: &str, direction: Direction) {
        self.lose(&self.roads_of(host, direction));
    }

    /// Loses every packet between two machines, both of which reach all others.
    pub(crate) fn cut_between(&self, one: &str, other: &str) {
        let (one, other) = (self.machine(one), self.machine(other));
        self.lose(&[(one, other), (other, one)]);
    }

    /// Limits what a machine sends, and what it is sent, to so many bytes a second each. Packets wait up to 0.2 s
    /// and are lost beyond.
    pub(crate) fn slow(&self, host: &str, bytes_per_second: u64) {
        let bits = 8 * bytes_per_second;
        // What may leave at once: 4 ms of traffic, the longest tick of a kernel in use, and never less than a packet.
        let burst = (bytes_per_second / 250).max(16 << 10);
        self.shape(host, &format!("replace dev $dev root tbf rate {bits}bit burst {burst}b latency 200ms"));
    }

    /// Leaves no byte on the disk of a machine's home.
    pub(crate) fn fill_disk(&self, host: &str) {
        let file = File::create(self.home(host).join(BALLAST)).expect("the disk is ours");
        let zeros = vec![0; 1 << 20];
        let left = || rustix::fs::fstatvfs(&file).expect("it is a disk").f_bavail;
        // What others free meanwhile is filled too.
        for _ in 0..100 {
            for size in [1 << 20, 1 << 10] {
                while (&file).write_all(&zeros[..size]).is_ok() {}
            }
            if left() == 0 {
                return;
            }
        }
        panic!("{} blocks are left on the full disk of {host}", left());
    }

    /// Undoes every fault of a machine: roads from and to it are open, its cable is fast and
    /// good, its disk has room again.
    ///
    /// One that was killed stays off; see [`Lab::start_host`].
    pub(crate) fn heal(&self, host: &str) {
        self.neighbours(&self.both_ways(host), |port, address| {
            format!("neigh flush to {address} dev {port} nud permanent")
        });
        self.good_cable(host);
        self.shape(host, "del dev $dev root 2>/dev/null || true");
        fs::remove_file(self.home(host).join(BALLAST)).ok();
    }

    /// The pairs of machines, sender first, between which packets from or to a machine travel.
    fn roads_of(&self, host: &str, direction: Direction) -> Vec<(&Machine, &Machine)> {
        let one = self.machine(host);
        let others = self.machines.iter().filter(|other| other.name != one.name);
        others.map(|other| if direction == Direction::From { (one, other) } else { (other, one) }).collect()
    }

    /// First what the machine sends: its half takes one command, and silences every conversation.
    fn both_ways(&self, host: &str) -> Vec<(&Machine, &Machine)> {
        [Direction::From, Direction::To].into_iter().flat_map(|way| self.roads_of(host, way)).collect()
    }

    /// Loses packets from the first machine of each pair to the second.
    fn lose(&self, pairs: &[(&Machine, &Machine)]) {
        self.neighbours(pairs, |port, address| {
            format!("neigh replace {address} lladdr {NOBODY} dev {port} nud permanent")
        });
    }

    /// Changes what the first machine of each pair takes for the hardware address of the second.
    fn neighbours(&self, pairs: &[(&Machine, &Machine)], line: impl Fn(&str, &str) -> String) {
        let mut script = String::new();
        for pairs in pairs.chunk_by(|one, next| one.0.name == next.0.name) {
            let lines = pairs.iter().flat_map(|(from, to)| roads(from, to));
            let lines: String =
                lines.map(|(near, far)| line(near.interface, &far.address.to_string()) + "\n").collect();
            writeln!(script, "ip -n {} -batch - <<'.'\n{lines}.", pairs[0].0.name).expect("to a string");
        }
        self.space.run(&script);
    }

    /// Runs `tc qdisc` on both ends of a machine's cables, with the name of the end in `$dev`.
    fn shape(&self, host: &str, order: &str) {
        let machine = self.machine(host);
        let mut script = String::new();
        for port in &machine.ports {
            let (near, far) = (port.interface, port.in_switch(host));
            writeln!(script, "dev={near}; tc -n {host} qdisc {order}\ndev={far}; tc qdisc {order}")
                .expect("to a string");
        }
        self.space.run(&script);
    }
}
