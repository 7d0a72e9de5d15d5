//! Orders to a rank, and events from it. Events are not trusted: the runner decides which become records.

use crate::{AttemptId, Failure, Rank, SavedFile, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// An order from an agent to a rank. The first message to a rank is its [`crate::Assignment`]; orders follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Connect to the ranks at these addresses, listed by rank; the answer to `Event::Listening`.
    Peers(Vec<String>),
    /// Stop training: finish the current step or abort the validation, save, and end with `Event::Finished`.
    Stop,
}

/// An event that a rank reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The address (`host:port`) on which the rank listens for other ranks.
    Listening(String),
    /// The rank is ready: state is loaded and ranks are connected; training begins after `step`.
    Ready {
        /// Number of steps already completed, from the checkpoint.
        step: StepId,
        /// Number of trainable parameters on this rank.
        parameters: u64,
        /// Device of the rank in words, such as `cpu (flex, 1 thread)`.
        device: String,
        /// Number of samples in the training data.
        train_samples: u64,
        /// Number of samples in the validation data.
        valid_samples: u64,
        /// blake3 hash over lengths and contents (of large files: sampled blocks) of the data files.
        data_fingerprint: String,
        /// Notice that some state starts afresh although a user would expect it to be resumed; `None` if
        /// there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        notice: Option<String>,
    },
    /// A step is complete. Sent by every rank; the loss is the same on all.
    Step(StepFigures),
    /// A validation after `step` is complete.
    Validated {
        /// Number of optimizer steps completed.
        step: StepId,
        /// Mean cross-entropy over the validation samples, in nats.
        #[serde(with = "crate::non_finite")]
        loss: f64,
        /// Share of samples (tokens, for a decoder) whose most likely class was right; `None` if a program
        /// does not report it.
        accuracy: Option<f64>,
        /// Seconds of the validation; `None` for a script, and in records of older versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<f64>,
    },
    /// A validation after `step` has made progress.
    Validating {
        /// Number of optimizer steps completed.
        step: StepId,
        /// Number of samples validated so far.
        done: u64,
        /// Number of samples in the whole validation.
        of: u64,
    },
    /// A program reports figures under names of its own.
    Metrics {
        /// Number of optimizer steps completed.
        step: StepId,
        /// Figures with unique names.
        figures: Vec<NamedFigure>,
    },
    /// The rank has a notice for the user. Training continues.
    Notice(String),
    /// This rank's part of the checkpoint is durable under the `.partial` folder.
    Saved {
        /// Number of steps completed in the checkpoint.
        step: StepId,
        /// Path of the `.partial` folder.
        folder: PathBuf,
        /// Files that this rank wrote.
        files: Vec<SavedFile>,
        /// Seconds for which training paused to save.
        stall_seconds: f64,
    },
    /// This rank's part of a checkpoint could not be written.
    SaveFailed {
        /// Number of optimizer steps completed.
        step: StepId,
        /// Reason why the checkpoint could not be written.
        reason: String,
        /// `true` if training is over and the rank retries until the state is saved. Otherwise training
        /// continues.
        #[serde(default)]
        retries: bool,
    },
    /// The rank has completed its assignment and exits with code 0.
    Finished {
        /// Number of optimizer steps completed.
        step: StepId,
        /// Reason why training ended.
        reason: StopReason,
    },
    /// The rank has failed and exits with code 1.
    Failed(Failure),
}

/// A figure that a program reports, with its name, such as `val/f1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedFigure {
    /// Name of the figure.
    pub name: String,
    /// Value of the figure.
    #[serde(with = "crate::non_finite")]
    pub value: f64,
}

/// The figures of one completed step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepFigures {
    /// Number of steps completed, including this one.
    pub step: StepId,
    /// Mean loss over the global batch before the update, in nats.
    #[serde(with = "crate::non_finite")]
    pub loss: f64,
    /// Global gradient norm before clipping; `None` if gradients overflowed under a loss scale and the step
    /// was skipped.
    #[serde(default)]
    pub gradient_norm: Option<f64>,
    /// Learning rate of this step.
    #[serde(with = "crate::non_finite")]
    pub learning_rate: f64,
    /// Share of the time limit that had passed when the step began, 0 to 1, without validations; `None`
    /// without a time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed: Option<f64>,
    /// Gradient noise of the previous step; `None` if whole replicas cannot be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<GradientNoise>,
    /// Number of tokens in the global batch.
    pub tokens: u64,
    /// Time of each phase on this rank.
    pub times: PhaseTimes,
    /// Peak resident memory of this rank so far, in bytes (device memory on a GPU).
    pub memory_bytes: u64,
    /// Bytes that this rank keeps from step to step; the rest is activations, buffers and the process itself.
    #[serde(default)]
    pub held: ResidentBytes,
    /// Bytes that this rank sent to other ranks in this step.
    #[serde(default)]
    pub sent_bytes: u64,
}

impl StepFigures {
    /// Returns `true` if a script reported the figures, which then have neither phases nor memory.
    pub fn is_of_script(&self) -> bool {
        self.times.parts() == 0.0 && self.memory_bytes == 0
    }
}

/// An estimate of gradient noise from one step; only means over many steps are meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradientNoise {
    /// Estimated squared L2 norm of the gradient over all samples; may be negative by chance.
    pub signal: f64,
    /// Sum over the gradient's elements of their variance between samples. Divided by `signal`, it is the
    /// noise scale: the batch size at which half of the gradient is noise (McCandlish et al. 2018).
    pub noise: f64,
}

/// The bytes that one rank keeps from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentBytes {
    /// Bytes of weights.
    pub weights: u64,
    /// Bytes of gradients.
    pub gradients: u64,
    /// Bytes of the optimizer's moments.
    pub optimizer: u64,
}

/// The seconds of one step on one rank, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// Seconds of the whole step.
    pub step: f64,
    /// Seconds of reading samples.
    pub data: f64,
    /// Seconds of forward passes.
    pub forward: f64,
    /// Seconds of backward passes.
    pub backward: f64,
    /// Seconds of exposed communication, which no computation overlaps, within passes and after them.
    pub communication: f64,
    /// Seconds of the pipeline bubble: waiting for other stages.
    #[serde(default)]
    pub bubble: f64,
    /// Seconds of gradient clipping and the optimizer.
    pub optimizer: f64,
}

impl PhaseTimes {
    /// Returns the sum of the phases in seconds: the step time, except for rounding.
    pub fn parts(&self) -> f64 {
        self.data + self.forward + self.backward + self.communication + self.bubble + self.optimizer
    }

    /// Returns all times multiplied by `factor`.
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

/// The reason why a rank finished regularly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// All steps of the assignment were completed.
    Complete,
    /// The time limit was reached.
    Time,
    /// The target value of the metric was reached.
    Target,
    /// An order to stop was received.
    Ordered,
}

/// An event with its attempt, rank and sequence number. The key `(attempt, rank, sequence)` is unique, so
/// that repeated delivery has no effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StampedEvent {
    /// Attempt that the rank belongs to.
    pub attempt: AttemptId,
    /// Rank that reports the event.
    pub rank: Rank,
    /// Number of the event within this rank and attempt, from 0.
    pub sequence: u64,
    /// Time of the event in milliseconds since the Unix epoch by the host's clock; for display only.
    pub at_ms: u64,
    /// The event that the rank reports.
    pub event: Event,
}
