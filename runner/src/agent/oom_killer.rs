//! Detection of ranks killed by the kernel's OOM killer, which only increments a counter.
//!
//! The rank's control group counts its processes killed for memory, no matter which limit was hit, the
//! group's or the host's. The root group has no counter; then the host's counter is used, which also counts
//! other processes.

use dtrain_protocol::Failure;
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

/// Samples of a rank's memory use, and of the kernel's count of processes killed for memory.
#[derive(Clone, Debug)]
pub(super) struct MemoryWatch {
    /// The kernel's counter of OOM kills.
    counter: OomKillCounter,
    /// The last values of the counter. The oldest one is compared: a process being killed may be sampled
    /// several times until its memory is free.
    kills: VecDeque<u64>,
    /// Resident memory in bytes at the last sample.
    resident: u64,
}

impl MemoryWatch {
    /// Starts to watch process `id`, soon after the process was started.
    pub(super) fn at_start(id: u32) -> Self {
        let counter = OomKillCounter::of(id, Path::new("/"));
        Self { kills: VecDeque::from([counter.kills()]), counter, resident: 0 }
    }

    /// Samples the memory of process `id` and the kernel's counter.
    pub(super) fn sample(&mut self, id: u32) {
        let counter = OomKillCounter::of(id, Path::new("/"));
        if counter != self.counter {
            self.kills.clear();
        }
        self.counter = counter;
        self.kills.push_back(self.counter.kills());
        while self.kills.len() > self.counter.looks() {
            self.kills.pop_front();
        }
        self.resident = resident(id).unwrap_or(self.resident);
    }

    /// Returns an out-of-memory failure if the kernel killed a process for memory since the oldest sample. To
    /// be called for a rank that was killed by another process.
    pub(super) fn oom_failure(&self) -> Option<Failure> {
        let limit = match self.counter {
            OomKillCounter::Group(_) => "its memory limit, or its host,",
            OomKillCounter::Host(_) => "its host",
        };
        let before = self.kills.front().copied().unwrap_or(0);
        (self.counter.kills() > before).then(|| Failure::OutOfMemory {
            detail: format!(
                "the kernel's OOM killer killed the rank at {} MiB: {limit} has no more",
                self.resident >> 20
            ),
        })
    }
}

/// The file of a kernel counter of OOM kills.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OomKillCounter {
    /// The counter of one control group.
    Group(PathBuf),
    /// The counter of the host since boot.
    Host(PathBuf),
}

impl OomKillCounter {
    /// Returns the counter for process `id`, in the file system at `root`.
    fn of(id: u32, root: &Path) -> Self {
        let groups = fs::read_to_string(root.join(format!("proc/{id}/cgroup"))).unwrap_or_default();
        let mounts = root.join("sys/fs/cgroup");
        let own = groups.lines().find_map(|line| counter_path(line, &mounts));
        own.map_or_else(|| Self::Host(root.join("proc/vmstat")), Self::Group)
    }

    /// Number of samples to keep, at four a second. The host's counter includes other processes, so only its
    /// last samples tell something about a rank.
    fn looks(&self) -> usize {
        match self {
            Self::Group(_) => 40,
            Self::Host(_) => 2,
        }
    }

    /// Reads the counter of OOM kills; 0 if it cannot be read.
    fn kills(&self) -> u64 {
        let (Self::Group(path) | Self::Host(path)) = self;
        number(&fs::read_to_string(path).unwrap_or_default(), "oom_kill ").unwrap_or(0)
    }
}

/// Returns the counter file of the group in a line of `/proc/PID/cgroup`: `0::/path` in version 2,
/// `4:memory:/path` in version 1; `None` if there is none. In a container the group may be mounted as the
/// root.
fn counter_path(line: &str, mounts: &Path) -> Option<PathBuf> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    let (mount, file) = match controllers {
        "" => (mounts.to_owned(), "memory.events"),
        _ if controllers.split(',').any(|controller| controller == "memory") => {
            (mounts.join("memory"), "memory.oom_control")
        }
        _ => return None,
    };
    let is_real_root = path == "/" && file == "memory.oom_control";
    let counts =
        |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| number(&text, "oom_kill ").is_some());
    let places = [mount.join(path.trim_start_matches('/')).join(file), mount.join(file)];
    places.into_iter().filter(|_| !is_real_root).find(counts)
}

/// Returns the resident memory of a process, in bytes.
fn resident(id: u32) -> Option<u64> {
    let kibi = number(&fs::read_to_string(format!("/proc/{id}/status")).ok()?, "VmRSS:")?;
    Some(kibi << 10)
}

/// Returns the number after `key` at the start of a line of `text`.
fn number(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a host whose process 7 is in the given groups, with files by path.
    fn host(groups: &str, files: &[(&str, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "proc/7/cgroup", groups);
        for (path, kills) in files {
            write(root.path(), path, &format!("low 0\noom 3\noom_kill {kills}\noom_group_kill 9\n"));
        }
        root
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("room on disk");
        fs::write(path, text).expect("room on disk");
    }

    #[test]
    fn the_counter_is_that_of_the_own_control_group() {
        let vmstat = ("proc/vmstat", 100);
        let of = |groups: &str, files: &[(&str, u64)]| {
            let root = host(groups, &[files, &[vmstat]].concat());
            OomKillCounter::of(7, root.path()).kills()
        };
        let own = "sys/fs/cgroup/a.slice/b.scope/memory.events";
        assert_eq!(of("0::/a.slice/b.scope\n", &[(own, 2), ("sys/fs/cgroup/memory.events", 50)]), 2);
        assert_eq!(of("0::/elsewhere\n", &[("sys/fs/cgroup/memory.events", 5)]), 5, "as a container sees it");
        assert_eq!(of("0::/\n", &[]), 100, "the root has no counter");
        let hybrid = "5:devices:/x\n4:cpu,memory:/job\n0::/\n";
        assert_eq!(of(hybrid, &[("sys/fs/cgroup/memory/job/memory.oom_control", 4)]), 4, "version 1");
        let root = [("sys/fs/cgroup/memory/memory.oom_control", 0)];
        assert_eq!(
            of("4:memory:/\n0::/\n", &root),
            100,
            "the root of version 1 counts its own processes only"
        );
        assert_eq!(of("", &[]), 100);
    }

    #[test]
    fn a_kill_of_another_group_is_no_reason() {
        let own = "sys/fs/cgroup/rank/memory.events";
        let root = host("0::/rank\n", &[(own, 1), ("proc/vmstat", 10)]);
        let counter = OomKillCounter::of(7, root.path());
        let memory = MemoryWatch { kills: VecDeque::from([counter.kills()]), counter, resident: 5 << 20 };
        assert_eq!(memory.oom_failure(), None);
        write(root.path(), "proc/vmstat", "oom_kill 11\n");
        assert_eq!(memory.oom_failure(), None, "the kernel killed another process");
        write(root.path(), own, "oom_kill 2\n");
        let told = memory.oom_failure();
        assert!(
            matches!(&told, Some(Failure::OutOfMemory { detail }) if detail.contains("5 MiB")),
            "{told:?}"
        );
    }

    #[test]
    fn this_process_is_looked_at() {
        let id = std::process::id();
        assert!(resident(id).is_some_and(|bytes| bytes > 1 << 20));
        let mut memory = MemoryWatch::at_start(id);
        memory.sample(id);
        assert!(memory.resident > 1 << 20 && memory.counter == OomKillCounter::of(id, Path::new("/")));
    }
}
