//! Where a Gaussian process expects the largest improvement.

use super::sobol;
use crate::tune::acquisition::{self, Promise};
use crate::tune::event::Source;
use crate::tune::lessons::Lessons;
use crate::tune::model::Model;
use crate::tune::sampler::Asked;
use crate::tune::space::Space;
use crate::tune::value::Value;
use dtrain_protocol::order::mix;

/// Trials that are spread evenly before the process is asked: in six dimensions more of them cost a study of 30 its end.
pub(in crate::tune) fn start(space: &Space) -> u32 {
    let dimensions = u32::try_from(space.dimensions().len()).expect("a few dimensions");
    1 + dimensions
}

/// The values that promise most of those nobody tried. Trials that run count with the cost that is believed of them.
pub(in crate::tune) fn next(asked: &Asked, start: u32) -> Option<(Vec<Value>, Source)> {
    if asked.trial < u64::from(start) {
        return sobol::next(asked);
    }
    let model = Model::of(asked.space, &Lessons::of(asked.standing));
    let seed = mix(asked.seed, asked.trial);
    let is_fresh = |values: &[Value]| asked.is_fresh(values);
    let promise = model.and_then(|m| acquisition::most_promising(asked.space, &m, &is_fresh, seed));
    let modelled = |Promise { values, improvement }| (values, Source::Model { improvement });
    // Without a model, or where it saw nothing new, the rest of the space is still there.
    promise.map(modelled).or_else(|| sobol::next(asked))
}
