//! Orders to a worker, and events from it. An event is a claim; the runner decides what becomes a fact.

use crate::{AttemptId, Failure, Rank, SavedFile, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the agent tells a rank. The first message of a rank is its [`crate::Assignment`]; these follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Addresses of all ranks, by rank; the answer to `Event::Listening`.
    Peers(Vec<String>),
    /// Finish the current step, or give up the validation, save, and end with `Event::Finished`.
    Stop,
}

/// What a rank says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The mesh listener is bound here (`host:port`).
    Listening(String),
    /// State is loaded and the mesh is up; training begins after `step`.
    Ready {
        /// Steps already completed.
        step: StepId,
        /// Trainable parameters on this rank.
        parameters: u64,
        /// The device in words, such as `cpu (flex, 1 thread)`.
        device: String,
        /// Samples in the training data.
        train_samples: u64,
        /// Samples in the validation data.
        valid_samples: u64,
        /// blake3 over the lengths and contents (for large files: a sample of the contents) of the data files.
        data_fingerprint: String,
        /// What begins otherwise than somebody who resumes might think.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        notice: Option<String>,
    },
    /// A step is complete. Sent by every rank; the loss is the same on all.
    Step(StepFigures),
    /// A validation pass after `step`.
    Validated {
        /// Steps completed.
        step: StepId,
        /// Mean cross-entropy in nats.
        #[serde(with = "crate::non_finite")]
        loss: f64,
        /// Share of samples (tokens, for a decoder) whose most likely class was right; `None` where a program does not tell it.
        accuracy: Option<f64>,
        /// Seconds that it took; `None` of a script, and in the record of an older program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<f64>,
    },
    /// A validation after `step` goes on.
    Validating {
        /// Steps completed.
        step: StepId,
        /// Samples that it has used.
        done: u64,
        /// Samples that it will use.
        of: u64,
    },
    /// Figures that a program reports under names of its own.
    Metrics {
        /// Steps completed.
        step: StepId,
        /// Each with its name; none twice.
        figures: Vec<NamedFigure>,
    },
    /// Something that a person should know. Training goes on.
    Notice(String),
    /// This rank's part of the checkpoint is durable under the `.partial` folder.
    Saved {
        /// Steps completed in it.
        step: StepId,
        /// The partial folder.
        folder: PathBuf,
        /// The files this rank wrote.
        files: Vec<SavedFile>,
        /// Seconds training stood still for it.
        stall_seconds: f64,
    },
    /// This rank's part of a checkpoint could not be written.
    SaveFailed {
        /// Steps completed.
        step: StepId,
        /// What went wrong.
        reason: String,
        /// Training is over: the rank keeps the state and tries again until it is saved. Otherwise training continues.
        #[serde(default)]
        retries: bool,
    },
    /// The rank did all it was told and exits with 0.
    Finished {
        /// Steps completed.
        step: StepId,
        /// Why it stopped.
        reason: StopReason,
    },
    /// The rank cannot go on and exits with 1.
    Failed(Failure),
}

/// A figure with a name, such as `val/f1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedFigure {
    /// Its name.
    pub name: String,
    /// Its value.
    #[serde(with = "crate::non_finite")]
    pub value: f64,
}

/// Figures of one completed step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepFigures {
    /// Steps completed, this one included.
    pub step: StepId,
    /// Mean loss over the global batch, in nats.
    #[serde(with = "crate::non_finite")]
    pub loss: f64,
    /// Global gradient norm before clipping; none when gradients overflowed under a loss scale and nothing moved.
    #[serde(default)]
    pub gradient_norm: Option<f64>,
    /// Learning rate that was applied.
    #[serde(with = "crate::non_finite")]
    pub learning_rate: f64,
    /// Share of the training within the time limit that had passed when the step began, 0 to 1; validations do not count. None
    /// where time does not end the training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed: Option<f64>,
    /// What the gradients of the step before this one tell, where whole replicas can be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<GradientNoise>,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// Where the time of this rank went.
    pub times: PhaseTimes,
    /// Largest resident memory of this rank so far, in bytes (device memory on a GPU).
    pub memory_bytes: u64,
    /// What of it is held from step to step; the rest is activations, buffers and the process itself.
    #[serde(default)]
    pub held: ResidentBytes,
    /// Bytes this rank sent to others in this step.
    #[serde(default)]
    pub sent_bytes: u64,
}

impl StepFigures {
    /// Whether a script reports them: it tells neither phases nor memory.
    pub fn is_of_script(&self) -> bool {
        self.times.parts() == 0.0 && self.memory_bytes == 0
    }
}

/// How much of a gradient is chance, from one step: means over many steps tell something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradientNoise {
    /// Square of the L2 norm that the gradient would have over all samples; by chance sometimes below 0.
    pub signal: f64,
    /// Sum of the variances of its elements from sample to sample. Divided by `signal` it is the noise scale: a batch of
    /// that many samples is half chance (McCandlish et al. 2018).
    pub noise: f64,
}

/// Bytes of what one rank holds from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentBytes {
    /// Weights.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// Moments of the optimizer.
    pub optimizer: u64,
}

/// Seconds of one step on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// The whole step.
    pub step: f64,
    /// Reading samples.
    pub data: f64,
    /// Forward passes.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// Communication that nothing hid, inside passes and after them.
    pub communication: f64,
    /// Waiting for other stages of the pipeline.
    #[serde(default)]
    pub bubble: f64,
    /// Clipping and the optimizer.
    pub optimizer: f64,
}

impl PhaseTimes {
    /// The sum of the phases: the step, but for rounding.
    pub fn parts(&self) -> f64 {
        self.data + self.forward + self.backward + self.communication + self.bubble + self.optimizer
    }

    /// All of it times `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            step: self.step * factor,
            data: self.data * factor,
            forward: self.forward * factor,
            backward: self.backward * factor,
            communication: self.communication * factor,
            bubble: self.bubble * factor,
            optimizer: self.optimizer * factor,
        }
    }
}

/// Why a rank stopped as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// All steps were done.
    Complete,
    /// The time was up.
    Time,
    /// The target was reached.
    Target,
    /// Somebody asked for it.
    Ordered,
}

/// An event with who said it, in the order it was said. The key `(attempt, rank, sequence)` is unique, so
/// that a repeated delivery changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StampedEvent {
    /// The attempt.
    pub attempt: AttemptId,
    /// The rank.
    pub rank: Rank,
    /// Counts the events of this rank in this attempt from 0.
    pub sequence: u64,
    /// Milliseconds since the Unix epoch by the host's clock; for display only.
    pub at_ms: u64,
    /// What was said.
    pub event: Event,
}
