//! What a candidate will cost, with its interval and where the numbers come from.

use crate::price::memory::MemoryBreakdown;
use crate::step::traffic::Traffic;
use dtrain_recipes::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// What a candidate will cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// One optimizer step.
    pub step: Seconds,
    /// Eight steps in ten take at least this …
    pub step_low: Seconds,
    /// … and at most this: nine in ten are above the one, nine in ten below the other.
    pub step_high: Seconds,
    /// Where the time of a step goes.
    pub breakdown: TimeBreakdown,
    /// Where the memory of the heaviest rank goes.
    pub memory: MemoryBreakdown,
    /// Peak of the heaviest rank.
    pub memory_peak: Bytes,
    /// What one rank may use.
    pub memory_available: Bytes,
    /// What the rank sends in a step that sends most; nothing in a plan of an older program.
    #[serde(default)]
    pub traffic: Traffic,
    /// Tokens (samples, for a model without a sequence) a second over all ranks.
    pub tokens_per_second: f64,
    /// Optimizer steps, when the stop condition counts them.
    pub steps: Option<u64>,
    /// How much longer the first step takes on a device, which compiles and tunes its kernels in it, as it was measured; `None`
    /// where nothing was, and on CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<Seconds>,
    /// The whole run with its validations and what the first step takes longer, not counting start and checkpoints.
    pub total: Seconds,
    /// Low end of the whole run, where the kernels of the first step are ready.
    pub total_low: Seconds,
    /// High end of the whole run.
    pub total_high: Seconds,
    /// Relative difference below which two candidates cannot be told apart.
    pub resolution: f64,
    /// Where the constants come from, in words.
    pub source: String,
}

/// Seconds of one step on the busiest rank, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeBreakdown {
    /// Forward passes.
    pub forward: f64,
    /// Backward passes, with what is computed again.
    pub backward: f64,
    /// Communication that nothing hides.
    pub communication: f64,
    /// Waiting for other pipeline stages.
    pub bubble: f64,
    /// Clipping and the optimizer.
    pub optimizer: f64,
    /// Reading samples, accumulating gradients.
    pub overhead: f64,
}

impl TimeBreakdown {
    /// The step: the sum of its parts.
    pub fn total(&self) -> f64 {
        self.forward + self.backward + self.communication + self.bubble + self.optimizer + self.overhead
    }

    /// Every part times `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            forward: self.forward * factor,
            backward: self.backward * factor,
            communication: self.communication * factor,
            bubble: self.bubble * factor,
            optimizer: self.optimizer * factor,
            overhead: self.overhead * factor,
        }
    }

    /// The parts with their names, in a fixed order.
    pub fn parts(&self) -> [(&'static str, f64); 6] {
        [
            ("forward", self.forward),
            ("backward", self.backward),
            ("communication", self.communication),
            ("pipeline bubble", self.bubble),
            ("optimizer", self.optimizer),
            ("overhead", self.overhead),
        ]
    }
}

/// Seconds of one step by cause: a [`TimeBreakdown`] with what is computed again, and every communication, by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Causes {
    /// Forward passes.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// What a backward computes again.
    pub recompute: f64,
    /// Sums of gradients over replicas that nothing hides.
    pub gradients: f64,
    /// Gathered weights that nothing hides.
    pub weights: f64,
    /// Products that tensor-parallel ranks complete.
    pub tensor: f64,
    /// Keys and values on their way around a ring.
    pub context: f64,
    /// Tokens on their way to experts and back.
    pub expert: f64,
    /// A tied embedding that is summed over the first and the last stage.
    pub tied: f64,
    /// Losses, counts, flags and gradient norms.
    pub figures: f64,
    /// Waiting for the slowest replica.
    pub replicas: f64,
    /// Waiting for other pipeline stages, and for their messages.
    pub bubble: f64,
    /// Clipping and the optimizer.
    pub optimizer: f64,
    /// Reading samples, accumulating gradients.
    pub overhead: f64,
}

impl Causes {
    /// The step: the sum of its causes.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, seconds)| seconds).sum()
    }

    /// The causes with their names, in a fixed order.
    pub fn parts(&self) -> [(&'static str, f64); 14] {
        [
            ("forward", self.forward),
            ("backward", self.backward),
            ("recompute", self.recompute),
            ("gradient sums", self.gradients),
            ("weight gathers", self.weights),
            ("tensor parallel", self.tensor),
            ("context ring", self.context),
            ("experts", self.expert),
            ("tied embedding", self.tied),
            ("figures", self.figures),
            ("slowest replica", self.replicas),
            ("pipeline bubble", self.bubble),
            ("optimizer", self.optimizer),
            ("overhead", self.overhead),
        ]
    }
}
