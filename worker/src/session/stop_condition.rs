//! Stop conditions of a training: the number of steps, the time limit, a metric that reaches its target
//! (early stopping), or an order.

use super::validate::{ValidationHooks, ValidationId, ValidationOutcome, validate};
use crate::data::SampleSource;
use crate::parallel::StepTotals;
use crate::train_step::Replica;
use dtrain_protocol::{Failure, MetricTarget, RunUntil, StepId, StopReason};
use dtrain_recipes::Metric;

/// Returns `true` if training is complete after `step`, because `until` allows no further step.
pub(super) fn is_complete(until: &RunUntil, step: StepId) -> bool {
    until.steps.is_some_and(|last| step >= last)
}

/// Returns the reason to stop training after `step`, if there is one. `totals` are those of the step, and
/// `reason` is the reason that held before it.
pub(super) fn reason_after_step(
    until: &RunUntil,
    step: StepId,
    totals: &StepTotals,
    reason: Option<StopReason>,
) -> Option<StopReason> {
    if is_complete(until, step) {
        Some(StopReason::Complete)
    } else if totals.ordered || reason == Some(StopReason::Ordered) {
        Some(StopReason::Ordered)
    } else {
        reason.or((totals.elapsed >= 1.0).then_some(StopReason::Time))
    }
}

/// Validates, and returns the reason to stop training after that: `reason` if there is one, otherwise a
/// target that is reached or a stop that was ordered meanwhile.
pub(super) fn reason_after_validation(
    replica: &mut Replica<'_>,
    valid: &dyn SampleSource,
    which: ValidationId,
    mut watching: ValidationHooks<'_>,
    reason: Option<StopReason>,
) -> Result<Option<StopReason>, Failure> {
    let target = replica.until.target.clone();
    Ok(match validate(replica, valid, which, &mut watching)? {
        ValidationOutcome::Figures(totals) => {
            let is_reached = target.is_some_and(|target| reaches_target(&target, &totals));
            reason.or(is_reached.then_some(StopReason::Target))
        }
        ValidationOutcome::Nothing => reason,
        ValidationOutcome::Stopped => Some(StopReason::Ordered),
    })
}

/// Returns `true` if the totals of a validation reach the target.
fn reaches_target(target: &MetricTarget, totals: &StepTotals) -> bool {
    target.is_reached(Metric::ValidLoss.name(), totals.loss())
        || target.is_reached(Metric::ValidAccuracy.name(), totals.accuracy())
}
