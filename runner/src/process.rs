//! Processes identified by id and start time, with functions to start, signal and kill them.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process, distinguished from a later one with the same id by its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Id of the process.
    pub id: u32,
    /// Start time of the process, in clock ticks since boot.
    pub started: u64,
}

impl Process {
    /// Returns the running process `id`; `None` if there is none.
    pub fn of(id: u32) -> Option<Self> {
        let stat = stat(id)?;
        (!stat.has_ended()).then_some(Self { id, started: stat.started })
    }

    /// Returns `true` if the process still runs. A zombie does not.
    pub fn is_alive(&self) -> bool {
        Self::of(self.id) == Some(*self)
    }

    /// Returns `true` if the process still runs and is not stopped by a signal.
    pub(crate) fn is_running(&self) -> bool {
        self.is_alive() && stat(self.id).is_some_and(|stat| !matches!(stat.state, 'T' | 't'))
    }

    /// Kills the process and waits at most `patience` for its end; returns `true` if it is gone.
    pub(crate) fn kill(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while self.is_alive() {
            if Instant::now() >= until {
                return false;
            }
            kill(self.id);
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// Kills all processes of a process group that belong to a session.
///
/// Once a group is empty its id may be reused; the session tells the groups apart.
pub(crate) fn kill_group(group: u32, session: u32) {
    for id in all() {
        if stat(id).is_some_and(|found| found.group == group && found.session == session) {
            kill(id);
        }
    }
}

/// Returns the ids of all visible processes of this machine.
pub(crate) fn all() -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Sends SIGKILL to a process, which may be gone already.
pub(crate) fn kill(id: u32) {
    send_signal(id, Signal::KILL);
}

/// Sends a signal to a process, which may be gone already.
pub(crate) fn send_signal(id: u32, signal: Signal) {
    if let Some(pid) = pid(id) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Returns `true` if a process is stopped by a signal, not by a debugger.
pub(crate) fn is_stopped(id: u32) -> bool {
    stat(id).is_some_and(|found| found.state == 'T')
}

/// Fields of `/proc/<id>/stat`.
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: u32,
    group: u32,
    session: u32,
    started: u64,
}

impl Stat {
    /// Returns `true` if the process is a zombie: it has ended, and its parent has not read the exit status.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

pub(crate) fn stat(id: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The program name is in parentheses and may contain anything; the rest are plain fields.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// Converts a process id to the type that system calls take; `None` if it is not valid.
pub(crate) fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// Sets the environment variables of a process that computes with `threads` threads.
///
/// The allocator keeps freed memory for the next step: otherwise page faults take a tenth of the step time of
/// a larger model. A variable set by the user takes precedence.
pub(crate) fn set_compute_environment(command: &mut Command, threads: u32) {
    for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"] {
        command.env(variable, threads.to_string());
    }
    const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";
    if std::env::var_os(PURGE_DELAY).is_none() {
        command.env(PURGE_DELAY, "-1");
    }
}

/// Makes the child inherit `files` with the same file descriptor numbers.
pub(crate) fn inherit(command: &mut Command, files: Vec<Arc<OwnedFd>>) {
    let prepare = move || clear_close_on_exec(&files);
    #[expect(unsafe_code, reason = "there is no safe way to act between fork and exec")]
    // SAFETY: between fork and exec only system calls are made; no code allocates or takes a lock.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Makes the child die with the thread that starts it, which must live as long as the child should, and
/// inherit `files`.
pub(crate) fn bind_to_this_thread(command: &mut Command, files: Vec<Arc<OwnedFd>>) {
    let parent = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent ended before the line above, so its death will not be signalled.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        clear_close_on_exec(&files)
    };
    #[expect(unsafe_code, reason = "there is no safe way to act between fork and exec")]
    // SAFETY: between fork and exec only system calls are made; no code allocates or takes a lock.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Keeps files open across exec.
fn clear_close_on_exec(files: &[Arc<OwnedFd>]) -> io::Result<()> {
    files.iter().try_for_each(|file| Ok(rustix::io::fcntl_setfd(file.as_fd(), FdFlags::empty())?))
}

/// Closes every inherited file except standard input, output and error, and `kept`.
///
/// Call it before the process opens anything else.
pub(crate) fn close_inherited_files(kept: &File) -> io::Result<()> {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2 && *number != kept.as_raw_fd())
        .collect();
    // The listing's own file is closed by now, and closing a number twice is an error.
    for number in open.into_iter().filter(|number| Path::new(&format!("/proc/self/fd/{number}")).exists()) {
        #[expect(unsafe_code, reason = "inherited files have no owner in this process that could be asked")]
        // SAFETY: the process has opened nothing yet but `kept`, so no code owns these numbers.
        unsafe {
            rustix::io::close(number);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_with_its_id() {
        let me = Process::of(std::process::id()).expect("this process runs");
        assert!(me.is_alive());
        assert!(!Process { started: me.started + 1, ..me }.is_alive());
    }

    #[test]
    fn a_killed_process_is_gone_before_it_is_waited_for() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep is everywhere");
        let process = Process::of(child.id()).expect("it just started");
        assert!(process.kill(Duration::from_secs(5)));
        assert!(!process.is_alive());
        child.wait().expect("it is our child");
    }
}
