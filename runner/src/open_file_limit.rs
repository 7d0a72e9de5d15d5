//! Limit on open files: an attempt on many hosts needs more than the usual 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of files that every agent opens: streams, logs, spool, sockets, pending connections.
const ALWAYS: u64 = 96;

/// Number of files that an agent opens per local rank: its streams and its log.
const EACH_RANK: u64 = 4;

/// Number of files that an agent opens per other host: a connection, a wake-up handle for its thread, and a
/// file being fetched.
const EACH_HOST: u64 = 4;

/// Number of files that a rank opens per other rank: a connection in every common group, and one for
/// heartbeats.
const EACH_PEER: u64 = 5;

/// Raises the limit of open files for this process and its children, for an attempt with `ranks` local ranks
/// and `hosts` other hosts, whose ranks are each connected to `peers` others.
///
/// `Err` names the limit and says how to raise it.
pub(crate) fn ensure_open_file_limit(ranks: usize, hosts: usize, peers: usize) -> Result<(), String> {
    raise_open_file_limit(needed(ranks as u64, hosts as u64, peers as u64), "this attempt")
}

/// Like `ensure_open_file_limit` for a single local rank, the minimum for any training.
pub fn ensure_limit_for_one_rank() -> Result<(), String> {
    ensure_open_file_limit(1, 0, 0)
}

fn needed(ranks: u64, hosts: u64, peers: u64) -> u64 {
    let agent = ALWAYS + EACH_RANK * ranks + EACH_HOST * hosts;
    agent.max(ALWAYS + EACH_PEER * peers)
}

/// Raises the soft limit of open files to `needed` if it is lower. It is not raised further, as some programs
/// rely on a low limit.
pub(crate) fn raise_open_file_limit(needed: u64, what: &str) -> Result<(), String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(most) = maximum.filter(|most| *most < needed) {
        return Err(format!(
            "a process may open {most} files here, and {what} needs {needed}; raise the limit (`ulimit -Hn`, \
             /etc/security/limits.conf or LimitNOFILE of the service), or train with fewer ranks or hosts"
        ));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .map_err(|error| format!("the limit of open files cannot be raised to {needed}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_hosts_need_more_files_than_are_usual() {
        assert!(needed(8, 0, 0) <= 256, "a small attempt needs no more than `dtrain doctor` asks for");
        assert!(needed(8, 1_000, 8_000) > 1024);
        assert_eq!(ensure_open_file_limit(2, 0, 0), Ok(()));
        let error = raise_open_file_limit(u64::MAX - 1, "a test");
        assert!(error.is_ok() || error.is_err_and(|words| words.contains("ulimit")));
    }
}
