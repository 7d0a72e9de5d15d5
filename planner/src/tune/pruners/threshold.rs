//! A trial stops when what it reports is above a bound, or no number: it has diverged.

use crate::tune::event::Judgement;
use crate::tune::standing::Standing;
use serde::{Deserialize, Serialize};

/// The bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    /// Largest value with which a trial goes on.
    pub most: f64,
    /// Units of training before which only what is no number stops a trial.
    pub from: u64,
}

impl Threshold {
    pub(in crate::tune) fn judge(&self, standing: &Standing, trial: u64) -> Judgement {
        let Some((at, value)) = standing.trial(trial).reports.last() else { return Judgement::Continue };
        let is_above = *at >= self.from && *value > self.most;
        if is_above || !value.is_finite() { Judgement::Stop } else { Judgement::Continue }
    }
}
