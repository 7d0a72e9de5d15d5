//! Blame for a lost attempt: the machines, or the training itself. Of several failures of one attempt, the
//! most severe counts.

use super::backoff::{ATTEMPTS_OF_MACHINES, ATTEMPTS_OF_TRAINING};
use dtrain_protocol::Failure;
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
        Failure::HostLost { .. }
        | Failure::HostLeft { .. }
        | Failure::Regrouped
        | Failure::Storage { .. }
        | Failure::Infrastructure { .. } => 5,
        Failure::Data(_) | Failure::DataOn { .. } => 6,
        Failure::OtherTraining { .. } => 7,
        Failure::CorruptCheckpoint { .. } => 8,
        Failure::NotFinite { .. } => 9,
        Failure::OutOfMemory { .. } => 10,
    }
}

/// The party that is to blame for a lost attempt. Each has its own failure budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// A host, its agent or the network. The training is not to blame: the trial restarts until the machines
    /// work again.
    Machines,
    /// The program, its data or its settings.
    Training,
}

impl Blame {
    /// Returns the party to blame for `failure`. The signals in `FROM_OUTSIDE` come from the system or a user
    /// and count against machines; a program that fails by itself ends otherwise.
    pub fn of(failure: &Failure) -> Self {
        match failure {
            Failure::PeerLost { .. }
            | Failure::HostLost { .. }
            | Failure::HostLeft { .. }
            | Failure::Regrouped
            | Failure::Storage { .. }
            | Failure::Infrastructure { .. } => Self::Machines,
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

    /// Returns the number of attempts without progress that may be lost to this party before the trial fails.
    pub fn attempts(self) -> u32 {
        match self {
            Self::Machines => ATTEMPTS_OF_MACHINES,
            Self::Training => ATTEMPTS_OF_TRAINING,
        }
    }
}

/// Signals that another program, the system or a user sends to end a process.
const FROM_OUTSIDE: &[Signal] = &[Signal::KILL, Signal::TERM, Signal::HUP];

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
    }
}
