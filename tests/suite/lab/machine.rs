//! One machine of the lab: its namespaces and its sshd.

use super::net::Port;
use super::proc::{self, Process};
use super::space::{self, Space};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Turns fresh namespaces into the machine `$1`; its first process becomes sshd, which also buries orphans.
///
/// `/mnt` is the lab's own until the last line but two, and the small disk of the machine from then on.
const BOOT: &str = r#"set -e
own=/mnt/$1
read -r pid rest </proc/self/stat
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /var/log
echo "$1" >/proc/sys/kernel/hostname
echo 0 >/proc/sys/net/ipv4/ip_forward
if [ -e /proc/sys/net/ipv6 ]; then echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; fi
cat /proc/sys/kernel/random/uuid >/run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
mount --bind "$own/hosts" /etc/hosts
mkdir /run/sshd /run/dtlab
cp -rp "$own/lab" /run/lab
mount --bind "$own/home" /run/dtlab
if [ -d "$own/programs" ]; then mkdir /run/programs; mount --bind "$own/programs" /run/programs; fi
mount --bind "$own/small" /mnt
echo "$pid"
exec /usr/sbin/sshd -D -e -f /run/lab/sshd_config >/dev/null
"#;

/// How long a machine may take from its start until sshd listens.
const PATIENCE: Duration = Duration::from_secs(60);

/// A machine, on or off.
pub(super) struct Machine {
    /// Its name.
    pub(super) name: String,
    /// Its ports on the switch: `eth0`, then `eth1`.
    pub(super) ports: Vec<Port>,
    life: Mutex<Option<Life>>,
}

/// A machine since its last start.
struct Life {
    holder: Child,
    first: u32,
    handle: OwnedFd,
    space: PathBuf,
    is_on: bool,
}

impl Machine {
    /// A machine that is off.
    pub(super) fn new(name: &str, ports: Vec<Port>) -> Self {
        Self { name: name.to_owned(), ports, life: Mutex::new(None) }
    }

    /// Starts it, and does not wait.
    pub(super) fn boot(&self, space: &Space) -> Child {
        let log = File::options().create(true).append(true).open(self.log_file(space));
        space
            .command(&["--pid"])
            .args(["nsenter", &format!("--net=/run/netns/{}", self.name), "--"])
            .args(["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL"])
            .args(["sh", "-c", BOOT, "sh", &self.name])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("the folder of the machine is ours"))
            .spawn()
            .expect("nsenter starts")
    }

    /// Waits until its sshd listens; panics with its log when it does not.
    pub(super) fn is_up(&self, lab: &Space, mut holder: Child) {
        let fails = || -> ! { panic!("{} does not start; its log:\n{}", self.name, self.log(lab)) };
        let first = space::told(&mut holder).unwrap_or_else(|| fails());
        let handle = pidfd_open(proc::pid(first), PidfdFlags::empty()).unwrap_or_else(|_| fails());
        let space = proc::namespace(first, "pid").unwrap_or_else(|| fails());
        let begun = Instant::now();
        while !ports(first).contains(&22) {
            if holder.try_wait().expect("it is ours").is_some() || begun.elapsed() > PATIENCE {
                fails();
            }
            sleep(Duration::from_millis(2));
        }
        *self.life() = Some(Life { holder, first, handle, space, is_on: true });
    }

    /// What its sshd had to say, since the lab began.
    pub(super) fn log(&self, lab: &Space) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file(lab)).unwrap_or_default()).into_owned()
    }

    fn log_file(&self, lab: &Space) -> PathBuf {
        lab.path(&format!("mnt/{}/log", self.name))
    }

    /// Ends every process on it at once; panics when it is off.
    pub(super) fn power_off(&self, lab: &str) {
        let mut life = self.life();
        let life = life.as_mut().filter(|life| life.is_on).unwrap_or_else(|| self.is_off());
        pidfd_send_signal(&life.handle, Signal::KILL).ok();
        space::end(&mut life.holder, lab);
        life.is_on = false;
    }

    /// The first process of the machine, as the test sees it; `None` while it is off.
    pub(super) fn running(&self) -> Option<u32> {
        self.life().as_ref().filter(|life| life.is_on).map(|life| life.first)
    }

    /// The first process of the machine, as the test sees it; panics while it is off.
    pub(super) fn first(&self) -> u32 {
        self.running().unwrap_or_else(|| self.is_off())
    }

    /// Everything alive on it, or left of it when it is off, but sshd.
    pub(super) fn processes(&self) -> Vec<Process> {
        let life = self.life();
        life.as_ref().map(|life| proc::living_in(&life.space)).unwrap_or_default()
    }

    /// TCP ports on which it listens, but for 22.
    pub(super) fn listening(&self) -> BTreeSet<u16> {
        let mut all = self.running().map(ports).unwrap_or_default();
        all.remove(&22);
        all
    }

    fn life(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_off(&self) -> ! {
        panic!("{} is off; `start_host` switches it on", self.name)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(life) = self.life().as_mut() {
            drop(life.holder.wait());
        }
    }
}

/// TCP ports on which something listens in the network of a process.
fn ports(id: u32) -> BTreeSet<u16> {
    let tables = ["tcp", "tcp6"].map(|table| Path::new("/proc").join(id.to_string()).join("net").join(table));
    let text: String = tables.iter().map(|table| fs::read_to_string(table).unwrap_or_default()).collect();
    let listening = text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next()?, fields.nth(1)?);
        let port = local.rsplit_once(':')?.1;
        (state == "0A").then(|| u16::from_str_radix(port, 16).ok())?
    });
    listening.collect()
}
