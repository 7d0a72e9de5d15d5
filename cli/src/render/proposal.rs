//! Text about the proposed values of a study's trial.

use super::number::plain;
use dtrain_planner::tune::ProposalSource;

/// Describes how a study came to propose a trial's values.
pub(crate) fn proposal_reason(source: &ProposalSource) -> String {
    match source {
        ProposalSource::Given => "given".to_owned(),
        ProposalSource::Grid => "grid".to_owned(),
        ProposalSource::Random => "random".to_owned(),
        ProposalSource::Sobol => "space-filling".to_owned(),
        ProposalSource::Model { improvement } => format!("expected improvement {}", plain(*improvement)),
        ProposalSource::Tpe { .. } => "like the best trials".to_owned(),
        ProposalSource::CmaEs { .. } => "CMA-ES".to_owned(),
        ProposalSource::Swarm { particle } => format!("particle {}", particle + 1),
        ProposalSource::Mutated { parent } => format!("trial {} with one change", parent + 1),
    }
}
