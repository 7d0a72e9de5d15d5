//! Functions that are cheap to try.

use super::runs::Runs;
use crate::tune::{Dimension, Ended, Failure, Outcome, Scale, Search, Space, Study, Value};
use dtrain_protocol::order::mix;
use std::f64::consts::PI;

/// A function to be made small, with what chance adds to a measurement and where it cannot be measured.
#[derive(Clone, Copy)]
pub(super) struct Toy {
    pub(super) space: fn() -> Space,
    /// The function at a point of the unit cube.
    pub(super) truth: fn(&[f64]) -> f64,
    /// Standard deviation of a measurement.
    pub(super) noise: f64,
    pub(super) failure: fn(&[f64]) -> Option<Failure>,
    pub(super) seed: u64,
}

impl Toy {
    pub(super) fn truth_of(&self, values: &[Value]) -> f64 {
        (self.truth)(&(self.space)().point(values).expect("values of the space"))
    }

    pub(super) fn failures(ended: &[Ended]) -> usize {
        ended.iter().filter(|trial| matches!(trial.outcome, Outcome::Failed { .. })).count()
    }

    /// Trials of this toy by a study with its seed.
    pub(super) fn searched(&self, study: impl FnOnce(Space, u64) -> Study, budget: u64) -> Search {
        let study = Study { trials: Some(budget), ..study((self.space)(), self.seed) };
        Search::new(study, Vec::new()).run(Runs::new(*self, 1))
    }

    /// How the trial of this number ends that tries these values.
    pub(super) fn outcome(&self, trial: u64, values: &[Value]) -> Outcome {
        let point = (self.space)().point(values).expect("values of the space");
        if let Some(why) = (self.failure)(&point) {
            return Outcome::Failed { why };
        }
        Outcome::done((self.truth)(&point) + self.noise * bell(self.seed, trial))
    }
}

/// About a standard normal number: the sum of twelve even ones.
fn bell(seed: u64, index: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "chance needs no more digits")]
    let even = |k| mix(mix(seed ^ 0x5eed, index), k) as f64 / u64::MAX as f64;
    (0..12).map(even).sum::<f64>() - 6.0
}

pub(super) fn dimension(name: &str, scale: Scale) -> Dimension {
    Dimension::new(name, scale)
}

fn rate() -> Space {
    Space::new(vec![dimension("train.learning_rate", Scale::Log { low: 1e-5, high: 1e-1 })])
}

/// A loss over the logarithm of the learning rate, lowest at 1.6e-3, that is no number above 2.5e-2.
pub(super) fn learning_rate(seed: u64) -> Toy {
    Toy {
        space: rate,
        truth: |point| 2.0 + 4.0 * (point[0] - 0.55).powi(2),
        noise: 0.02,
        failure: |point| (point[0] > 0.85).then_some(Failure::Diverged),
        seed,
    }
}

fn square() -> Space {
    Space::new(["x", "y"].map(|name| dimension(name, Scale::Log { low: 1.0, high: 1e3 })).to_vec())
}

/// Branin's function (Dixon and Szegő 1978): three lowest places of 0.397887.
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

fn training() -> Space {
    let precision = Scale::Names(["f32", "bf16"].map(|word| Value::Word(word.into())).to_vec());
    Space::new(vec![
        dimension("train.learning_rate", Scale::Log { low: 1e-5, high: 1e-1 }),
        dimension("train.batch", Scale::Levels([16, 32, 64, 128, 256].map(Value::Whole).to_vec())),
        dimension("train.warmup", Scale::Counts { low: 10, high: 1000 }),
        dimension("train.precision", precision),
    ])
}

/// Four values of a recipe: the best learning rate grows with the batch, the largest batches do not fit in memory
/// but in the second precision, and too high a rate diverges.
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
            let why = if is_too_large { Failure::OutOfMemory } else { Failure::Diverged };
            (is_too_large || is_too_fast).then_some(why)
        },
        seed,
    }
}
