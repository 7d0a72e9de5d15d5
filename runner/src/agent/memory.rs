//! Whether the kernel ended a rank because memory ran out: it says so nowhere but in a counter.

use dtrain_protocol::Failure;
use std::fs;

/// What was seen of the memory of a rank's process, now and then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Processes that the kernel had killed for memory at the last two looks. The older one counts: a process that is being killed
    /// may be looked at once more.
    kills: [u64; 2],
    /// Bytes it held at the last look.
    resident: u64,
}

impl Memory {
    /// Before the process did anything.
    pub(super) fn at_start() -> Self {
        Self { kills: [kills(); 2], resident: 0 }
    }

    /// Looks at process `id`.
    pub(super) fn look(&mut self, id: u32) {
        self.kills = [self.kills[1], kills()];
        self.resident = resident(id).unwrap_or(self.resident);
    }

    /// Why a process ended that was killed by somebody else: out of memory where the kernel killed one for it meanwhile.
    pub(super) fn explains(&self) -> Option<Failure> {
        (kills() > self.kills[0]).then(|| Failure::OutOfMemory {
            detail: format!(
                "the kernel's OOM killer killed the rank at {} MiB: its host or memory limit has no more",
                self.resident >> 20
            ),
        })
    }
}

/// Processes that the kernel has killed for memory since it started, within limits of groups too; 0 where it does not count them.
fn kills() -> u64 {
    number(&fs::read_to_string("/proc/vmstat").unwrap_or_default(), "oom_kill ").unwrap_or(0)
}

/// Bytes of memory that a process holds.
fn resident(id: u32) -> Option<u64> {
    let kibi = number(&fs::read_to_string(format!("/proc/{id}/status")).ok()?, "VmRSS:")?;
    Some(kibi << 10)
}

/// The number after `key` at the beginning of a line.
fn number(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_blamed_where_the_kernel_killed_for_it_and_nowhere_else() {
        assert_eq!(number("a 1\noom_kill 7\noom_killed 9\n", "oom_kill "), Some(7));
        assert!(resident(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
        let now = Memory { kills: [kills(); 2], resident: 5 << 20 };
        let before = Memory { kills: [kills().wrapping_sub(1).min(kills()), kills()], ..now };
        if kills() > 0 {
            assert!(
                matches!(before.explains(), Some(Failure::OutOfMemory { detail }) if detail.contains("5 MiB"))
            );
        }
        assert_eq!(now.explains(), None);
    }
}
