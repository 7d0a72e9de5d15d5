//! Evenly over the space.

use crate::tune::event::Source;
use crate::tune::sampler::Asked;
use crate::tune::sobol::Sobol;
use crate::tune::value::Value;

/// The next point of the sequence whose values nobody tried.
pub(in crate::tune) fn next(asked: &Asked) -> Option<(Vec<Value>, Source)> {
    let sobol = Sobol::new(asked.size(), asked.seed);
    let number = u32::try_from(asked.trial).expect("trials are counted in 32 bits");
    let values = asked.first_fresh(|k| sobol.point(number.wrapping_add(k)))?;
    Some((values, Source::Sobol))
}
