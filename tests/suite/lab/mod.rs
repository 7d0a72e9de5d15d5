//! A cluster within one machine: hosts with a real sshd, each in namespaces of its own, and the faults of a cluster.
//!
//! ```text
//! controller ── outer 10.77.0.0/24 ── bastion ── inner 10.78.0.0/24 ── node1, node2 … nodeN
//! ```
//!
//! The controller reaches the hosts through the bastion alone, unless [`Options::direct`]. All of it lives below one
//! process that reads a pipe of the test: when the test ends, even by a kill, the pipe closes and the kernel takes
//! every process, mount and network of the lab. Nothing is named in the machine's own namespaces, so labs may
//! stand side by side. It does not isolate folders: `/tmp` and whatever a host does not own are the machine's.

mod cable;
mod faults;
mod keys;
mod machine;
mod net;
mod proc;
mod setup;
mod space;

pub(crate) use cable::Cable;
pub(crate) use faults::Direction;
pub(crate) use proc::{Process, namespaces_in_use};

use cable::Carrier;
use dtrain_skip::skip;
use machine::Machine;
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use space::Space;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Mutex;

/// User that trains on the hosts and types on the controller; not root, which would hide missing permissions.
/// `ssh node1` means the same user on both sides.
const USER: &str = "dtlab";

/// The number of that user and of its group.
const UID: u32 = 7700;

/// Its home, on a disk of its own on every machine.
const HOME: &str = "/run/dtlab";

/// What a lab is made of.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Hosts, up to [`net::MOST`].
    pub(crate) hosts: usize,
    /// Whether the controller sits on the network of the hosts too, and reaches them without the bastion.
    pub(crate) direct: bool,
    /// Bytes of the disk below each home. It is memory, used as it fills.
    pub(crate) disk: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { hosts: 8, direct: false, disk: 300 << 20 }
    }
}

/// A cluster that is up. Dropping it removes every trace.
pub(crate) struct Lab {
    // Dropped first: it ends whatever runs on the machines.
    space: Space,
    machines: Vec<Machine>,
    carriers: Mutex<Vec<Carrier>>,
}

impl Lab {
    /// A lab of `hosts` hosts; `None`, the test being skipped, where the machine does not allow one.
    pub(crate) fn start(hosts: usize) -> Option<Self> {
        Self::with(&Options { hosts, ..Options::default() })
    }

    /// A lab by `options`; `None`, the test being skipped, where the machine does not allow one.
    pub(crate) fn with(options: &Options) -> Option<Self> {
        if let Err(reason) = setup::check() {
            skip(reason);
            return None;
        }
        let space = Space::open();
        let machines = net::machines(options);
        setup::furnish(&space, &machines, options);
        let booting: Vec<_> = machines.iter().map(|machine| machine.boot(&space)).collect();
        for (machine, booting) in machines.iter().zip(booting) {
            machine.is_up(&space, booting);
        }
        Some(Self { space, machines, carriers: Mutex::default() })
    }

    /// A command on the controller, by [`USER`], in its home, with a key and known_hosts for `ssh node1`.
    ///
    /// `dtrain` is found by its name; hosts do not have it. See [`Lab::on`].
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.on("controller", program)
    }

    /// A command on a machine, by [`USER`], in its home, with the environment of a fresh login.
    ///
    /// The `Child` stands for the program: exit status, streams and `kill` are the program's own. Other signals
    /// go through [`signal`]. `current_dir` has no effect.
    pub(crate) fn on(&self, machine: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.machine(machine).first().to_string()])
            .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--"])
            .args(["setpriv", "--reuid", USER, "--regid", USER, "--init-groups", "--pdeathsig", "KILL", "--"])
            .args(["sh", "-c", r#"cd && exec "$@""#, "sh"])
            .arg(program)
            .env_clear()
            .envs([("HOME", HOME), ("USER", USER), ("LOGNAME", USER), ("LANG", "C.UTF-8")])
            .env("DTRAIN_CLUSTER__PROBE", "2 s")
            .env("PATH", "/run/programs:/usr/local/bin:/usr/bin:/bin")
            .env(space::MARKER, self.space.name());
        command
    }

    /// Runs `work` in a thread of this test that sees the network of a machine, by addresses and not by names.
    ///
    /// Sockets made there stay there, and keep that network alive until they are closed.
    pub(crate) fn inside<T: Send>(&self, machine: &str, work: impl FnOnce() -> T + Send) -> T {
        let name = &self.machine(machine).name;
        let network = File::open(self.space.path(&format!("run/netns/{name}"))).expect("it has a network");
        let work = || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                .unwrap_or_else(|error| panic!("the network of {name} cannot be entered: {error}"));
            work()
        };
        let result = std::thread::scope(|scope| scope.spawn(work).join());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The address of a machine for its neighbours: on the inner network where it is on both.
    pub(crate) fn address(&self, machine: &str) -> Ipv4Addr {
        self.machine(machine).ports.last().expect("every machine has a network").address
    }

    /// The folder of the trials that a machine trained for a controller elsewhere.
    pub(crate) fn trials(&self, machine: &str) -> PathBuf {
        let hosts = self.home(machine).join(".local/state/dtrain/hosts");
        let own = std::fs::read_dir(hosts)
            .expect("it trained")
            .flatten()
            .find(|folder| folder.file_name().to_string_lossy().starts_with(&format!("{machine}-")));
        own.expect("a folder of its own").path().join("trials")
    }

    /// What the agents of the only trial of a machine wrote to their log.
    pub(crate) fn agent_log(&self, machine: &str) -> String {
        let trial = std::fs::read_dir(self.trials(machine)).expect("a trial").flatten().next();
        let log = trial.expect("a trial").path().join("logs/agent.log");
        std::fs::read_to_string(log).expect("an agent wrote it")
    }

    /// The home of a machine's user, as a folder of the machine that runs the tests. Its files outlive a power off.
    pub(crate) fn home(&self, machine: &str) -> PathBuf {
        self.space.path(&format!("mnt/{}/home", self.machine(machine).name))
    }

    /// Writes a file into the home of a machine's user, as the user's own.
    pub(crate) fn put(&self, machine: &str, name: &str, text: impl AsRef<[u8]>) {
        let path = self.home(machine).join(name);
        fs::write(&path, text).expect("room on disk");
        chown(path, Some(UID), Some(UID)).expect("it is ours");
    }

    /// What the sshd of a machine had to say, since the lab began.
    pub(crate) fn log(&self, machine: &str) -> String {
        self.machine(machine).log(&self.space)
    }

    /// Everything that runs on a machine but its sshd. Zombies do not run.
    pub(crate) fn processes(&self, machine: &str) -> Vec<Process> {
        self.machine(machine).processes()
    }

    /// TCP ports on which a machine listens, but for its sshd's 22; none while it is off.
    pub(crate) fn ports(&self, machine: &str) -> BTreeSet<u16> {
        self.machine(machine).listening()
    }

    /// Links of every process and network namespace of the lab, to see with [`namespaces_in_use`] that they went.
    pub(crate) fn namespaces(&self) -> BTreeSet<PathBuf> {
        let machines = self.machines.iter().filter_map(Machine::running);
        machines.chain([self.space.first()]).flat_map(proc::namespaces).collect()
    }

    fn machine(&self, name: &str) -> &Machine {
        self.machines.iter().find(|machine| machine.name == name).unwrap_or_else(|| {
            let last = self.machines.last().map_or("none", |machine| &machine.name);
            panic!("there is no {name}; the lab has controller, bastion and hosts up to {last}")
        })
    }
}

/// Sends a signal to the program behind a child of [`Lab::on`] or [`Lab::command`]. None is sent once it has ended.
pub(crate) fn signal(child: &mut Child, signal: Signal) {
    while child.try_wait().expect("it is ours").is_none() {
        if let Some(program) = proc::child_of(child.id()) {
            proc::send(program, signal);
            return;
        }
        std::thread::yield_now();
    }
}
