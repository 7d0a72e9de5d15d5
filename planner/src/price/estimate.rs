//! The estimate of a candidate: predicted time, memory and traffic, with intervals and sources.

use crate::price::memory::MemoryBreakdown;
use crate::step::traffic::Traffic;
use dtrain_recipes::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// Predicted cost of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Time of one optimizer step.
    pub step: Seconds,
    /// Low end of the 80 % interval of the step time: nine steps in ten take longer.
    pub step_low: Seconds,
    /// High end of the 80 % interval of the step time: nine steps in ten take less.
    pub step_high: Seconds,
    /// Time of a step by part.
    pub breakdown: TimeBreakdown,
    /// Memory of the heaviest rank by category.
    pub memory: MemoryBreakdown,
    /// Peak memory of the heaviest rank.
    pub memory_peak: Bytes,
    /// Memory that one rank may use.
    pub memory_available: Bytes,
    /// Bytes sent in a step by the rank that sends most; zero in a plan of an older program.
    #[serde(default)]
    pub traffic: Traffic,
    /// Tokens (samples, for a model without a sequence) per second over all ranks.
    pub tokens_per_second: f64,
    /// Number of optimizer steps, when the stop condition determines it.
    pub steps: Option<u64>,
    /// Measured extra time of the first step on a device, which compiles and tunes its kernels; `None` where
    /// it was not measured, and on CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<Seconds>,
    /// Time of the whole run with validations and the extra time of the first step, without start and
    /// checkpoints.
    pub total: Seconds,
    /// Low end of the time of the whole run, with the kernels of the first step already compiled.
    pub total_low: Seconds,
    /// High end of the time of the whole run.
    pub total_high: Seconds,
    /// Relative difference below which two candidates tie.
    pub resolution: f64,
    /// Source of the speeds, in words.
    pub source: String,
}

/// Seconds of one step on the busiest rank, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeBreakdown {
    /// Forward passes.
    pub forward: f64,
    /// Backward passes, including recompute.
    pub backward: f64,
    /// Exposed communication: the part that does not overlap with computing.
    pub communication: f64,
    /// Pipeline bubble: waiting for other pipeline stages.
    pub bubble: f64,
    /// Gradient clipping and the optimizer.
    pub optimizer: f64,
    /// Reading samples and accumulating gradients.
    pub overhead: f64,
}

impl TimeBreakdown {
    /// Returns the seconds of the step: the sum of its parts.
    pub fn total(&self) -> f64 {
        self.forward + self.backward + self.communication + self.bubble + self.optimizer + self.overhead
    }

    /// Returns every part times `factor`.
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

    /// Returns the parts with their names, in a fixed order.
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

/// Seconds of one step by cause: a [`TimeBreakdown`] with recompute and each kind of communication apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Causes {
    /// Forward passes.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// Recompute in the backward passes.
    pub recompute: f64,
    /// Exposed time of summing gradients over replicas.
    pub gradients: f64,
    /// Exposed time of gathering sharded weights.
    pub weights: f64,
    /// Communication of tensor parallelism.
    pub tensor: f64,
    /// Keys and values sent around the ring of context parallelism.
    pub context: f64,
    /// Tokens sent to experts and back.
    pub expert: f64,
    /// Gradients of a tied embedding, summed over the first and the last stage.
    pub tied: f64,
    /// Exchange of losses, counts, flags and gradient norms.
    pub figures: f64,
    /// Waiting for the slowest replica.
    pub replicas: f64,
    /// Pipeline bubble: waiting for other pipeline stages, and for their messages.
    pub bubble: f64,
    /// Gradient clipping and the optimizer.
    pub optimizer: f64,
    /// Reading samples and accumulating gradients.
    pub overhead: f64,
}

impl Causes {
    /// Returns the seconds of the step: the sum of its causes.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, seconds)| seconds).sum()
    }

    /// Returns the causes with their names, in a fixed order.
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
