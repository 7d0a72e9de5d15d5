//! A training described by a row, with every open setting resolved.

use crate::analytic::{
    Constants, DeviceThroughput, Interconnect, MatmulPrecision, MissingInputs, PeakMemory, Software,
    StepConfig, StepInputs, StepTimes, Transformer,
};
use crate::engine::{AttentionKernel, SoftwareStyle};
use crate::hardware::GpuSpec;
use dtrain_recipes::Recompute;

/// A training that can be priced.
#[derive(Clone, Debug)]
pub struct ResolvedTraining<'a> {
    /// Dimensions of the model.
    pub model: Transformer,
    /// Layout and batch.
    pub config: StepConfig,
    /// Cost profile of the engine.
    pub engine: Software,
    /// Data sheet of the device.
    pub gpu: &'static GpuSpec,
    /// Share of the clock that a power limit leaves.
    pub power: f64,
    /// Attention kernel.
    pub kernel: AttentionKernel,
    /// Number format of linear layers.
    pub products: MatmulPrecision,
    /// Links between the devices.
    pub links: Interconnect,
    /// Bytes of memory per device.
    pub memory: f64,
    /// Constants of the cost model.
    pub constants: &'a Constants,
    /// Assumed inputs, for the interval.
    pub unknown: MissingInputs,
    /// Assumptions in words.
    pub assumptions: Vec<String>,
}

/// Share of device memory up to which a tuned run increases its micro-batch.
const FULL: f64 = 0.95;

/// Share of device memory below which a run that may recompute does not.
const ROOMY: f64 = 0.9;

/// Share of memory that an estimate may reach for a published run: the run fitted, and estimates can be this
/// far off.
const UNSURE: f64 = 1.1;

/// Like `UNSURE`, for engines that recompute single modules and as few layers as possible.
const BY_MODULE: f64 = 2.0;

/// Upper limit on the micro-batch of tuned runs.
const MOST: u32 = 32;

impl ResolvedTraining<'_> {
    /// Returns the inputs of the cost formulas.
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

    /// Adds an assumption.
    pub(super) fn assume(&mut self, words: impl Into<String>) {
        self.assumptions.push(words.into());
    }

    /// Sets an unstated recompute mode: the least that memory allows. Research engines do so whatever they
    /// were allowed.
    pub(super) fn assume_recompute(&mut self) {
        let asked = self.config.arrangement.recompute;
        let may = self.engine.style == SoftwareStyle::Research && asked == Recompute::Full;
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

    /// Sets the fastest micro-batch that fits and divides the replica's batch: published runs are tuned.
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
