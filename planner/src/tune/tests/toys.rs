//! Toy functions that are cheap to evaluate.

use super::runs::Runs;
use crate::tune::{
    Dimension, Scale, SearchSpace, Study, StudySolver, TrialFailure, TrialOutcome, TrialResult, TrialValue,
};
use dtrain_protocol::shuffle::splitmix64;
use std::f64::consts::PI;

/// A toy function to be minimized, with noise and a region where it fails.
#[derive(Clone, Copy)]
pub(super) struct Toy {
    pub(super) space: fn() -> SearchSpace,
    /// Noise-free function of a point of the unit cube.
    pub(super) truth: fn(&[f64]) -> f64,
    /// Standard deviation of a measurement.
    pub(super) noise: f64,
    pub(super) failure: fn(&[f64]) -> Option<TrialFailure>,
    pub(super) seed: u64,
}

impl Toy {
    pub(super) fn truth_of(&self, values: &[TrialValue]) -> f64 {
        (self.truth)(&(self.space)().point(values).expect("values of the space"))
    }

    pub(super) fn failures(ended: &[TrialResult]) -> usize {
        ended.iter().filter(|trial| matches!(trial.outcome, TrialOutcome::Failed { .. })).count()
    }

    /// Runs a study of this toy with its seed and `budget` trials.
    pub(super) fn searched(&self, study: impl FnOnce(SearchSpace, u64) -> Study, budget: u64) -> StudySolver {
        let study = Study { trials: Some(budget), ..study((self.space)(), self.seed) };
        StudySolver::new(study, Vec::new()).run(Runs::new(*self, 1))
    }

    /// Returns the result of a trial with this number and these values.
    pub(super) fn outcome(&self, trial: u64, values: &[TrialValue]) -> TrialOutcome {
        let point = (self.space)().point(values).expect("values of the space");
        if let Some(why) = (self.failure)(&point) {
            return TrialOutcome::Failed { reason: why };
        }
        TrialOutcome::done((self.truth)(&point) + self.noise * bell(self.seed, trial))
    }
}

/// Returns an approximately standard normal number: the sum of twelve uniform ones.
fn bell(seed: u64, index: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "chance needs no more digits")]
    let even = |k| splitmix64(splitmix64(seed ^ 0x5eed, index), k) as f64 / u64::MAX as f64;
    (0..12).map(even).sum::<f64>() - 6.0
}

pub(super) fn dimension(name: &str, scale: Scale) -> Dimension {
    Dimension::new(name, scale)
}

fn rate() -> SearchSpace {
    SearchSpace::new(vec![dimension("train.learning_rate", Scale::Log { low: 1e-5, high: 1e-1 })])
}

/// A loss over the logarithm of the learning rate, lowest at 1.6e-3 and diverging above 2.5e-2.
pub(super) fn learning_rate(seed: u64) -> Toy {
    Toy {
        space: rate,
        truth: |point| 2.0 + 4.0 * (point[0] - 0.55).powi(2),
        noise: 0.02,
        failure: |point| (point[0] > 0.85).then_some(TrialFailure::Diverged),
        seed,
    }
}

fn square() -> SearchSpace {
    SearchSpace::new(["x", "y"].map(|name| dimension(name, Scale::Log { low: 1.0, high: 1e3 })).to_vec())
}

/// Branin's function (Dixon and Szegő 1978), with three minima of 0.397887.
pub(super) fn branin(seed: u64) -> Toy {
    Toy {
        space: square,
        truth: |point| {
            let (x, y) = (15.0 * point[0] - 5.0, 15.0 * point[1]);
            let bent = y - 5.1 / (4.0 * PI * PI) * x * x + 5.0 / PI * x - 6.0;
            bent * bent + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos() + 10.0
        },
        noise: 0.0,
        failure: |_| None,
        seed,
    }
}

fn training() -> SearchSpace {
    let precision = Scale::Names(["f32", "bf16"].map(|word| TrialValue::Word(word.into())).to_vec());
    SearchSpace::new(vec![
        dimension("train.learning_rate", Scale::Log { low: 1e-5, high: 1e-1 }),
        dimension("train.batch", Scale::Levels([16, 32, 64, 128, 256].map(TrialValue::Whole).to_vec())),
        dimension("train.warmup", Scale::Counts { low: 10, high: 1000 }),
        dimension("train.precision", precision),
    ])
}

/// Four values of a recipe: the best learning rate grows with the batch, the largest batches fit in memory
/// only in the second precision, and too high a rate diverges.
pub(super) fn recipe(seed: u64) -> Toy {
    Toy {
        space: training,
        truth: |point| {
            let best = 0.45 + 0.15 * point[1];
            let warmup = 0.2 * (point[2] - 0.6).powi(2);
            2.0 + 3.0 * (point[0] - best).powi(2) + 0.3 * (point[1] - 0.9).powi(2) + warmup
        },
        noise: 0.01,
        failure: |point| {
            let is_too_large = point[1] > 0.6 && point[3] < 0.5;
            let is_too_fast = point[0] > 0.8;
            let why = if is_too_large { TrialFailure::OutOfMemory } else { TrialFailure::Diverged };
            (is_too_large || is_too_fast).then_some(why)
        },
        seed,
    }
}
