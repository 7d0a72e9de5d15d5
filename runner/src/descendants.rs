//! The processes that ranks start, whatever their group and session, and how they are ended.
//!
//! An agent is a *subreaper*: a process whose parent ends becomes a child of the agent, not of the first process of the system. So
//! everything that a rank starts descends from the agent until it is gone.

use crate::process::{Stat, all, kill, pid, stat};
use dtrain_protocol::AttemptId;
use rustix::process::WaitOptions;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// How long between two looks at processes that were killed.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Makes this process the parent of descendants that lose theirs.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Ids of the processes that descend from `ancestor`, those that have ended included; a parent comes before its children.
pub(crate) fn of(ancestor: u32) -> Vec<u32> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    for id in all() {
        if let Some(Stat { parent, .. }) = stat(id) {
            children.entry(parent).or_default().push(id);
        }
    }
    let mut found = children.remove(&ancestor).unwrap_or_default();
    let mut next = 0;
    while let Some(id) = found.get(next) {
        let more = children.remove(id).unwrap_or_default();
        found.extend(more);
        next += 1;
    }
    found
}

/// Kills all that descends from `ancestor`, which goes on, and waits until none of it runs, for `patience` at most. Gives the ids of
/// what still runs then.
///
/// How children of this process ended is not kept for whoever waits for them.
pub(crate) fn kill_all(ancestor: u32, patience: Duration) -> Vec<u32> {
    let until = Instant::now() + patience;
    loop {
        let found = of(ancestor);
        found.iter().copied().for_each(kill);
        let (ended, alive): (Vec<u32>, Vec<u32>) =
            found.into_iter().partition(|id| stat(*id).is_none_or(|stat| stat.has_ended()));
        ended.into_iter().for_each(reap);
        if alive.is_empty() || Instant::now() >= until {
            return alive;
        }
        std::thread::sleep(LOOK_EVERY);
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
pub(crate) fn marks(trial: &str, attempt: AttemptId) -> [(&'static str, String); 2] {
    [("DTRAIN_TRIAL", trial.to_owned()), ("DTRAIN_ATTEMPT", attempt.to_string())]
}

/// Kills the processes that have the [`marks`] of an attempt whose agent is gone, so that they descend from nobody known. This
/// process, and those that it descends from, are left alone.
pub(crate) fn kill_marked(trial: &str, attempt: AttemptId) {
    let (own, marks) = (lineage(), marks(trial, attempt));
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
fn lineage() -> Vec<u32> {
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
        let found = of(parent.id());
        assert!(found.contains(&escaped), "{found:?} has no {escaped}");
        assert_eq!(kill_all(parent.id(), Duration::from_secs(10)), Vec::<u32>::new());
        assert!(parent.wait().expect("it is our child").success(), "the ancestor goes on");
        assert!(stat(escaped).is_none_or(|stat| stat.has_ended()));
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
        assert!(has_all(environment, &marks("01", AttemptId(12))));
        assert!(!has_all(environment, &marks("01", AttemptId(1))));
        assert!(!has_all(b"", &marks("01", AttemptId(12))));
    }
}
