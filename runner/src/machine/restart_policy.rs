//! The restart policy: decides if a failure restarts the attempt or ends the trial, and the backoff before a
//! restart.

use crate::fact::{AttemptEnd, Verdict};
use dtrain_protocol::{Failure, StopReason};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// Returns the more severe of two failures of one attempt. When a rank ends, the others lose a peer, so a
/// lost peer says least about the cause; an exit without a reason says less than a reason.
pub fn more_severe(known: Option<Failure>, other: Failure) -> Failure {
    match known {
        Some(known) if severity(&known) >= severity(&other) => known,
        _ => other,
    }
}

fn severity(failure: &Failure) -> u8 {
    match failure {
        Failure::PeerLost { .. } => 0,
        Failure::Stuck { .. } => 1,
        Failure::Exited { .. } => 2,
        Failure::Command { code: Some(_), signal: None, .. } => 3,
        Failure::Other(_) | Failure::Command { .. } | Failure::Unsaved { .. } => 4,
        Failure::HostLost { .. } | Failure::Infrastructure { .. } => 5,
        Failure::Data(_) | Failure::DataOn { .. } => 6,
        Failure::OtherTraining { .. } => 7,
        Failure::CorruptCheckpoint { .. } => 8,
        Failure::NotFinite { .. } => 9,
        Failure::OutOfMemory { .. } => 10,
    }
}

/// The party whose failure lost an attempt. Each has its own budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// A host, its agent or the network. The training is not to blame: the trial restarts until the machines
    /// work again.
    Machines,
    /// The program, its data or its settings are to blame.
    Training,
}

impl Blame {
    /// Returns who is to blame for `failure`. SIGKILL, SIGTERM and SIGHUP come from the system or a user and
    /// count against machines; a program that fails by itself ends otherwise.
    pub fn of(failure: &Failure) -> Self {
        match failure {
            Failure::PeerLost { .. } | Failure::HostLost { .. } | Failure::Infrastructure { .. } => {
                Self::Machines
            }
            Failure::Exited { signal: Some(signal), .. } | Failure::Command { signal: Some(signal), .. }
                if FROM_OUTSIDE.iter().any(|sent| sent.as_raw() == *signal) =>
            {
                Self::Machines
            }
            Failure::OutOfMemory { .. }
            | Failure::NotFinite { .. }
            | Failure::Stuck { .. }
            | Failure::CorruptCheckpoint { .. }
            | Failure::OtherTraining { .. }
            | Failure::Data(_)
            | Failure::DataOn { .. }
            | Failure::Exited { .. }
            | Failure::Command { .. }
            | Failure::Unsaved { .. }
            | Failure::Other(_) => Self::Training,
        }
    }

    /// Returns the number of attempts without progress that such failures may cost.
    pub fn attempts(self) -> u32 {
        match self {
            Self::Machines => ATTEMPTS_OF_MACHINES,
            Self::Training => ATTEMPTS_OF_TRAINING,
        }
    }
}

/// Attempts without a new step on unusable data of one host before the trial fails: other hosts get one try.
pub(super) const ATTEMPTS_AT_DATA: u32 = 2;

/// Signals that end a process from outside.
const FROM_OUTSIDE: &[Signal] = &[Signal::KILL, Signal::TERM, Signal::HUP];

/// Attempts without progress, lost to failures of the training, after which a trial fails. A durable
/// checkpoint is progress, and so is a step that no earlier attempt reached.
pub(super) const ATTEMPTS_OF_TRAINING: u32 = 5;

/// Attempts without progress, lost to machine failures, after which a trial fails. Their backoff alone adds
/// up to a day.
const ATTEMPTS_OF_MACHINES: u32 = 1_440;

/// Milliseconds of machine failures without progress after which a trial fails: a day.
pub(super) const MACHINES_FAIL_FOR_MS: u64 = 24 * 60 * 60 * 1000;

/// Returns the verdict if the end of an attempt alone decides it, because a restart would end alike.
pub(super) fn terminal_verdict(ended: &AttemptEnd) -> Option<Verdict> {
    match ended {
        AttemptEnd::Finished(StopReason::Ordered) => Some(Verdict::Stopped),
        AttemptEnd::Finished(reason @ (StopReason::Complete | StopReason::Time | StopReason::Target)) => {
            Some(Verdict::Completed(*reason))
        }
        AttemptEnd::Lost(failure) => match failure {
            Failure::OutOfMemory { .. } => Some(Verdict::OutOfMemory),
            Failure::NotFinite { .. } => Some(Verdict::Diverged),
            Failure::Data(_) | Failure::OtherTraining { .. } => Some(Verdict::Failed(failure.clone())),
            Failure::Command { code: Some(code), signal: None, last } if is_permanent(*code, last) => {
                Some(Verdict::Failed(failure.clone()))
            }
            Failure::PeerLost { .. }
            | Failure::HostLost { .. }
            | Failure::Infrastructure { .. }
            | Failure::Stuck { .. }
            | Failure::DataOn { .. }
            | Failure::CorruptCheckpoint { .. }
            | Failure::Exited { .. }
            | Failure::Command { .. }
            | Failure::Unsaved { .. }
            | Failure::Other(_) => None,
        },
        AttemptEnd::NotLaunched(_) => None,
    }
}

/// True if a program that ended with `code` and last printed `last` would fail again: it cannot be started,
/// or it raised an exception of its own.
fn is_permanent(code: i32, last: &[String]) -> bool {
    let not_started = matches!(code, 126 | 127);
    let is_transient = |line: &String| TRANSIENT.iter().any(|word| line.to_ascii_lowercase().contains(word));
    let has_traceback = last.iter().any(|line| line.contains("Traceback (most recent call last)"));
    not_started || (has_traceback && !last.iter().any(is_transient))
}

/// Words, in lower case, of exceptions that another rank, the network or the machine may have caused.
const TRANSIENT: &[&str] = &[
    "connection",
    "timed out",
    "timeout",
    "nccl",
    "gloo",
    "mpi",
    "socket",
    "peer",
    "distbackend",
    "diststore",
    "distnetwork",
    "broken pipe",
    "brokenpipe",
    "cuda",
    "out of memory",
    "memoryerror",
    "unavailable",
    "rendezvous",
    "coordinator",
    "heartbeat",
    "no space left",
    "address already in use",
];

/// Exponential backoff: returns the milliseconds before a restart after `failures` lost attempts: 0.2, 0.8,
/// 3.2, 12.8, 51.2 s, then a minute.
pub(super) fn backoff_ms(failures: u32) -> u64 {
    200u64.saturating_mul(4u64.saturating_pow(failures.saturating_sub(1))).min(60_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{Rank, StepId};

    #[test]
    fn the_cause_outweighs_what_it_led_to() {
        let lost = Failure::PeerLost { peer: None, detail: "closed".into() };
        let exited = Failure::Exited { code: None, signal: Some(9) };
        let memory = Failure::OutOfMemory { detail: "8 GiB".into() };
        let nan = Failure::NotFinite { step: StepId(3), figure: "loss".into() };
        assert_eq!(more_severe(Some(lost.clone()), exited.clone()), exited);
        assert_eq!(more_severe(Some(exited.clone()), lost.clone()), exited);
        assert_eq!(more_severe(Some(nan), memory.clone()), memory);
        assert_eq!(more_severe(None, lost.clone()), lost);
    }

    #[test]
    fn a_checkpoint_of_another_training_ends_the_trial_and_is_not_held_to_be_corrupt() {
        let other = Failure::OtherTraining { folder: "/a".into(), detail: "batch".into() };
        assert_eq!(terminal_verdict(&AttemptEnd::Lost(other.clone())), Some(Verdict::Failed(other)));
        let command = |code, last: &[&str]| {
            let last = last.iter().map(|line| (*line).to_owned()).collect();
            terminal_verdict(&AttemptEnd::Lost(Failure::Command { code: Some(code), signal: None, last }))
        };
        let traceback = "Traceback (most recent call last):";
        assert!(command(1, &[traceback, "  File \"train.py\", line 7", "ValueError: bad"]).is_some());
        assert!(command(1, &[traceback, "ModuleNotFoundError: No module named 'torch'"]).is_some());
        assert!(command(127, &["python4: not found"]).is_some());
        assert!(command(1, &[traceback, "RuntimeError: Connection closed by peer"]).is_none());
        assert!(command(1, &["step 3 loss 2"]).is_none(), "nothing says why");
        let corrupt = Failure::CorruptCheckpoint { folder: "/a".into(), detail: "file 0".into() };
        assert_eq!(terminal_verdict(&AttemptEnd::Lost(corrupt)), None);
    }

    #[test]
    fn machines_are_told_from_the_training() {
        let signal = |signal| Failure::Exited { code: None, signal: Some(signal) };
        let machines = [
            Failure::HostLost { host: "a".into(), detail: "silent".into() },
            Failure::PeerLost { peer: Some(Rank(1)), detail: "silent".into() },
            Failure::Infrastructure { host: None, detail: "no host answers".into() },
            signal(9),
            signal(15),
            Failure::Command { code: None, signal: Some(9), last: Vec::new() },
        ];
        let training = [
            Failure::Exited { code: Some(1), signal: None },
            signal(11),
            signal(6),
            Failure::Stuck { peer: Rank(1), detail: "it has not joined".into() },
            Failure::Other("the worker panicked".into()),
            Failure::Data("no such file".into()),
            Failure::OutOfMemory { detail: "8 GiB".into() },
            Failure::Command { code: Some(1), signal: None, last: Vec::new() },
        ];
        for failure in &machines {
            assert_eq!(Blame::of(failure), Blame::Machines, "{failure:?}");
        }
        for failure in &training {
            assert_eq!(Blame::of(failure), Blame::Training, "{failure:?}");
        }
        let pauses: u64 = (1..=ATTEMPTS_OF_MACHINES).map(backoff_ms).sum();
        assert!(pauses.abs_diff(MACHINES_FAIL_FOR_MS) < 600_000, "{pauses}");
    }

    #[test]
    fn pauses_grow_and_end_at_a_minute() {
        assert_eq!([0, 1, 2, 3, 4, 5, 60].map(backoff_ms), [200, 200, 800, 3200, 12_800, 51_200, 60_000]);
    }
}
