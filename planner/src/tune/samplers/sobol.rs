//! Sampler that follows a Sobol sequence, which covers the space evenly.

use super::ask_context::AskContext;
use crate::tune::event::ProposalSource;
use crate::tune::sobol::Sobol;
use crate::tune::value::TrialValue;

/// Returns the next point of the Sobol sequence whose values are untried.
pub(super) fn next(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let sobol = Sobol::new(context.size(), context.seed);
    let number = u32::try_from(context.trial).expect("trials are counted in 32 bits");
    let values = context.first_untried(|k| sobol.point(number.wrapping_add(k)))?;
    Some((values, ProposalSource::Sobol))
}
