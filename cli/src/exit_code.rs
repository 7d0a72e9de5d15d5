//! Exit codes of the program and their meanings.

use std::fmt::Write as _;

/// Reason why the program ends, each with an exit code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitReason {
    Done,
    Usage,
    NothingFits,
    Preflight,
    WorkerFailed,
    Infrastructure,
    Preempted,
    StalePlan,
    Interrupted,
    Detached,
}

/// Table of all exit codes with their meanings, in ascending order.
pub(crate) const EXIT_CODES: &[(ExitReason, u8, &str)] = &[
    (ExitReason::Done, 0, "done"),
    (ExitReason::Usage, 2, "usage error or invalid recipe"),
    (ExitReason::NothingFits, 3, "no layout fits"),
    (ExitReason::Preflight, 4, "a preflight check failed; nothing was started"),
    (ExitReason::WorkerFailed, 5, "training failed, ran out of memory or diverged"),
    (ExitReason::Infrastructure, 6, "infrastructure failed: hosts, network, disk or history"),
    (ExitReason::Preempted, 7, "preempted; checkpoint saved, `dtrain resume` continues"),
    (ExitReason::StalePlan, 8, "the plan is stale: something it depends on has changed"),
    (ExitReason::Interrupted, 130, "interrupted; checkpoint saved, `dtrain resume` continues"),
    (ExitReason::Detached, 131, "detached; training continues, `dtrain attach` follows it"),
];

impl ExitReason {
    /// Returns the exit code that the shell sees for this reason.
    pub(crate) fn exit_code(self) -> u8 {
        EXIT_CODES.iter().find(|(exit, ..)| *exit == self).map_or(1, |(_, code, _)| *code)
    }

    /// Returns the reason for which the program ended with the exit code `code`; `None` for an unknown code.
    pub(crate) fn from_exit_code(code: u8) -> Option<Self> {
        EXIT_CODES.iter().find(|(_, known, _)| *known == code).map(|(exit, ..)| *exit)
    }
}

/// Formats the table of exit codes as text for `dtrain --help`.
pub(crate) fn exit_codes() -> String {
    EXIT_CODES.iter().fold("Exit codes:\n".to_owned(), |mut text, (_, code, meaning)| {
        _ = writeln!(text, "  {code:>3}  {meaning}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_has_one_code_and_every_code_one_meaning() {
        let codes: Vec<u8> = EXIT_CODES
            .iter()
            .map(|(exit, code, _)| {
                assert_eq!(exit.exit_code(), *code);
                *code
            })
            .collect();
        assert_eq!(codes, [0, 2, 3, 4, 5, 6, 7, 8, 130, 131]);
    }
}
