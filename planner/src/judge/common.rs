//! What all candidates of one way have in common: counted once, whatever their micro-batches.

use super::{Judge, Verdict, weight_cuts};
use crate::estimate::Breakdown;
use crate::memory::{self, Held, Memory};
use crate::parameters::Parts;
use crate::space::Way;
use crate::timing::{self, Split, Timing};
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
    memory: memory::Stages,
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
        Verdict::Fits(self.time(micro, false).total())
    }

    /// As [`Judge::memory`].
    pub(super) fn memory(&self, micro: u32) -> Memory {
        self.memory.peak(self.split(micro))
    }

    /// Where the time of a step goes; pipelines are walked action by action, or taken in closed form.
    pub(super) fn time(&self, micro: u32, walked: bool) -> Breakdown {
        let (micro, micro_batches) = self.split(micro);
        let cost = self.judge.micro_cost(self.way, micro);
        self.timing.get_or_init(|| self.stages()).breakdown(&Split { micro, micro_batches, cost }, walked)
    }

    fn stages(&self) -> timing::Stages<'j> {
        timing::Stages::of(Timing {
            model: self.judge.case.model,
            parts: self.parts,
            optimizer: self.judge.case.optimizer.kind,
            arrangement: &self.way.arrangement,
            speeds: &self.judge.speeds[self.way.pool as usize],
            factors: self.judge.case.factors,
        })
    }

    /// Samples of a forward pass, and forward passes of a step.
    fn split(&self, micro: u32) -> (u32, u32) {
        let micro = self.micros[micro as usize].get();
        (micro, u32::try_from(self.samples / u64::from(micro)).unwrap_or(u32::MAX))
    }
}
