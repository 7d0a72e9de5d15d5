//! The sampler for those who name none: a Gaussian process mixed with TPE, and TPE alone where the process would be slow or does
//! not suit the space.

use super::{gaussian, tpe};
use crate::tune::event::ProposalSource;
use crate::tune::sampler::AskContext;
use crate::tune::value::TrialValue;

/// Trials beyond which TPE is asked: a process sees only some of so many.
const TRIALS_MOST: u64 = 300;

/// Dimensions beyond which TPE is asked: in more, all places are far from each other.
const DIMENSIONS_MOST: usize = 20;

/// What the better suited of the two proposes.
pub(in crate::tune) fn next(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let conditional =
        context.space.dimensions().iter().filter(|dimension| !dimension.when.is_empty()).count();
    // A process puts what does not exist in the middle, which teaches it little where that is most.
    let is_conditional = 2 * conditional > context.size();
    if context.trial >= TRIALS_MOST || context.size() > DIMENSIONS_MOST || is_conditional {
        return tpe::next(context);
    }
    gaussian::next_mixed(context, gaussian::initial_trials(context.space))
}
