//! A lower bound on the memory of all layouts of one rank placement, for the branch-and-bound search.

use super::{LayerMemory, StageLoad, StagePartition, StepConfig, StepInputs, process, stages, state};
use dtrain_protocol::Arrangement;
use dtrain_recipes::ZeroStage;

/// Bytes of state and gathered weights on the heaviest stages, which do not depend on the micro-batch.
pub(in crate::analytic) struct MemoryLowerBound {
    division: StagePartition,
    /// Bytes on each of the heaviest stages, for each sharding.
    states: Vec<[f64; 4]>,
}

impl MemoryLowerBound {
    /// Computes the bound for the stage partition `division` and the shardings `shards`.
    pub(in crate::analytic) fn of(
        case: &StepInputs<'_>,
        shards: &[(ZeroStage, u32)],
        division: StagePartition,
    ) -> Self {
        let of = |(zero, shard): &(ZeroStage, u32)| {
            let arrangement = Arrangement { zero: *zero, shard: *shard, ..case.config.arrangement };
            let case = StepInputs { config: StepConfig { arrangement, ..case.config }, ..*case };
            let bytes = |stage: StageLoad| {
                let held = state(&case, stage);
                // Gradients that are freed need not stand beside activations.
                let freed = if case.engine.profile.frees_gradients { held.gradients } else { 0.0 };
                held.states + held.gathered - freed
            };
            stages(&case, division).map(|stage| stage.map_or(0.0, bytes))
        };
        Self { division, states: shards.iter().map(of).collect() }
    }

    /// Returns a lower bound on the bytes of the heaviest stage for the micro-batch of `case`, under the best
    /// sharding.
    pub(in crate::analytic) fn bytes(&self, case: &StepInputs<'_>, shared: &LayerMemory) -> f64 {
        let alive = stages(case, self.division)
            .map(|stage| stage.map_or(0.0, |stage| shared.alive(case, stage).iter().sum::<f64>()));
        let heaviest = |states: &[f64; 4]| {
            states.iter().zip(&alive).map(|(state, alive)| state + alive).fold(0.0, f64::max)
        };
        let least = self.states.iter().map(heaviest).fold(f64::INFINITY, f64::min);
        least * case.fragmentation() + process(case)
    }
}
