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
        Failure::Other(_) | Failure::Command { .. } | Failure::Unsaved { .. } => 2,
        Failure::HostLost { .. } => 3,
        Failure::Data(_) => 4,
        Failure::OtherTraining { .. } => 5,
        Failure::CorruptCheckpoint { .. } => 6,
        Failure::NotFinite { .. } => 7,
        Failure::OutOfMemory { .. } => 8,
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
        let corrupt = Failure::CorruptCheckpoint { folder: "/a".into(), detail: "file 0".into() };
        assert_eq!(verdict_of(&Ended::Lost(corrupt)), None);
    }

    #[test]
    fn pauses_grow_and_end_at_a_minute() {
        assert_eq!([0, 1, 2, 3, 4, 5, 60].map(backoff_ms), [200, 200, 800, 3200, 12_800, 51_200, 60_000]);
    }
}
