//! The samplers, one in each file.

mod ask_context;
mod auto;
mod cma_es;
mod evolution;
mod gaussian;
mod grid;
mod parzen;
mod random;
mod sobol;
mod swarm;
mod tpe;

pub(super) use ask_context::AskContext;

use super::event::ProposalSource;
use super::sampler::Sampler;
use super::value::TrialValue;

impl Sampler {
    /// Returns the values of the next trial and their origin; `None` when everything has been tried.
    /// Deterministic.
    pub(super) fn next(self, context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
        match self {
            Self::Random => random::next(context),
            Self::Sobol => sobol::next(context),
            Self::Gaussian { start } => gaussian::next(context, start),
            Self::Auto => auto::next(context),
            Self::Grid { levels } => grid::next(context, levels),
            Self::Tpe => tpe::next(context),
            Self::CmaEs => cma_es::next(context),
            Self::Swarm => swarm::next(context),
            Self::Evolution => evolution::next(context),
        }
    }
}
