//! Processes of a lab, as read from `/proc`.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A process on a machine of the lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number, as the test sees it.
    pub(crate) id: u32,
    /// Its arguments, with blanks between them.
    pub(crate) command: String,
}

impl Process {
    /// Whether it is an agent, a rank or another hidden command of dtrain of this name; not the relay of a connection.
    pub(crate) fn is_hidden_command(&self, name: &str) -> bool {
        let mut words = self.command.split(' ');
        words.any(|word| word == name) && !self.command.contains("--stdio")
    }
}

/// Those of `wanted`, links of namespaces, that some process still lives in.
pub(crate) fn namespaces_in_use(wanted: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    all().flat_map(namespaces).filter(|link| wanted.contains(link)).collect()
}

/// Every process that the test can see.
pub(super) fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("there is /proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Links of the namespaces of processes and network of a process; fewer when it is gone.
pub(super) fn namespaces(id: u32) -> Vec<PathBuf> {
    ["pid", "net"].iter().filter_map(|kind| namespace(id, kind)).collect()
}

/// Link of one of the namespaces of a process; `None` when it is gone.
pub(super) fn namespace(id: u32, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{id}/ns/{kind}")).ok()
}

/// Everything alive in a namespace of processes, but sshd.
pub(super) fn living_in(space: &Path) -> Vec<Process> {
    let inside = all().filter(|id| namespace(*id, "pid").as_deref() == Some(space));
    inside
        .filter(|id| stat(*id).is_some_and(|stat| stat.state != "Z" && !stat.program.starts_with("sshd")))
        .map(|id| {
            let words = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            Process { id, command: String::from_utf8_lossy(&words).replace('\0', " ").trim().to_owned() }
        })
        .collect()
}

/// Whether a process was stopped by a signal.
pub(super) fn is_stopped(id: u32) -> bool {
    stat(id).is_some_and(|stat| stat.state == "T")
}

/// Whether the process began with `NAME=value` in its environment.
pub(super) fn has_variable(id: u32, pair: &str) -> bool {
    let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|found| found == pair.as_bytes())
}

/// A child of a process, when it has one.
pub(super) fn child_of(parent: u32) -> Option<u32> {
    all().find(|id| stat(*id).is_some_and(|stat| stat.parent == parent))
}

/// Sends a signal to a process; does nothing if it is gone.
pub(super) fn send(id: u32, signal: Signal) {
    kill_process(pid(id), signal).ok();
}

/// The number of a process, checked.
pub(super) fn pid(id: u32) -> Pid {
    i32::try_from(id).ok().and_then(Pid::from_raw).expect("processes have positive numbers")
}

struct Stat {
    program: String,
    state: String,
    parent: u32,
}

fn stat(id: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (head, tail) = text.rsplit_once(") ")?;
    let mut fields = tail.split(' ');
    Some(Stat {
        program: head.split_once('(')?.1.to_owned(),
        state: fields.next()?.to_owned(),
        parent: fields.next()?.parse().ok()?,
    })
}
