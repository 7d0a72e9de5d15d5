//! The hosts of a trial between attempts: which of them take part, and whether more of them pay. Pure functions.

use serde::{Deserialize, Serialize};

/// What is known of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCondition {
    /// True if the host answers.
    pub answers: bool,
    /// True if the host is drained, or the system asked its agent to end.
    pub leaves: bool,
    /// True if the host is left out because of its strikes.
    pub is_left_out: bool,
}

/// Standing of a host for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostStanding {
    /// It takes part.
    Offered,
    /// It could take part, but enough others do.
    Spare,
    /// It takes no part for a while, because attempts failed on it.
    LeftOut,
    /// It takes no part, because it is about to be gone.
    Leaving,
    /// It does not answer.
    Gone,
}

/// Returns the standing of each host in `reports`, which are in the order in which an attempt takes them, if `most` of
/// them may take part.
pub fn standings(reports: &[HostCondition], most: u32) -> Vec<HostStanding> {
    let mut offered = 0;
    let standing = |report: &HostCondition| match report {
        HostCondition { answers: false, .. } => HostStanding::Gone,
        HostCondition { leaves: true, .. } => HostStanding::Leaving,
        HostCondition { is_left_out: true, .. } => HostStanding::LeftOut,
        HostCondition { .. } if offered < most => {
            offered += 1;
            HostStanding::Offered
        }
        HostCondition { .. } => HostStanding::Spare,
    };
    reports.iter().map(standing).collect()
}

/// Number of restarts that the rest must outlast for hosts to be added that make it neither faster nor slower.
const RESTARTS_WITHOUT_GAIN: f64 = 20.0;

/// A restart on more hosts, which takes time, and makes the rest faster or safer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Predicted time of a step on the hosts of the attempt and on those of the next one, in seconds.
    pub step_seconds: (f64, f64),
    /// True if a step is slower on the hosts of the next attempt, and the 80 % intervals of the predictions do not overlap.
    pub is_slower: bool,
    /// Time that the rest of the training takes on the hosts of the attempt, in seconds; `None` if it has no known end.
    pub remaining_seconds: Option<f64>,
    /// Time from the last step of the attempt to the first one of the next, in seconds.
    pub restart_seconds: f64,
}

impl Growth {
    fn remaining(&self) -> f64 {
        self.remaining_seconds.unwrap_or(f64::INFINITY)
    }

    /// Returns the time by which the rest is shorter, without the restart; 0 if it is not, and infinite if it is and has no
    /// known end.
    pub fn gained_seconds(&self) -> f64 {
        let (now, then) = self.step_seconds;
        let share = 1.0 - then / now;
        if share > 0.0 { self.remaining() * share } else { 0.0 }
    }

    /// Returns `true` if the restart takes less time than it gains, or if the rest is long and not slower on more hosts, as
    /// far as the predictions can tell: then more hosts have copies of the checkpoints, and the loss of one takes a
    /// smaller share of the ranks.
    pub fn pays(&self) -> bool {
        let outlasts = self.remaining() > RESTARTS_WITHOUT_GAIN * self.restart_seconds;
        let protects = !self.is_slower && outlasts;
        protects || self.gained_seconds() > self.restart_seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: HostCondition = HostCondition { answers: true, leaves: false, is_left_out: false };

    #[test]
    fn who_answers_takes_part_in_order_and_the_others_stand_by() {
        let away = HostCondition { answers: false, ..WELL };
        let drained = HostCondition { leaves: true, is_left_out: true, ..WELL };
        let struck = HostCondition { is_left_out: true, ..WELL };
        let all = [away, WELL, drained, WELL, struck, WELL];
        use HostStanding::{Gone, Leaving, LeftOut, Offered, Spare};
        assert_eq!(standings(&all, 2), [Gone, Offered, Leaving, Offered, LeftOut, Spare]);
        assert_eq!(standings(&all, u32::MAX), [Gone, Offered, Leaving, Offered, LeftOut, Offered]);
        assert_eq!(standings(&[], 3), []);
    }

    #[test]
    fn a_restart_pays_if_the_rest_gains_more_than_it_takes() {
        let growth = |remaining_seconds| Growth {
            step_seconds: (3.0, 2.0),
            is_slower: false,
            remaining_seconds: Some(remaining_seconds),
            restart_seconds: 5.0,
        };
        assert!((growth(60.0).gained_seconds() - 20.0).abs() < 1e-9);
        assert!(growth(60.0).pays() && !growth(14.0).pays());
        let endless = Growth { remaining_seconds: None, ..growth(0.0) };
        assert!(endless.pays(), "no end is known");
        let slower = Growth { step_seconds: (2.0, 3.0), is_slower: true, ..endless };
        assert_eq!((slower.gained_seconds(), slower.pays()), (0.0, false));
        let same = Growth { step_seconds: (2.0, 2.0), ..growth(101.0) };
        assert!(same.pays(), "more hosts have copies of the checkpoints");
        assert!(!Growth { remaining_seconds: Some(99.0), ..same }.pays(), "the rest is too short for that");
        assert!(!slower.pays(), "they make it slower");
    }
}
