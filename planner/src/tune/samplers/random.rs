//! Sampler that searches at random.

use super::ask_context::AskContext;
use crate::tune::event::ProposalSource;
use crate::tune::rng::TrialRng;
use crate::tune::value::TrialValue;

/// Returns untried values, all equally likely.
pub(super) fn next(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let mut rng = TrialRng::new(context.seed, context.trial);
    let values = context.first_untried(|_| (0..context.size()).map(|_| rng.unit()).collect())?;
    Some((values, ProposalSource::Random))
}
