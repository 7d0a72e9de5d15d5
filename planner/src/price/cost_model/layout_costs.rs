//! What all candidates of one option have in common: counted once, whatever their micro-batches.

use super::{CostModel, Feasibility, weight_cuts};
use crate::choice::pareto_front::CandidateCost;
use crate::layout::parameters::ModelParameters;
use crate::layout::space::LayoutOption;
use crate::price::estimate::{Causes, TimeBreakdown};
use crate::price::memory::{self, LargestTensor, MemoryBreakdown, MemoryInputs};
use crate::price::timing::{self, BatchCost, TimingInputs};
use crate::step::timeline::StepProfile;
use dtrain_recipes::Bytes;
use std::cell::OnceCell;
use std::num::NonZeroU32;

/// The candidates of one option.
pub(super) struct LayoutCosts<'j> {
    cost_model: &'j CostModel<'j>,
    option: &'j LayoutOption,
    parts: &'j ModelParameters,
    /// Micro-batches, ascending.
    micros: &'j [NonZeroU32],
    /// Samples of a step of the reader that does most.
    samples: u64,
    available: Bytes,
    largest: Option<Bytes>,
    memory: memory::PipelineMemory<'j>,
    /// Not needed where nothing fits.
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

    /// As [`CostModel::feasibility`].
    pub(super) fn feasibility(&self, micro: u32) -> Feasibility {
        let needed = self.memory(micro).total();
        if needed > self.available {
            return Feasibility::TooMuch(Bytes(needed.0 - self.available.0));
        }
        if let Some((tensor, most)) = self.oversized_tensor(micro) {
            return Feasibility::TooMuch(Bytes(tensor.bytes.0 - most.0));
        }
        Feasibility::Fits(self.cost_of(needed, self.time(micro, false).total()))
    }

    /// As [`CostModel::cost`].
    pub(super) fn cost(&self, micro: u32) -> CandidateCost {
        self.cost_of(self.memory(micro).total(), self.time(micro, true).total())
    }

    fn cost_of(&self, needed: Bytes, step_seconds: f64) -> CandidateCost {
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
        let full = needed.0 as f64 / self.available.0.max(1) as f64;
        CandidateCost::of(step_seconds, full, self.cost_model.devices(self.option))
    }

    /// As [`CostModel::memory`].
    pub(super) fn memory(&self, micro: u32) -> MemoryBreakdown {
        self.memory.peak(self.split(micro))
    }

    /// A tensor that is larger than the device gives to one, and that size.
    pub(super) fn oversized_tensor(&self, micro: u32) -> Option<(LargestTensor, Bytes)> {
        let most = self.largest?;
        let tensor = self.memory.largest_tensor(self.split(micro).0);
        (tensor.bytes > most).then_some((tensor, most))
    }

    /// Where the time of a step goes; pipelines are walked action by action, or taken in closed form.
    pub(super) fn time(&self, micro: u32, walked: bool) -> TimeBreakdown {
        self.timing().breakdown(&self.costs(micro), walked)
    }

    /// As [`CostModel::causes`].
    pub(super) fn causes(&self, micro: u32) -> Causes {
        self.timing().causes(&self.costs(micro))
    }

    /// As [`CostModel::step_profile`].
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

    /// Samples of a forward pass, and forward passes of a step.
    fn split(&self, micro: u32) -> (u32, u32) {
        let micro = self.micros[micro as usize].get();
        (micro, u32::try_from(self.samples / u64::from(micro)).unwrap_or(u32::MAX))
    }
}
