//! Finds and kills all descendants of ranks, also an orphan process of another process group or session.
//!
//! An agent is a *subreaper*: a process whose parent ends becomes a child of the agent, not of init. So
//! everything that a rank starts remains a descendant of the agent.

use crate::process::{all, kill, pid, send_signal, stat};
use dtrain_protocol::AttemptId;
use rustix::process::{Signal, WaitOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// Interval between two scans for remaining processes.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Makes this process a subreaper: the new parent of orphaned descendants.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// The descendants of a process at one moment.
#[derive(Debug)]
struct ProcessSnapshot {
    /// Ids of the living descendants; a parent comes before its children.
    alive: Vec<u32>,
    /// Ids of ended descendants, and of listed processes that vanished before they could be read.
    over: BTreeSet<u32>,
}

impl ProcessSnapshot {
    fn at(ancestor: u32) -> Self {
        let mut children = BTreeMap::<u32, Vec<u32>>::new();
        let (mut zombies, mut over) = (BTreeSet::new(), BTreeSet::new());
        for id in all() {
            let Some(found) = stat(id) else {
                over.insert(id);
                continue;
            };
            if found.has_ended() {
                zombies.insert(id);
            }
            children.entry(found.parent).or_default().push(id);
        }
        let mut found = children.remove(&ancestor).unwrap_or_default();
        let mut next = 0;
        while let Some(id) = found.get(next) {
            let more = children.remove(id).unwrap_or_default();
            found.extend(more);
            next += 1;
        }
        let (ended, alive): (Vec<u32>, Vec<u32>) = found.into_iter().partition(|id| zombies.contains(id));
        over.extend(ended);
        Self { alive, over }
    }
}

/// Returns the ids of the living descendants of `ancestor`; a parent comes before its children.
pub(crate) fn descendants_of(ancestor: u32) -> Vec<u32> {
    ProcessSnapshot::at(ancestor).alive
}

/// Kills all descendants of `ancestor`, but not `ancestor` itself, and repeats until a scan finds none alive,
/// for at most `patience`. Returns the ids of those that still run.
///
/// Processes may start others until they are killed, so one scan is not enough. Exit codes of direct children
/// are lost to later waits.
pub(crate) fn kill_all(ancestor: u32, patience: Duration) -> Vec<u32> {
    let until = Instant::now() + patience;
    let (mut killed, mut over_before) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let ProcessSnapshot { alive, over } = ProcessSnapshot::at(ancestor);
        // A stopped process cannot react to the death of another.
        for signal in [Signal::STOP, Signal::KILL] {
            alive.iter().for_each(|id| send_signal(*id, signal));
        }
        over.iter().copied().for_each(reap);
        // A process that ended since the last scan may have left a child that the scan missed.
        let is_sure = alive.is_empty() && over.is_subset(&over_before);
        if is_sure || Instant::now() >= until {
            return alive;
        }
        // Scans follow each other at once as long as they find new processes.
        if alive.iter().all(|id| killed.contains(id)) {
            std::thread::sleep(LOOK_EVERY);
        }
        killed.extend(alive);
        over_before = over;
    }
}

/// Reaps ended children of this process that no thread waits for; otherwise they stay zombies. Children in
/// `awaited` are left alone.
pub(crate) fn reap_orphans(awaited: &[u32]) {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let ids = children.split_ascii_whitespace().filter_map(|id| id.parse().ok());
        ids.filter(|id| !awaited.contains(id)).for_each(reap);
    }
}

/// Reaps the child `id` if it has ended. A process that is not a child is ignored.
fn reap(id: u32) {
    if let Some(pid) = pid(id) {
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Returns the environment variables that mark every rank of an attempt and the processes it starts.
pub(crate) fn rank_markers(trial: &str, attempt: AttemptId) -> [(&'static str, String); 2] {
    [("DTRAIN_TRIAL", trial.to_owned()), ("DTRAIN_ATTEMPT", attempt.to_string())]
}

/// Kills the processes marked with the [`rank_markers`] of an attempt whose agent is gone, as they have no
/// known ancestor. This process and its own ancestors are left alone.
pub(crate) fn kill_marked(trial: &str, attempt: AttemptId) {
    let (own, marks) = (own_ancestors(), rank_markers(trial, attempt));
    for id in all().into_iter().filter(|id| !own.contains(id)) {
        // The environment of another user's process cannot be read.
        let Ok(environment) = fs::read(format!("/proc/{id}/environ")) else { continue };
        if has_all(&environment, &marks) {
            kill(id);
        }
    }
}

/// Returns `true` if an environment, encoded as in `/proc/<id>/environ`, has all of `variables`.
fn has_all(environment: &[u8], variables: &[(&str, String)]) -> bool {
    variables.iter().all(|(name, value)| {
        let wanted = format!("{name}={value}");
        environment.split(|byte| *byte == 0).any(|found| found == wanted.as_bytes())
    })
}

/// Returns the ids of this process, its parent, the parent of that, and so on.
fn own_ancestors() -> Vec<u32> {
    let mut all = vec![std::process::id()];
    while let Some(parent) = all.last().and_then(|id| stat(*id)).map(|stat| stat.parent)
        && parent > 0
    {
        all.push(parent);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    /// Starts a shell that runs `script` and waits for its children; returns the number that it prints first.
    fn shell(script: &str) -> (Child, u32) {
        let script = format!("{script}\nwait\n:");
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh is everywhere");
        let mut line = String::new();
        let mut printed = BufReader::new(child.stdout.take().expect("piped"));
        printed.read_line(&mut line).expect("text");
        (child, line.trim().parse().expect("a process id"))
    }

    #[test]
    fn what_descends_from_a_process_is_killed_in_sessions_of_its_own_too() {
        let (mut parent, escaped) = shell("setsid sh -c 'echo $$; sleep 177 & wait' &");
        let found = descendants_of(parent.id());
        assert!(found.contains(&escaped), "{found:?} has no {escaped}");
        assert_eq!(kill_all(parent.id(), Duration::from_secs(10)), Vec::<u32>::new());
        assert!(parent.wait().expect("it is our child").success(), "the ancestor goes on");
        assert!(stat(escaped).is_none_or(|stat| stat.has_ended()));
    }

    /// Starts a shell that is a subreaper like an agent, with 20 chains of processes below it: each process
    /// starts the next one and ends. The shell itself ends with its standard input.
    fn chains() -> Child {
        let script = "link() { [ $1 -gt 0 ] || exit; sleep 0.02; link $(($1 - 1)) & }
for chain in $(seq 20); do link 500 & done
echo started
read -r end";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let inherit_orphans = || Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?);
        #[expect(unsafe_code, reason = "there is no safe way to act between fork and exec")]
        // SAFETY: between fork and exec only system calls are made; no code allocates or takes a lock.
        unsafe {
            command.pre_exec(inherit_orphans);
        }
        let mut child = command.spawn().expect("sh is everywhere");
        let mut line = String::new();
        let mut printed = BufReader::new(child.stdout.as_mut().expect("piped"));
        printed.read_line(&mut line).expect("text");
        child
    }

    #[test]
    fn processes_that_start_others_while_they_are_killed_are_killed_with_these() {
        let mut parent = chains();
        assert!(!descendants_of(parent.id()).is_empty(), "the chains run");
        assert_eq!(kill_all(parent.id(), Duration::from_secs(60)), Vec::<u32>::new());
        for look in 0..20 {
            let alive = descendants_of(parent.id());
            assert!(alive.is_empty(), "look {look}: {alive:?} go on");
            std::thread::sleep(LOOK_EVERY);
        }
        drop(parent.stdin.take());
        parent.wait().expect("it is our child");
    }

    #[test]
    fn a_process_is_known_by_the_environment_it_was_started_with() {
        let trial = format!("of-process-{}", std::process::id());
        let script = format!("DTRAIN_TRIAL={trial} DTRAIN_ATTEMPT=3 setsid sleep 177 & echo $!");
        let (mut parent, escaped) = shell(&script);
        kill_marked(&trial, AttemptId(2));
        assert!(stat(escaped).is_some_and(|stat| !stat.has_ended()), "it is of another attempt");
        // The shell ends after the process it waits for, which may not have started its program at the first
        // scan.
        while parent.try_wait().expect("it is our child").is_none() {
            kill_marked(&trial, AttemptId(3));
            std::thread::sleep(LOOK_EVERY);
        }
    }

    #[test]
    fn a_variable_is_compared_whole() {
        let environment = b"A=1\0DTRAIN_TRIAL=01\0DTRAIN_ATTEMPT=12\0";
        assert!(has_all(environment, &rank_markers("01", AttemptId(12))));
        assert!(!has_all(environment, &rank_markers("01", AttemptId(1))));
        assert!(!has_all(b"", &rank_markers("01", AttemptId(12))));
    }
}
