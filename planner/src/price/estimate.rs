//! The estimate of a candidate: predicted time, memory and traffic, with intervals and sources.

use crate::price::memory::MemoryBreakdown;
use crate::step::traffic::Traffic;
use dtrain_recipes::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// Predicted cost of a candidate of dtrain's own worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Predicted time of one optimizer step.
    pub step: Seconds,
    /// Low end of the 80 % interval of the step time: nine steps in ten take longer.
    pub step_low: Seconds,
    /// High end of the 80 % interval of the step time: nine steps in ten take less.
    pub step_high: Seconds,
    /// Predicted time of one step by part.
    pub breakdown: TimeBreakdown,
    /// Peak memory of the heaviest rank by category.
    pub memory: MemoryBreakdown,
    /// Total peak memory of the heaviest rank.
    pub memory_peak: Bytes,
    /// Memory that one rank may use.
    pub memory_available: Bytes,
    /// Bytes sent in a step by the rank that sends most; zero in a plan of an older program.
    #[serde(default)]
    pub traffic: Traffic,
    /// Tokens (samples, for a model without a sequence) per second over all ranks.
    pub tokens_per_second: f64,
    /// Number of optimizer steps; `None` where the stop condition does not determine it.
    pub steps: Option<u64>,
    /// Measured extra time of the first step on a device, which compiles and tunes its kernels; `None` where
    /// it was not measured, and on CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<Seconds>,
    /// Time of the whole training with validations and the extra time of the first step, without start and
    /// checkpoints.
    pub total: Seconds,
    /// Low end of the 80 % interval of the time of the whole training, with the kernels of the first step
    /// already compiled.
    pub total_low: Seconds,
    /// High end of the 80 % interval of the time of the whole training.
    pub total_high: Seconds,
    /// Relative difference in step time below which two candidates tie.
    pub resolution: f64,
    /// Source of the speeds from which the time is predicted, in words.
    pub source: String,
}

/// Seconds of one step on the busiest rank, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeBreakdown {
    /// Seconds of the forward passes.
    pub forward: f64,
    /// Seconds of the backward passes, including recompute.
    pub backward: f64,
    /// Seconds of exposed communication, which does not overlap with computing.
    pub communication: f64,
    /// Seconds of the pipeline bubble: waiting for other pipeline stages.
    pub bubble: f64,
    /// Seconds of gradient clipping and the optimizer.
    pub optimizer: f64,
    /// Seconds of reading samples and accumulating gradients.
    pub overhead: f64,
}

impl TimeBreakdown {
    /// Returns the seconds of the step: the sum of its parts.
    pub fn total(&self) -> f64 {
        self.forward + self.backward + self.communication + self.bubble + self.optimizer + self.overhead
    }

    /// Returns the breakdown with every part multiplied by `factor`.
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

    /// Returns the seconds of each part with its name, in a fixed order.
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
    /// Seconds of the forward passes.
    pub forward: f64,
    /// Seconds of the backward passes, without recompute.
    pub backward: f64,
    /// Seconds of recompute in the backward passes.
    pub recompute: f64,
    /// Exposed seconds of summing gradients over replicas.
    pub gradients: f64,
    /// Exposed seconds of gathering sharded weights.
    pub weights: f64,
    /// Exposed seconds of communication for tensor parallelism.
    pub tensor: f64,
    /// Seconds of sending keys and values around the ring of context parallelism.
    pub context: f64,
    /// Seconds of sending tokens to experts and back.
    pub expert: f64,
    /// Seconds of summing the gradients of a tied embedding over the first and the last stage.
    pub tied: f64,
    /// Seconds of exchanging losses, counts, flags and gradient norms.
    pub figures: f64,
    /// Seconds of waiting for the slowest replica.
    pub replicas: f64,
    /// Seconds of the pipeline bubble: waiting for other pipeline stages, and for their messages.
    pub bubble: f64,
    /// Seconds of gradient clipping and the optimizer.
    pub optimizer: f64,
    /// Seconds of reading samples and accumulating gradients.
    pub overhead: f64,
}

impl Causes {
    /// Returns the seconds of the step: the sum of its causes.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, seconds)| seconds).sum()
    }

    /// Returns the seconds of each cause with its name, in a fixed order.
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
