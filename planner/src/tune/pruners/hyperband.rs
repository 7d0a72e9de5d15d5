//! Hyperband (Li et al. 2018): ASHA in several brackets, each with a later first rung than the one before it.
//!
//! If early values mislead, the later brackets still let trials run for long; if they do not, the first
//! bracket is the fastest. All brackets get about equal shares of the training.

use super::asha::Asha;
use serde::{Deserialize, Serialize};

/// Rule of Hyperband: the spacing of the rungs in the first bracket, from which those of the others follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hyperband {
    /// Reduction factor: one in `eta` trials passes a rung; at least 2.
    pub eta: u32,
    /// Units of training before the first rung of the first bracket, at least 1.
    pub min_resource: u64,
    /// Units of training of a whole trial.
    pub max_resource: u64,
}

impl Hyperband {
    fn first(self) -> Asha {
        let Self { eta, min_resource, max_resource } = self;
        Asha { eta, min_resource, max_resource }
    }

    /// Returns the number of brackets: one for each rung, and one without rungs.
    pub fn brackets(self) -> u32 {
        self.first().reached(self.max_resource) + 1
    }

    /// Returns the ASHA rule of a bracket, with its rungs.
    pub fn asha(self, bracket: u32) -> Asha {
        let min_resource = self.first().level(bracket).unwrap_or(self.max_resource);
        Asha { min_resource, ..self.first() }
    }

    /// Returns the bracket of a trial. In each cycle of trials, a bracket gets the number that makes its
    /// share of the training equal to that of the others.
    pub fn bracket(self, trial: u64) -> u32 {
        let brackets = self.brackets();
        let cycle: u64 = (0..brackets).map(|bracket| self.share(bracket)).sum();
        let mut place = trial % cycle;
        for bracket in 0..brackets {
            let share = self.share(bracket);
            if place < share {
                return bracket;
            }
            place -= share;
        }
        unreachable!("the shares make up the cycle")
    }

    /// Returns the number of trials that a bracket gets in one cycle (Li et al. 2018, algorithm 1):
    /// `⌈brackets/(rungs + 1)·eta^rungs⌉`.
    fn share(self, bracket: u32) -> u64 {
        let brackets = u64::from(self.brackets());
        let rungs = self.brackets() - 1 - bracket;
        let many = u64::from(self.eta.max(2)).saturating_pow(rungs);
        brackets.saturating_mul(many).div_ceil(u64::from(rungs) + 1)
    }
}
