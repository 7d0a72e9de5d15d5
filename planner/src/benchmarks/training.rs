//! A training that a row of a table describes, with every open setting resolved.

use crate::analytic::{
    Constants, DeviceThroughput, Interconnect, MatmulPrecision, MissingInputs, PeakMemory, Software,
    StepConfig, StepInputs, StepTimes, Transformer,
};
use crate::engine::{AttentionKernel, SoftwareStyle};
use crate::hardware::GpuSpec;
use dtrain_recipes::Recompute;

/// A training with all settings that its price depends on.
#[derive(Clone, Debug)]
pub struct ResolvedTraining<'a> {
    /// Dimensions of the model.
    pub model: Transformer,
    /// Layout and batch size.
    pub config: StepConfig,
    /// Cost profile of the engine.
    pub engine: Software,
    /// Data sheet of the device.
    pub gpu: &'static GpuSpec,
    /// Share of its usual clock at which the device runs under its power limit.
    pub power: f64,
    /// Implementation of attention.
    pub kernel: AttentionKernel,
    /// Number format of the products in linear layers.
    pub products: MatmulPrecision,
    /// Links between the devices.
    pub links: Interconnect,
    /// Bytes of memory per device.
    pub memory: f64,
    /// Constants of the cost model.
    pub constants: &'a Constants,
    /// Inputs that were assumed, which widen the prediction interval.
    pub unknown: MissingInputs,
    /// True if the vocabulary or the gate of the model is assumed, which widens the prediction interval too.
    pub is_model_assumed: bool,
    /// True if a stated recompute mode is one that the run was allowed, as in tables of profilers.
    pub may_recompute: bool,
    /// Assumptions about open settings, in words.
    pub assumptions: Vec<String>,
}

/// Share of device memory up to which a tuned run increases its micro-batch.
const FULL: f64 = 0.95;

/// Share of device memory below which a run that may recompute does not recompute.
const ROOMY: f64 = 0.9;

/// Share of device memory that the estimate for a published run may reach: the run fitted, and estimates can
/// be this far off.
const UNSURE: f64 = 1.1;

/// Share of device memory that the estimate for a published run may reach if its engine recomputes single
/// modules, and in as few layers as possible.
const BY_MODULE: f64 = 2.0;

/// Upper limit of the micro-batch of tuned runs, in samples.
const MOST: u32 = 32;

impl ResolvedTraining<'_> {
    /// Returns the training as inputs of the cost formulas.
    pub fn case(&self) -> StepInputs<'_> {
        StepInputs {
            model: &self.model,
            config: self.config,
            engine: self.engine,
            device: DeviceThroughput::of(
                self.gpu,
                self.products,
                self.kernel,
                self.model.head,
                self.power,
                self.constants,
            ),
            links: self.links,
            kernel: self.kernel,
            products: self.products,
            constants: self.constants,
        }
    }

    /// Adds an assumption in words.
    pub(super) fn assume(&mut self, words: impl Into<String>) {
        self.assumptions.push(words.into());
    }

    /// Sets a recompute mode that the row does not state to the least that memory allows. Research engines do
    /// so whatever they were allowed.
    pub(super) fn assume_recompute(&mut self) {
        let asked = self.config.arrangement.recompute;
        let may =
            self.engine.style == SoftwareStyle::Research && asked == Recompute::Full && self.may_recompute;
        if !may && !self.unknown.recompute {
            return;
        }
        let share = match self.engine.style {
            SoftwareStyle::Research if may => ROOMY,
            SoftwareStyle::Modern => BY_MODULE,
            _ => UNSURE,
        };
        let room = share * self.memory;
        let fits = |recompute: &Recompute| {
            let mut other = self.clone();
            other.config.arrangement.recompute = *recompute;
            PeakMemory::of(&other.case()).total() < room
        };
        let modes = if may { &[Recompute::None][..] } else { &[Recompute::None, Recompute::Selective] };
        let chosen = modes.iter().copied().find(fits).unwrap_or(Recompute::Full);
        self.config.arrangement.recompute = chosen;
        self.unknown.recompute |= chosen != asked;
    }

    /// Sets the micro-batch to the fastest one that fits and divides the batch of a replica: published runs
    /// are tuned.
    pub(super) fn assume_micro_batch(&mut self) {
        let per_replica = self.config.batch / self.config.degrees().data;
        let tried = |micro: u32| {
            let mut other = self.clone();
            other.config.micro_batch = micro;
            let case = other.case();
            let fits = micro <= 1 || PeakMemory::of(&case).total() < FULL * self.memory;
            (per_replica.is_multiple_of(micro) && fits).then(|| (micro, StepTimes::of(&case).total()))
        };
        let best = (1..=MOST).filter_map(tried).min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((micro, _)) = best {
            self.config.micro_batch = micro;
        }
        self.assume(format!("micro-batch {}, the fastest that fits", self.config.micro_batch));
    }
}
