//! Costs shared by all candidates of one layout option, computed once for all of its micro-batch sizes.

use super::{CostModel, weight_cuts};
use crate::layout::parameters::ModelParameters;
use crate::layout::space::LayoutOption;
use crate::price::candidate_cost::CandidateCost;
use crate::price::estimate::{Causes, TimeBreakdown};
use crate::price::memory::{self, MemoryBreakdown, MemoryInputs};
use crate::price::step_profile::StepProfile;
use crate::price::timing::{self, BatchCost, TimingInputs};
use dtrain_recipes::Bytes;
use std::cell::OnceCell;
use std::num::NonZeroU32;

/// Costs of the candidates of one layout option, which differ only in their micro-batch size.
pub(super) struct LayoutCosts<'j> {
    cost_model: &'j CostModel<'j>,
    option: &'j LayoutOption,
    parts: &'j ModelParameters,
    /// Possible micro-batch sizes of the option, in ascending order.
    micros: &'j [NonZeroU32],
    /// Samples per step of the reader with the largest share.
    samples: u64,
    pub(super) available: Bytes,
    pub(super) largest: Option<Bytes>,
    pub(super) memory: memory::PipelineMemory<'j>,
    /// Time of the pipeline stages; computed only if a candidate fits in memory.
    timing: OnceCell<timing::PipelineTiming<'j>>,
}

impl<'j> LayoutCosts<'j> {
    pub(super) fn of(cost_model: &'j CostModel<'_>, option: &'j LayoutOption) -> Self {
        let parts = &cost_model.parts[&weight_cuts(&option.arrangement.layout)];
        let held = MemoryInputs {
            model: cost_model.case.model,
            parts,
            optimizer: cost_model.case.optimizer,
            arrangement: option.arrangement,
            baseline: cost_model.speeds[option.pool as usize].baseline,
        };
        Self {
            cost_model,
            option,
            parts,
            micros: cost_model.space.micros(option),
            samples: cost_model.space.samples(option),
            available: cost_model.available(option),
            largest: cost_model.largest_tensor(option),
            memory: memory::PipelineMemory::of(&held),
            timing: OnceCell::new(),
        }
    }

    /// Returns the cost of the candidate with micro-batch index `micro`, like [`CostModel::cost`].
    pub(super) fn cost(&self, micro: u32) -> CandidateCost {
        self.cost_of(self.memory(micro).total(), self.time(micro, true).total())
    }

    pub(super) fn cost_of(&self, needed: Bytes, step_seconds: f64) -> CandidateCost {
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
        let full = needed.0 as f64 / self.available.0.max(1) as f64;
        CandidateCost::of(step_seconds, full, self.cost_model.devices(self.option))
    }

    /// Returns the memory of the candidate with micro-batch index `micro`, like [`CostModel::memory`].
    pub(super) fn memory(&self, micro: u32) -> MemoryBreakdown {
        self.memory.peak(self.split(micro))
    }

    /// Returns the time of a step by part, for micro-batch index `micro`; pipelines are simulated action by
    /// action if `walked`, otherwise priced in closed form.
    pub(super) fn time(&self, micro: u32, walked: bool) -> TimeBreakdown {
        self.timing().breakdown(&self.costs(micro), walked)
    }

    /// Returns the time of a step by cause, for micro-batch index `micro`, like [`CostModel::causes`].
    pub(super) fn causes(&self, micro: u32) -> Causes {
        self.timing().causes(&self.costs(micro))
    }

    /// Returns the profile of a step, for micro-batch index `micro`, like [`CostModel::step_profile`].
    pub(super) fn step_profile(&self, micro: u32) -> Option<StepProfile> {
        let timeline = self.timing().timeline(&self.costs(micro))?;
        Some(StepProfile {
            memory: self.memory.each(self.split(micro)),
            timeline,
            causes: self.causes(micro),
        })
    }

    fn timing(&self) -> &timing::PipelineTiming<'j> {
        self.timing.get_or_init(|| {
            timing::PipelineTiming::of(TimingInputs {
                model: self.cost_model.case.model,
                parts: self.parts,
                optimizer: self.cost_model.case.optimizer.kind,
                arrangement: &self.option.arrangement,
                speeds: &self.cost_model.speeds[self.option.pool as usize],
                factors: self.cost_model.case.factors,
            })
        })
    }

    fn costs(&self, micro: u32) -> BatchCost {
        let (micro, micro_batches) = self.split(micro);
        BatchCost { micro, micro_batches, cost: self.cost_model.micro_cost(self.option, micro) }
    }

    /// Returns the samples of a forward pass and the number of forward passes in a step, for micro-batch
    /// index `micro`.
    pub(super) fn split(&self, micro: u32) -> (u32, u32) {
        let micro = self.micros[micro as usize].get();
        (micro, u32::try_from(self.samples / u64::from(micro)).unwrap_or(u32::MAX))
    }
}
