//! Sampler that maximizes the expected improvement under a Gaussian process.

use super::ask_context::AskContext;
use super::{sobol, tpe};
use crate::tune::acquisition::{self, AcquisitionGoal, AcquisitionMaximum};
use crate::tune::event::ProposalSource;
use crate::tune::observations::StudyObservations;
use crate::tune::surrogate::Surrogate;
use crate::tune::value::TrialValue;
use dtrain_protocol::shuffle::splitmix64;

/// With noisy costs, one in this many proposals minimizes the posterior mean. Expected improvement seldom
/// measures again near the incumbent, so the best trial could not be told from a lucky one.
const CONFIRM_EVERY: u64 = 3;

/// In the mixed sampler, one in this many proposals is made by TPE.
const TPE_EVERY: u64 = 4;

/// First trial that TPE may propose where costs are noisy: TPE needs trials to split into good and other
/// ones.
const TPE_NOISY: u64 = 12;

/// First trial that TPE may propose where the process explains any of the costs as noise. In a smooth
/// function of several dimensions it often does so after few trials.
const TPE_ROUGH: u64 = 30;

/// Returns the untried values with the highest acquisition, after an initial design of `start` trials.
/// Running trials count with their expected cost.
pub(super) fn next(context: &AskContext, start: u32) -> Option<(Vec<TrialValue>, ProposalSource)> {
    if context.trial < u64::from(start) {
        return initial_design(context);
    }
    let model = Surrogate::of(context.space, &StudyObservations::of(context.study_state));
    // Without a model, or when it finds no untried values, use the rest of the space.
    model.and_then(|model| propose_from_model(context, &model)).or_else(|| sobol::next(context))
}

/// Returns the untried values with the highest acquisition as [`next`] does, or those of TPE where the
/// process explains part of the costs as noise: either they are noisy, or the function is too rough for the
/// kernel. TPE assumes neither smoothness nor noise of one size.
pub(super) fn next_mixed(context: &AskContext, start: u32) -> Option<(Vec<TrialValue>, ProposalSource)> {
    if context.trial < u64::from(start) {
        return initial_design(context);
    }
    let model = Surrogate::of(context.space, &StudyObservations::of(context.study_state));
    let Some(model) = model else { return sobol::next(context) };
    let first = if model.is_noisy() { TPE_NOISY } else { TPE_ROUGH };
    if context.trial.is_multiple_of(TPE_EVERY) && context.trial >= first && !model.is_exact() {
        return tpe::next(context);
    }
    propose_from_model(context, &model).or_else(|| sobol::next(context))
}

/// Returns the next point of the initial design: the center (as in Vizier: Song et al. 2024), since bounds
/// are mostly set around known good values, then the points of a Sobol sequence.
fn initial_design(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let center = context.space.values(&vec![0.5; context.size()]);
    if context.trial == 0 && context.is_untried(&center) {
        return Some((center, ProposalSource::Sobol));
    }
    sobol::next(context)
}

/// Returns the proposal of the surrogate model; `None` when it finds no untried values.
fn propose_from_model(context: &AskContext, model: &Surrogate) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let confirms = context.trial % CONFIRM_EVERY == CONFIRM_EVERY - 1 && model.is_noisy();
    let goal = if confirms { AcquisitionGoal::Lowest } else { AcquisitionGoal::Improvement };
    let is_untried = |values: &[TrialValue]| context.is_untried(values);
    let seed = splitmix64(context.seed, context.trial);
    let best = acquisition::maximize_acquisition(context.space, model, goal, &is_untried, seed);
    best.map(|AcquisitionMaximum { values, improvement }| (values, ProposalSource::Model { improvement }))
}
