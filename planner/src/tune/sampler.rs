//! Ways to choose what is tried next.

use super::acquisition::{self, Promise};
use super::model::Model;
use super::outcome::Ended;
use super::sobol::Sobol;
use super::space::{Space, Value};
use super::study::Source;
use dtrain_protocol::order::mix;
use serde::{Deserialize, Serialize};

/// How the next trial is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// By chance alone: what the others are measured against.
    Random,
    /// Evenly over the space.
    Sobol,
    /// Where a Gaussian process expects the largest improvement.
    Gaussian {
        /// Trials that are spread evenly before.
        start: u32,
    },
}

/// How often a sampler without a memory tries to come up with something new.
const TRIES: u32 = 256;

impl Sampler {
    /// A Gaussian process with as many trials before it as its dimensions ask for.
    pub fn gaussian(space: &Space) -> Self {
        let dimensions = u32::try_from(space.dimensions().len()).expect("a few dimensions");
        Self::Gaussian { start: 2 + 2 * dimensions }
    }

    /// What to try after `ended`, and why; `None` when everything has been tried. The same arguments give the same answer.
    pub fn next(self, space: &Space, seed: u64, ended: &[Ended]) -> Option<(Vec<Value>, Source)> {
        let settled: Vec<&[Value]> =
            ended.iter().filter(|t| t.is_settled()).map(|t| t.values.as_slice()).collect();
        let number = u32::try_from(ended.len()).expect("trials are counted in 32 bits");
        let spread = |source| {
            let sobol = Sobol::new(space.dimensions().len(), seed);
            let fresh = first_fresh(space, &settled, |k| sobol.point(number.wrapping_add(k)));
            fresh.map(|values| (values, source))
        };
        match self {
            Self::Random => {
                let point = |k| random(seed, number, k, space.dimensions().len());
                first_fresh(space, &settled, point).map(|values| (values, Source::Random))
            }
            Self::Sobol => spread(Source::Sobol),
            Self::Gaussian { start } if number < start => spread(Source::Sobol),
            Self::Gaussian { .. } => {
                let model = Model::of(space, ended);
                let seed = mix(seed, u64::from(number));
                let promise = model.and_then(|m| acquisition::most_promising(space, &m, &settled, seed));
                let modelled = |Promise { values, improvement }| (values, Source::Model { improvement });
                // Without a model, or where it saw nothing new, the rest of the space is still there.
                promise.map(modelled).or_else(|| spread(Source::Sobol))
            }
        }
    }
}

/// The values at the first of the points that are not settled; in a space of few values, any that are left.
fn first_fresh(space: &Space, settled: &[&[Value]], point: impl Fn(u32) -> Vec<f64>) -> Option<Vec<Value>> {
    let is_fresh = |values: &Vec<Value>| !settled.contains(&values.as_slice());
    let mut tried = (0..TRIES).map(|k| space.values(&point(k)));
    tried.find(is_fresh).or_else(|| space.all()?.find(is_fresh))
}

/// A point of the unit cube by its numbers alone.
fn random(seed: u64, number: u32, attempt: u32, dimensions: usize) -> Vec<f64> {
    let key = mix(mix(seed, u64::from(number)), u64::from(attempt));
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let coordinate = |dimension| (mix(key, dimension) >> 11) as f64 / (1u64 << 53) as f64;
    (0u64..).take(dimensions).map(coordinate).collect()
}
