//! Hyperband (Li et al. 2018): ASHA in several brackets, of which each judges later than the one before it.
//!
//! Where early values mislead, the later brackets still let trials run for long; where they do not, the first bracket is the
//! fastest. Brackets have about equal shares of all training.

use super::asha::Asha;
use serde::{Deserialize, Serialize};

/// The rungs of the bracket that judges earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hyperband {
    /// One in so many trials passes a rung; at least 2.
    pub eta: u32,
    /// Units of training at the first rung of the first bracket, at least 1.
    pub min_resource: u64,
    /// Units of training of a whole trial.
    pub max_resource: u64,
}

impl Hyperband {
    fn first(self) -> Asha {
        let Self { eta, min_resource, max_resource } = self;
        Asha { eta, min_resource, max_resource }
    }

    /// How many brackets there are: one for each rung, and one in which nobody is judged.
    pub fn brackets(self) -> u32 {
        self.first().reached(self.max_resource) + 1
    }

    /// The rungs of a bracket.
    pub fn asha(self, bracket: u32) -> Asha {
        let min_resource = self.first().level(bracket).unwrap_or(self.max_resource);
        Asha { min_resource, ..self.first() }
    }

    /// The bracket of a trial. In every cycle of trials each bracket has as many as make the shares of training equal.
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

    /// Trials of a bracket in one cycle (Li et al. 2018, algorithm 1): `⌈brackets/(rungs + 1)·eta^rungs⌉`.
    fn share(self, bracket: u32) -> u64 {
        let brackets = u64::from(self.brackets());
        let rungs = self.brackets() - 1 - bracket;
        let many = u64::from(self.eta.max(2)).saturating_pow(rungs);
        brackets.saturating_mul(many).div_ceil(u64::from(rungs) + 1)
    }
}
