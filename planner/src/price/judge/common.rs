//! What all candidates of one way have in common: counted once, whatever their micro-batches.

use super::{Judge, Verdict, weight_cuts};
use crate::choice::front::Cost;
use crate::layout::parameters::Parts;
use crate::layout::space::Way;
use crate::price::estimate::{Breakdown, Causes};
use crate::price::memory::{self, Held, Largest, Memory};
use crate::price::timing::{self, Split, Timing};
use crate::step::picture::Picture;
use dtrain_recipes::Bytes;
use std::cell::OnceCell;
use std::num::NonZeroU32;

/// The candidates of one way.
pub(super) struct Common<'j> {
    judge: &'j Judge<'j>,
    way: &'j Way,
    parts: &'j Parts,
    /// Micro-batches, ascending.
    micros: &'j [NonZeroU32],
    /// Samples of a step of the reader that does most.
    samples: u64,
    available: Bytes,
    largest: Option<Bytes>,
    memory: memory::Stages<'j>,
    /// Not needed where nothing fits.
    timing: OnceCell<timing::Stages<'j>>,
}

impl<'j> Common<'j> {
    pub(super) fn of(judge: &'j Judge<'_>, way: &'j Way) -> Self {
        let parts = &judge.parts[&weight_cuts(&way.arrangement.layout)];
        let held = Held {
            model: judge.case.model,
            parts,
            optimizer: judge.case.optimizer,
            arrangement: way.arrangement,
            baseline: judge.speeds[way.pool as usize].baseline,
        };
        Self {
            judge,
            way,
            parts,
            micros: judge.space.micros(way),
            samples: judge.space.samples(way),
            available: judge.available(way),
            largest: judge.largest_tensor(way),
            memory: memory::Stages::of(&held),
            timing: OnceCell::new(),
        }
    }

    /// As [`Judge::verdict`].
    pub(super) fn verdict(&self, micro: u32) -> Verdict {
        let needed = self.memory(micro).total();
        if needed > self.available {
            return Verdict::TooMuch(Bytes(needed.0 - self.available.0));
        }
        if let Some((tensor, most)) = self.too_large(micro) {
            return Verdict::TooMuch(Bytes(tensor.bytes.0 - most.0));
        }
        Verdict::Fits(self.cost_of(needed, self.time(micro, false).total()))
    }

    /// As [`Judge::cost`].
    pub(super) fn cost(&self, micro: u32) -> Cost {
        self.cost_of(self.memory(micro).total(), self.time(micro, true).total())
    }

    fn cost_of(&self, needed: Bytes, step_seconds: f64) -> Cost {
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
        let full = needed.0 as f64 / self.available.0.max(1) as f64;
        Cost::of(step_seconds, full, self.judge.devices(self.way))
    }

    /// As [`Judge::memory`].
    pub(super) fn memory(&self, micro: u32) -> Memory {
        self.memory.peak(self.split(micro))
    }

    /// A tensor that is larger than the device gives to one, and that size.
    pub(super) fn too_large(&self, micro: u32) -> Option<(Largest, Bytes)> {
        let most = self.largest?;
        let tensor = self.memory.largest_tensor(self.split(micro).0);
        (tensor.bytes > most).then_some((tensor, most))
    }

    /// Where the time of a step goes; pipelines are walked action by action, or taken in closed form.
    pub(super) fn time(&self, micro: u32, walked: bool) -> Breakdown {
        self.timing().breakdown(&self.costs(micro), walked)
    }

    /// As [`Judge::causes`].
    pub(super) fn causes(&self, micro: u32) -> Causes {
        self.timing().causes(&self.costs(micro))
    }

    /// As [`Judge::picture`].
    pub(super) fn picture(&self, micro: u32) -> Option<Picture> {
        let timeline = self.timing().timeline(&self.costs(micro))?;
        Some(Picture { memory: self.memory.each(self.split(micro)), timeline, causes: self.causes(micro) })
    }

    fn timing(&self) -> &timing::Stages<'j> {
        self.timing.get_or_init(|| {
            timing::Stages::of(Timing {
                model: self.judge.case.model,
                parts: self.parts,
                optimizer: self.judge.case.optimizer.kind,
                arrangement: &self.way.arrangement,
                speeds: &self.judge.speeds[self.way.pool as usize],
                factors: self.judge.case.factors,
            })
        })
    }

    fn costs(&self, micro: u32) -> Split {
        let (micro, micro_batches) = self.split(micro);
        Split { micro, micro_batches, cost: self.judge.micro_cost(self.way, micro) }
    }

    /// Samples of a forward pass, and forward passes of a step.
    fn split(&self, micro: u32) -> (u32, u32) {
        let micro = self.micros[micro as usize].get();
        (micro, u32::try_from(self.samples / u64::from(micro)).unwrap_or(u32::MAX))
    }
}
