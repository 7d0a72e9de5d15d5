//! Which trials go on when they report, and which give way to others.

pub use super::pruners::asha::Asha;
pub use super::pruners::hyperband::Hyperband;
pub use super::pruners::median::Median;
pub use super::pruners::threshold::Threshold;

use super::event::Judgement;
use super::standing::Standing;
use serde::{Deserialize, Serialize};

/// How trials are judged when they report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pruner {
    /// Every trial runs to its end.
    #[default]
    None,
    /// A trial stops that does worse than the middle of the others.
    Median(Median),
    /// A trial pauses that is not among the best of its rung.
    Asha(Asha),
    /// ASHA in brackets that differ in how early they judge.
    Hyperband(Hyperband),
    /// A trial stops whose value is above a bound, or no number.
    Threshold(Threshold),
}

impl Pruner {
    /// What to do with a trial after its newest report.
    pub(super) fn judge(&self, standing: &Standing, trial: u64) -> Judgement {
        match self {
            Self::None => Judgement::Continue,
            Self::Median(median) => median.judge(standing, trial),
            Self::Asha(asha) => asha.judge(standing, trial, 0),
            Self::Hyperband(hyperband) => {
                let bracket = hyperband.bracket(trial);
                hyperband.asha(bracket).judge(standing, trial, bracket)
            }
            Self::Threshold(threshold) => threshold.judge(standing, trial),
        }
    }

    /// Of a trial, which rungs it passes: its bracket, and units of training at each rung; nothing where there are no rungs.
    pub(super) fn rungs(&self, trial: u64) -> Option<(u32, Asha)> {
        match self {
            Self::None | Self::Median(_) | Self::Threshold(_) => None,
            Self::Asha(asha) => Some((0, *asha)),
            Self::Hyperband(hyperband) => {
                let bracket = hyperband.bracket(trial);
                Some((bracket, hyperband.asha(bracket)))
            }
        }
    }
}
