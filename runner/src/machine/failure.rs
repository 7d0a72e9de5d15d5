//! What a failure means for the trial.

use crate::fact::{Ended, Verdict};
use dtrain_protocol::{Failure, StopReason};

/// The graver of two failures of one attempt. One rank's end makes the others lose a peer, so that a lost peer
/// says least about the cause, and a silent end says less than a reason.
pub fn graver(known: Option<Failure>, other: Failure) -> Failure {
    match known {
        Some(known) if weight(&known) >= weight(&other) => known,
        _ => other,
    }
}

fn weight(failure: &Failure) -> u8 {
    match failure {
        Failure::PeerLost { .. } => 0,
        Failure::Exited { .. } => 1,
        Failure::Command { code: Some(_), signal: None, .. } => 2,
        Failure::Other(_) | Failure::Command { .. } | Failure::Unsaved { .. } => 3,
        Failure::HostLost { .. } => 4,
        Failure::Data(_) => 5,
        Failure::OtherTraining { .. } => 6,
        Failure::CorruptCheckpoint { .. } => 7,
        Failure::NotFinite { .. } => 8,
        Failure::OutOfMemory { .. } => 9,
    }
}

/// The verdict that an attempt's end alone decides: another attempt would end alike.
pub(super) fn verdict_of(ended: &Ended) -> Option<Verdict> {
    match ended {
        Ended::Finished(StopReason::Ordered) => Some(Verdict::Stopped),
        Ended::Finished(reason @ (StopReason::Complete | StopReason::Time | StopReason::Target)) => {
            Some(Verdict::Completed(*reason))
        }
        Ended::Lost(failure) => match failure {
            Failure::OutOfMemory { .. } => Some(Verdict::OutOfMemory),
            Failure::NotFinite { .. } => Some(Verdict::Diverged),
            Failure::Data(_) | Failure::OtherTraining { .. } => Some(Verdict::Failed(failure.clone())),
            Failure::Command { code: Some(code), signal: None, last } if will_come_again(*code, last) => {
                Some(Verdict::Failed(failure.clone()))
            }
            Failure::PeerLost { .. }
            | Failure::HostLost { .. }
            | Failure::CorruptCheckpoint { .. }
            | Failure::Exited { .. }
            | Failure::Command { .. }
            | Failure::Unsaved { .. }
            | Failure::Other(_) => None,
        },
        Ended::NotLaunched(_) => None,
    }
}

/// Whether a program that ended with `code`, last printing `last`, would end so again: it cannot be started, or an exception of
/// its own ended it.
fn will_come_again(code: i32, last: &[String]) -> bool {
    let not_started = matches!(code, 126 | 127);
    let is_transient = |line: &String| TRANSIENT.iter().any(|word| line.to_ascii_lowercase().contains(word));
    let has_traceback = last.iter().any(|line| line.contains("Traceback (most recent call last)"));
    not_started || (has_traceback && !last.iter().any(is_transient))
}

/// Words of exceptions that another rank, the network or the machine may have caused, in lower case.
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

/// Milliseconds before the attempt that follows `failures` lost ones: 0.2, 0.8, 3.2, 12.8 s, then a minute.
pub(super) fn backoff_ms(failures: u32) -> u64 {
    200u64.saturating_mul(4u64.saturating_pow(failures.saturating_sub(1))).min(60_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::StepId;

    #[test]
    fn the_cause_outweighs_what_it_led_to() {
        let lost = Failure::PeerLost { peer: None, detail: "closed".into() };
        let exited = Failure::Exited { code: None, signal: Some(9) };
        let memory = Failure::OutOfMemory { detail: "8 GiB".into() };
        let nan = Failure::NotFinite { step: StepId(3), figure: "loss".into() };
        assert_eq!(graver(Some(lost.clone()), exited.clone()), exited);
        assert_eq!(graver(Some(exited.clone()), lost.clone()), exited);
        assert_eq!(graver(Some(nan), memory.clone()), memory);
        assert_eq!(graver(None, lost.clone()), lost);
    }

    #[test]
    fn a_checkpoint_of_another_training_ends_the_trial_and_is_not_held_to_be_corrupt() {
        let other = Failure::OtherTraining { folder: "/a".into(), detail: "batch".into() };
        assert_eq!(verdict_of(&Ended::Lost(other.clone())), Some(Verdict::Failed(other)));
        let command = |code, last: &[&str]| {
            let last = last.iter().map(|line| (*line).to_owned()).collect();
            verdict_of(&Ended::Lost(Failure::Command { code: Some(code), signal: None, last }))
        };
        let traceback = "Traceback (most recent call last):";
        assert!(command(1, &[traceback, "  File \"train.py\", line 7", "ValueError: bad"]).is_some());
        assert!(command(1, &[traceback, "ModuleNotFoundError: No module named 'torch'"]).is_some());
        assert!(command(127, &["python4: not found"]).is_some());
        assert!(command(1, &[traceback, "RuntimeError: Connection closed by peer"]).is_none());
        assert!(command(1, &["step 3 loss 2"]).is_none(), "nothing says why");
        let corrupt = Failure::CorruptCheckpoint { folder: "/a".into(), detail: "file 0".into() };
        assert_eq!(verdict_of(&Ended::Lost(corrupt)), None);
    }

    #[test]
    fn pauses_grow_and_end_at_a_minute() {
        assert_eq!([0, 1, 2, 3, 4, 5, 60].map(backoff_ms), [200, 200, 800, 3200, 12_800, 51_200, 60_000]);
    }
}
