//! The processes that ranks start, whatever their group and session, and how they are ended.
//!
//! An agent is a *subreaper*: a process whose parent ends becomes a child of the agent, not of the first process of the system. So
//! everything that a rank starts descends from the agent until it is gone.

use crate::process::{all, kill, pid, send_signal, stat};
use dtrain_protocol::AttemptId;
use rustix::process::{Signal, WaitOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// How long between two looks at processes that were killed.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Makes this process the parent of descendants that lose theirs.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// The processes that descend from another, at one look.
#[derive(Debug)]
struct ProcessSnapshot {
    /// Those that have not ended; a parent comes before its children.
    alive: Vec<u32>,
    /// Those that have ended, and all processes that were listed and could not be read: they went away since.
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

/// Ids of the processes that descend from `ancestor` and have not ended; a parent comes before its children.
pub(crate) fn descendants_of(ancestor: u32) -> Vec<u32> {
    ProcessSnapshot::at(ancestor).alive
}

/// Kills all that descends from `ancestor`, which goes on, until a look finds none of it alive, for `patience` at most. Gives the ids
/// of what still runs then.
///
/// Processes may start others until they are killed, so what one look finds is never taken for all. How children of this process
/// ended is not kept for whoever waits for them.
pub(crate) fn kill_all(ancestor: u32, patience: Duration) -> Vec<u32> {
    let until = Instant::now() + patience;
    let (mut killed, mut over_before) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let ProcessSnapshot { alive, over } = ProcessSnapshot::at(ancestor);
        // What is stopped does not act on the death of another.
        for signal in [Signal::STOP, Signal::KILL] {
            alive.iter().for_each(|id| send_signal(*id, signal));
        }
        over.iter().copied().for_each(reap);
        // What is over since the last look may have left a child that started too late to be listed.
        let is_sure = alive.is_empty() && over.is_subset(&over_before);
        if is_sure || Instant::now() >= until {
            return alive;
        }
        // Looks follow each other at once as long as they find new processes.
        if alive.iter().all(|id| killed.contains(id)) {
            std::thread::sleep(LOOK_EVERY);
        }
        killed.extend(alive);
        over_before = over;
    }
}

/// Asks how children of this process ended that nobody waits for: the system keeps the entry of a process until somebody does. Those
/// in `awaited` are left alone.
pub(crate) fn reap_orphans(awaited: &[u32]) {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let ids = children.split_ascii_whitespace().filter_map(|id| id.parse().ok());
        ids.filter(|id| !awaited.contains(id)).for_each(reap);
    }
}

/// Asks how one child ended, if it has. Of a process that is no child nothing is known, which is no error.
fn reap(id: u32) {
    if let Some(pid) = pid(id) {
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// The environment variables of every rank, and of what it starts unless it is started with others.
pub(crate) fn rank_markers(trial: &str, attempt: AttemptId) -> [(&'static str, String); 2] {
    [("DTRAIN_TRIAL", trial.to_owned()), ("DTRAIN_ATTEMPT", attempt.to_string())]
}

/// Kills the processes that have the [`rank_markers`] of an attempt whose agent is gone, so that they descend from nobody known. This
/// process, and those that it descends from, are left alone.
pub(crate) fn kill_marked(trial: &str, attempt: AttemptId) {
    let (own, marks) = (own_ancestors(), rank_markers(trial, attempt));
    for id in all().into_iter().filter(|id| !own.contains(id)) {
        // Nobody may read the environment of another user's process.
        let Ok(environment) = fs::read(format!("/proc/{id}/environ")) else { continue };
        if has_all(&environment, &marks) {
            kill(id);
        }
    }
}

/// Whether an environment, as `/proc` has it, has all of `variables`.
fn has_all(environment: &[u8], variables: &[(&str, String)]) -> bool {
    variables.iter().all(|(name, value)| {
        let wanted = format!("{name}={value}");
        environment.split(|byte| *byte == 0).any(|found| found == wanted.as_bytes())
    })
}

/// This process, its parent, and so on.
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

    /// A shell that runs `script` and then waits for what it started, and the number that it prints first.
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

    /// A shell that inherits orphans as an agent does, with 20 chains of processes below it: each link starts the next one and
    /// ends. The shell itself ends with its standard input.
    fn chains() -> Child {
        let script = "link() { [ $1 -gt 0 ] || exit; sleep 0.02; link $(($1 - 1)) & }
for chain in $(seq 20); do link 500 & done
echo started
read -r end";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let inherit_orphans = || Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?);
        #[expect(unsafe_code, reason = "there is no safe way to act between fork and exec")]
        // SAFETY: between fork and exec only system calls are made; nothing allocates or takes a lock.
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
        // The shell ends once the process it waits for has; that process may not have started its program at the first look.
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
