//! By chance alone.

use crate::tune::chance::Chance;
use crate::tune::event::Source;
use crate::tune::sampler::Asked;
use crate::tune::value::Value;

/// Values that nobody tried, all equally likely.
pub(in crate::tune) fn next(asked: &Asked) -> Option<(Vec<Value>, Source)> {
    let mut chance = Chance::new(asked.seed, asked.trial);
    let values = asked.first_fresh(|_| (0..asked.size()).map(|_| chance.unit()).collect())?;
    Some((values, Source::Random))
}
