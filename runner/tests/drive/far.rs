//! Remote hosts, simulated as processes with a folder of their own.

use crate::world::{World, card, kill, processes_of};
use dtrain_runner::Home;
use dtrain_runner::control_protocol::AgentCard;
use dtrain_runner::launch::relay::{Connector, RemoteHost};
use dtrain_runner::launch::{ClusterLauncher, Launcher};
use dtrain_runner::process::Process;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Ending of a file beside a host's folder that makes it unreachable.
const DOWN: &str = "down";

/// Ending of such a file that makes messages of the host arrive in small pieces, with a pause after each.
const SLOW: &str = "slow";

/// Ending of such a file that drops the host's answers to a launch.
const LOST: &str = "lost";

/// Most bytes of a piece, and the pause.
const PIECE: (usize, Duration) = (64 << 10, Duration::from_millis(10));

/// Remote host: this program in a process of its own.
struct Far {
    folder: PathBuf,
    /// State folder that all hosts share.
    shared: Option<PathBuf>,
    /// Silence after which the process ends.
    idle_timeout: Duration,
}

impl Connector for Far {
    fn dial(&mut self) -> io::Result<UnixStream> {
        if self.folder.with_extension(DOWN).exists() {
            return Err(io::Error::other("it is switched off"));
        }
        let (near, far) = UnixStream::pair()?;
        let is = |ending| self.folder.with_extension(ending).exists();
        let near = if is(SLOW) || is(LOST) { bad_way(near, is(LOST))? } else { near };
        let far = OwnedFd::from(far);
        Command::new(std::env::current_exe()?)
            .arg("relay")
            .arg(&self.folder)
            .arg(self.idle_timeout.as_millis().to_string())
            .args(&self.shared)
            .stdin(Stdio::from(far.try_clone()?))
            .stdout(Stdio::from(far))
            .spawn()
            .map(|_| near)
    }
}

/// Returns the controller's end of a connection to a host that is slow, or that loses its answer to a launch.
fn bad_way(far: UnixStream, loses: bool) -> io::Result<UnixStream> {
    let (near, here) = UnixStream::pair()?;
    let (mut from, mut to) = (here.try_clone()?, far.try_clone()?);
    thread::spawn(move || {
        drop(io::copy(&mut from, &mut to));
        drop(to.shutdown(Shutdown::Write));
    });
    thread::spawn(move || {
        let mut room = vec![0; PIECE.0];
        while let Ok(length @ 1..) = (&far).read(&mut room) {
            let is_launched = room[..length].windows(9).any(|word| word == b"\"leading\"");
            if loses && is_launched {
                continue;
            }
            if (&here).write_all(&room[..length]).is_err() {
                break;
            }
            thread::sleep(PIECE.1);
        }
        drop(here.shutdown(Shutdown::Both));
    });
    Ok(near)
}

impl World {
    /// Puts the ranks on hosts of their own, with steps long enough to disturb them.
    pub(crate) fn on_hosts(mut self, hosts: u32) -> Self {
        (self.hosts, self.pace) = (Some(hosts), 0.03);
        self
    }

    /// Like `on_hosts`, with hosts that share one state folder.
    pub(crate) fn on_hosts_that_share(mut self, hosts: u32) -> Self {
        self.is_shared = true;
        self.on_hosts(hosts)
    }

    /// Returns a launcher for hosts that are processes with a state folder of their own.
    pub(crate) fn launcher(&self, hosts: u32) -> Box<dyn Launcher> {
        let folder = self.home.trial(&self.trial);
        let hosts = (0..hosts).map(|index| self.remote(index)).collect();
        let launcher = ClusterLauncher::new(&self.trial, &folder, hosts).with_workdir(self.workdir.clone());
        Box::new(if self.is_shared { launcher.sharing(&self.home) } else { launcher })
    }

    /// Returns a host as a controller sees it.
    pub(crate) fn remote(&self, index: u32) -> RemoteHost {
        let shared = self.is_shared.then(|| self.home.path().to_owned());
        let far = Far { folder: self.host(index), shared, idle_timeout: self.relay_idle_timeout };
        RemoteHost::new(format!("node{index}"), Box::new(far))
    }

    /// Returns the folder of a host.
    pub(crate) fn host(&self, index: u32) -> PathBuf {
        if self.is_shared {
            return self.home.host(&format!("node{index}")).path().to_owned();
        }
        self.root.join(format!("host-{index}"))
    }

    /// Makes a host unreachable and closes its connections, or makes it reachable again.
    pub(crate) fn switch(&self, host: u32, is_on: bool) {
        let file = self.host(host).with_extension(DOWN);
        if is_on {
            fs::remove_file(file).expect("it was switched off");
            return;
        }
        fs::write(file, "").expect("room on disk");
        self.relays(host).into_iter().filter_map(Process::of).for_each(|process| kill(&process));
    }

    /// Returns the processes that serve controllers on a host.
    pub(crate) fn relays(&self, host: u32) -> Vec<u32> {
        let is_relay = |id: &u32| {
            let line = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            line.contains("\0relay\0")
        };
        let all = processes_of(self.host(host).to_str().expect("plain text"));
        all.into_iter().filter(is_relay).collect()
    }

    /// Drops the answers of a host to a launch, or no longer, from the next connection on.
    pub(crate) fn lose_answers(&self, host: u32, are_lost: bool) {
        let file = self.host(host).with_extension(LOST);
        let done = if are_lost { fs::write(file, "") } else { fs::remove_file(file) };
        done.expect("room on disk");
    }

    /// Slows down the messages of a host from the next connection on.
    pub(crate) fn slow_down(&self, host: u32) {
        fs::write(self.host(host).with_extension(SLOW), "").expect("room on disk");
    }

    /// Waits for the newest agent on a host and its ranks.
    pub(crate) fn card_of(&self, host: u32) -> Option<AgentCard> {
        card(&Home::at(self.host(host)).trial(&self.trial))
    }
}
