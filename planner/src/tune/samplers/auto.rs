//! Default sampler: a Gaussian process mixed with TPE, or TPE alone where the process is too slow or does not
//! suit the space.

use super::ask_context::AskContext;
use super::{gaussian, tpe};
use crate::tune::event::ProposalSource;
use crate::tune::sampler::initial_trials;
use crate::tune::value::TrialValue;

/// Number of trials beyond which TPE is used, as a process sees only some of so many.
const TRIALS_MOST: u64 = 300;

/// Number of dimensions beyond which TPE is used, as all points are then far from each other.
const DIMENSIONS_MOST: usize = 20;

/// Returns the proposal of the sampler, of the two, that suits the study better.
pub(super) fn next(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let conditional =
        context.space.dimensions().iter().filter(|dimension| !dimension.when.is_empty()).count();
    // A process puts inactive dimensions in the middle and learns little from them.
    let is_conditional = 2 * conditional > context.size();
    if context.trial >= TRIALS_MOST || context.size() > DIMENSIONS_MOST || is_conditional {
        return tpe::next(context);
    }
    gaussian::next_mixed(context, initial_trials(context.space))
}
