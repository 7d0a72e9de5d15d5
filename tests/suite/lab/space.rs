//! The namespaces around a lab, and the one process that holds them.

use super::proc;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The variable that marks what the lab started for a test; its value is [`Space::name`].
pub(super) const MARKER: &str = "TEST_LAB";

/// Where administrators find their tools.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The first process. Its network is the switch between the machines, its `/mnt` holds what they are made of. `/proc`
/// stays the machine's own, so `$pid` is the number that the test sees. At the end of its input it is gone, and all
/// processes below it.
const FIRST: &str = r#"set -e
read -r pid rest </proc/self/stat
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /run/netns
echo "$pid"
exec cat >/dev/null
"#;

/// Namespaces of mounts, processes and network that live as long as this value, or this process.
pub(super) struct Space {
    holder: Child,
    first: u32,
}

impl Space {
    /// New namespaces.
    pub(super) fn open() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", FIRST])
            .env("PATH", PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare comes with util-linux");
        let first = told(&mut holder).expect("the namespaces of the lab stand; stderr tells why they do not");
        Self { holder, first }
    }

    /// The first process, as the test sees it.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// What tells this lab from others.
    pub(super) fn name(&self) -> String {
        self.first.to_string()
    }

    /// A path within the lab, for the test.
    pub(super) fn path(&self, inner: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/{inner}", self.first))
    }

    /// A command of the administrator in the lab, outside all of its machines.
    pub(super) fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.name(), "--mount", "--net"])
            .args(options)
            .arg("--")
            .env("PATH", PATH);
        command
    }

    /// Runs a script of the administrator; panics with what it said when it fails.
    pub(super) fn run(&self, script: &str) {
        let output = self.command(&[]).args(["sh", "-ec", script]).output().expect("nsenter starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the lab wanted to run\n{script}\nand found: {error}");
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let name = self.name();
        end(&mut self.holder, &name);
    }
}

/// The number that the first process of new namespaces prints once they are furnished; `None` if it ended before.
pub(super) fn told(holder: &mut Child) -> Option<u32> {
    let mut line = String::new();
    BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
    line.trim().parse().ok()
}

/// Waits for the end of namespaces whose first process was ended.
///
/// `nsenter` stops together with a program that a test froze, and would never bury it: those of `lab` are woken. An
/// orphan of a killed `nsenter` waits for the first process of the machine to bury it, which in some containers never
/// does: after a while only such a number is left of the namespaces, and not waited for.
pub(super) fn end(holder: &mut Child, lab: &str) {
    let begun = Instant::now();
    while holder.try_wait().expect("it is ours").is_none() && begun.elapsed() < Duration::from_secs(5) {
        if begun.elapsed() > Duration::from_secs(1) {
            let marker = format!("{MARKER}={lab}");
            let frozen = proc::all().filter(|id| proc::is_stopped(*id) && proc::has_variable(*id, &marker));
            frozen.for_each(|id| proc::send(id, Signal::CONT));
        }
        sleep(Duration::from_millis(2));
    }
}
