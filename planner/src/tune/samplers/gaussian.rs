//! Where a Gaussian process expects the largest improvement.

use super::{sobol, tpe};
use crate::tune::acquisition::{self, Promise, Wanted};
use crate::tune::event::Source;
use crate::tune::lessons::Lessons;
use crate::tune::model::Model;
use crate::tune::sampler::Asked;
use crate::tune::space::Space;
use crate::tune::value::Value;
use dtrain_protocol::order::mix;

/// With noise, one proposal in so many goes where the posterior mean is lowest. Expected improvement seldom measures again near the
/// incumbent, and then the best trial cannot be told from a lucky one.
const CONFIRM_EVERY: u64 = 3;

/// Where the process is mixed with TPE, one proposal in so many is TPE's.
const TPE_EVERY: u64 = 4;

/// The first trial that may be TPE's where costs are noisy: it splits the trials before into good and other ones.
const TPE_NOISY: u64 = 12;

/// The first trial that may be TPE's where the process explains any of the costs as noise. In a smooth function of several
/// dimensions it often does so while it has seen few trials.
const TPE_ROUGH: u64 = 30;

/// Trials that are spread evenly before the process is asked: in six dimensions more of them cost a study of 30 its end.
pub(in crate::tune) fn start(space: &Space) -> u32 {
    let dimensions = u32::try_from(space.dimensions().len()).expect("a few dimensions");
    1 + dimensions
}

/// The values of highest acquisition that nobody tried. Trials that run count with the cost that is believed of them.
pub(in crate::tune) fn next(asked: &Asked, start: u32) -> Option<(Vec<Value>, Source)> {
    if asked.trial < u64::from(start) {
        return spread(asked);
    }
    let model = Model::of(asked.space, &Lessons::of(asked.standing));
    // Without a model, or where it came across nothing new, the rest of the space is still there.
    model.and_then(|model| modelled(asked, &model)).or_else(|| sobol::next(asked))
}

/// As [`next`], but mixed with TPE where the process explains part of the costs as noise: either they are noisy, or the
/// function is too rough for the kernel. TPE assumes neither smoothness nor a noise of one size.
pub(in crate::tune) fn mixed(asked: &Asked, start: u32) -> Option<(Vec<Value>, Source)> {
    if asked.trial < u64::from(start) {
        return spread(asked);
    }
    let model = Model::of(asked.space, &Lessons::of(asked.standing));
    let Some(model) = model else { return sobol::next(asked) };
    let first = if model.is_noisy() { TPE_NOISY } else { TPE_ROUGH };
    if asked.trial.is_multiple_of(TPE_EVERY) && asked.trial >= first && !model.is_exact() {
        return tpe::next(asked);
    }
    modelled(asked, &model).or_else(|| sobol::next(asked))
}

/// The center of the space (as in Vizier: Song et al. 2024), then points of Sobol's sequence. Bounds are most often set
/// around what is known to work.
fn spread(asked: &Asked) -> Option<(Vec<Value>, Source)> {
    let center = asked.space.values(&vec![0.5; asked.size()]);
    if asked.trial == 0 && asked.is_fresh(&center) {
        return Some((center, Source::Sobol));
    }
    sobol::next(asked)
}

/// What the model proposes; `None` where it came across nothing new.
fn modelled(asked: &Asked, model: &Model) -> Option<(Vec<Value>, Source)> {
    let confirms = asked.trial % CONFIRM_EVERY == CONFIRM_EVERY - 1 && model.is_noisy();
    let wanted = if confirms { Wanted::Lowest } else { Wanted::Improvement };
    let is_fresh = |values: &[Value]| asked.is_fresh(values);
    let seed = mix(asked.seed, asked.trial);
    let promise = acquisition::most_promising(asked.space, model, wanted, &is_fresh, seed);
    promise.map(|Promise { values, improvement }| (values, Source::Model { improvement }))
}
