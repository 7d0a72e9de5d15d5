//! Profile of one training step of a plan.

use crate::hardware::HostGroup;
use crate::layout::candidate::Candidate;
use crate::layout::space::{CandidateId, CandidateSpace};
use crate::planning::plan::Plan;
use crate::price::cost_model::CostModel;
use crate::price::step_profile::StepProfile;
use crate::rates::cost_inputs::CostInputs;
use dtrain_protocol::Rates;

/// Returns the profile of one step of a plan's candidate, from the `rates` that the plan was made with;
/// `None` when the schedule deadlocks, which that of no planned candidate does.
pub fn step_profile(plan: &Plan, candidate: &Candidate, rates: Option<&Rates>) -> Option<StepProfile> {
    profile(plan, candidate, rates, None)
}

/// Returns the profile of one step of the choice of a plan for `group`, hosts that are not at hand; `None` as
/// in [`step_profile`].
pub fn step_profile_elsewhere(plan: &Plan, group: HostGroup) -> Option<StepProfile> {
    profile(plan, &plan.best().candidate, None, Some(group))
}

fn profile(
    plan: &Plan,
    candidate: &Candidate,
    rates: Option<&Rates>,
    group: Option<HostGroup>,
) -> Option<StepProfile> {
    let space = CandidateSpace::single(candidate)?;
    let case = CostInputs {
        model: &plan.recipe.model,
        optimizer: &plan.recipe.train.optimizer,
        host: &plan.host,
        group,
        engine: None,
        rates,
        factors: plan.factors,
    };
    CostModel::new(case, &space).step_profile(CandidateId { option: 0, micro: 0 })
}

#[cfg(test)]
mod tests;
