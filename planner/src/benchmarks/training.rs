//! A training as a row describes it, with everything that the row leaves open decided.

use crate::analytic::{
    AttentionKernel, Constants, DeviceThroughput, GpuSpec, Interconnect, MatmulPrecision, MissingInputs,
    PeakMemory, Software, SoftwareStyle, StepConfig, StepInputs, StepTimes, Transformer,
};
use dtrain_recipes::Recompute;

/// A training whose cost can be estimated.
#[derive(Clone, Debug)]
pub struct ResolvedTraining<'a> {
    /// What is trained.
    pub model: Transformer,
    /// Layout and batch.
    pub config: StepConfig,
    /// The engine.
    pub engine: Software,
    /// The part.
    pub gpu: &'static GpuSpec,
    /// Share of its clock that a power limit leaves.
    pub power: f64,
    /// How attention is computed.
    pub kernel: AttentionKernel,
    /// Number format of linear layers.
    pub products: MatmulPrecision,
    /// What joins the devices.
    pub links: Interconnect,
    /// Bytes of memory of a device.
    pub memory: f64,
    /// The constants of the model.
    pub constants: &'a Constants,
    /// What was assumed, for the interval …
    pub unknown: MissingInputs,
    /// … and in words.
    pub assumptions: Vec<String>,
}

/// Share of the memory of a device that a tuned run leaves at most unused by choosing a larger micro-batch.
const FULL: f64 = 0.95;

/// Share of the memory below which a run that may recompute does not.
const ROOMY: f64 = 0.9;

/// Share of the memory that an estimate may take of a run that says nothing of it: it ran, and estimates are that far off.
const UNSURE: f64 = 1.1;

/// The same of engines that compute single modules again, and no more layers than they must: all of them only where little fits.
const BY_MODULE: f64 = 2.0;

/// Samples of a micro-batch beyond which no tuned run goes.
const MOST: u32 = 32;

impl ResolvedTraining<'_> {
    /// What decides its cost.
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

    /// Notes an assumption.
    pub(super) fn assume(&mut self, words: impl Into<String>) {
        self.assumptions.push(words.into());
    }

    /// What is computed again where the row does not say: as little as memory allows. Engines of the style of research do so
    /// whatever they were allowed to.
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

    /// The fastest micro-batch that fits and divides the batch of a replica: published runs are tuned.
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
