//! Batches that a number of devices divides, for searches that no batch of the recipe fits.

use super::DatasheetPlanError;
use crate::analytic::search::{SearchProblem, fastest, to_count};
use crate::engine::{EngineSupport, UnsupportedLayout};
use crate::training::decision::Decision;

/// Returns the unit of a batch that is chosen freely: about 64 samples that `devices` devices divide well.
pub(super) fn batch_unit(devices: u32) -> u64 {
    let odd = devices >> devices.trailing_zeros();
    let room = (64 / odd).max(1);
    let power = 1 << room.ilog2();
    u64::from(odd) * power
}

/// Returns a batch that was chosen freely as a multiple of `devices`, if their number is no power of two.
pub(super) fn divided(batch: Decision<u64>, devices: u32) -> Decision<u64> {
    let devices = u64::from(devices);
    if devices.is_power_of_two() || batch.value.is_multiple_of(devices) {
        return batch;
    }
    let value = (batch.value / devices).max(1) * devices;
    let reason = format!("{}; a multiple of {devices} GPUs", batch.reason);
    Decision { value, low: batch.low.min(value), high: batch.high.max(value), reason }
}

/// Returns the reason why a search space is empty: the batch, the engine, or divisibility.
pub(super) fn no_layout(problem: &SearchProblem, devices: u32) -> DatasheetPlanError {
    if !problem.batch.is_multiple_of(devices) && problem.can_train() {
        let batches = near_batches(problem, devices);
        if !batches.is_empty() {
            let engine = problem.runs_on.as_ref().map_or("an engine", |runs| runs.engine.title());
            return DatasheetPlanError::Batch { engine, devices, batch: problem.batch, batches };
        }
    }
    match problem.runs_on.as_ref().zip(problem.infeasible_reason()) {
        Some((EngineSupport { engine, .. }, UnsupportedLayout { what, instead })) => {
            DatasheetPlanError::Engine { engine: engine.title(), devices, what, instead }
        }
        None => DatasheetPlanError::NoLayout {
            devices,
            batch: problem.batch,
            heads: to_count(problem.model.heads),
        },
    }
}

/// Returns the nearest smaller and larger batch that all devices divide and that have a layout.
fn near_batches(problem: &SearchProblem, devices: u32) -> Vec<u32> {
    let below = problem.batch / devices * devices;
    [below, below.saturating_add(devices)]
        .into_iter()
        .filter(|batch| *batch > 0)
        .filter(|batch| fastest(&SearchProblem { batch: *batch, ..problem.clone() }, f64::INFINITY).is_some())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::batch_unit;

    #[test]
    fn a_free_batch_is_a_multiple_of_the_devices() {
        for (devices, unit) in [(1, 64), (8, 64), (3, 48), (5, 40), (6, 48), (7, 56), (72, 36), (67, 67)] {
            assert_eq!(batch_unit(devices), unit, "{devices}");
        }
    }
}
