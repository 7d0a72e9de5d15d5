//! Assignments: everything that a rank must know for one attempt.

use crate::{Action, Arrangement, AttemptId, DeviceKind, Placement, Rank, StepId, TrialId};
use dtrain_recipes::{
    AttentionImplementation, Data, Framework, Goal, Metric, Mlp, MlpActivation, Model, Optimizer, Schedule,
    TrainingEngine,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

/// The assignment of one rank: everything that it must know for one attempt. No choice is left to the rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Id of the trial.
    pub trial: TrialId,
    /// Number of the attempt, which is part of every event and every checkpoint.
    pub attempt: AttemptId,
    /// Number of this rank among all ranks of the attempt.
    pub rank: Rank,
    /// Arrangement of the work of a step among all ranks.
    pub arrangement: Arrangement,
    /// Model to train.
    pub model: Model,
    /// Ranges of blocks that this rank holds, in model order: one, or several in an interleaved pipeline.
    pub chunks: Vec<Range<u32>>,
    /// Program that trains the model, unless it is dtrain's own worker or the model is a foreign command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineProcess>,
    /// Training and validation data; `None` for a foreign command, which has its own.
    pub data: Option<Data>,
    /// Folder that relative data paths start from, and in which a foreign command runs.
    pub data_root: PathBuf,
    /// Digest of the recipe's folder that hosts received: each uses its copy as `data_root`. `None` if
    /// `data_root` is a folder of every host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Optimizer, batch sizes and learning rate.
    pub training: Hyperparameters,
    /// Conditions that end the attempt.
    pub until: RunUntil,
    /// Actions of this rank in each optimizer step, in order.
    pub step: Vec<Action>,
    /// Host and device of this rank.
    pub placement: Placement,
    /// Connection to the other ranks.
    pub link: RankTransport,
    /// Timeouts of waits for other ranks.
    pub waits: WaitLimits,
    /// Number of steps between validations; one also follows the last step.
    pub validate_every: u64,
    /// Maximum number of samples per validation.
    pub validate_samples: u64,
    /// Number of steps between checkpoints; one also follows the last step.
    pub save_every: u64,
    /// Folder of this trial's checkpoints.
    pub checkpoints: PathBuf,
    /// Checkpoint to resume from; `None` for a fresh start.
    pub resume: Option<ResumePoint>,
}

impl Assignment {
    /// Returns an example for tests: the assignment of the only rank of an attempt, which trains a perceptron
    /// without data.
    pub fn example() -> Self {
        Self {
            trial: TrialId("01TEST".into()),
            attempt: AttemptId(1),
            rank: Rank(0),
            arrangement: Arrangement::SINGLE,
            model: Model::Mlp(Mlp {
                inputs: 4,
                hidden: vec![8],
                classes: 2,
                activation: MlpActivation::Relu,
            }),
            chunks: std::iter::once(0..1).collect(),
            engine: None,
            data: None,
            data_root: PathBuf::new(),
            workdir: None,
            training: Hyperparameters::plain(),
            until: RunUntil::default(),
            step: Vec::new(),
            placement: Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads: 1 },
            link: RankTransport::Alone,
            waits: WaitLimits::for_steps_of(None),
            validate_every: 1,
            validate_samples: 1,
            save_every: 1,
            checkpoints: PathBuf::new(),
            resume: None,
        }
    }
}

impl Assignment {
    /// Returns the framework whose launcher's variables the rank expects, if it runs a foreign program;
    /// `None` for dtrain's own worker.
    pub fn framework(&self) -> Option<Framework> {
        match &self.model {
            Model::Command(command) => Some(command.framework),
            Model::Decoder(_) | Model::Mlp(_) | Model::Cnn(_) | Model::Custom(_) => {
                self.engine.as_ref().map(|_| Framework::Pytorch)
            }
        }
    }
}

/// The process of a training engine, which trains in place of dtrain's worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineProcess {
    /// Engine to run.
    pub engine: TrainingEngine,
    /// Python interpreter on the host, or `None` for `python3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Arguments of the interpreter: the module of the engine and its options.
    pub arguments: Vec<String>,
    /// Names and contents of the configuration files that the engine imports.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Number of newest checkpoints that the engine keeps.
    pub keep: u32,
    /// Step of the newest checkpoint that was saved before this attempt; 0 if none was. A start without any
    /// checkpoint is refused then.
    #[serde(default)]
    pub saved_step: u64,
}

/// The hyperparameters of a training, all with fixed values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hyperparameters {
    /// Global batch: samples per optimizer step over all ranks.
    pub batch: u64,
    /// Range of samples that this rank reads from each step's batch: `micro_batch · micro_batches` of them.
    pub share: Range<u64>,
    /// Samples per forward pass on this rank.
    pub micro_batch: u32,
    /// Number of micro-batches per step on this rank.
    pub micro_batches: u32,
    /// Optimizer, with its constants.
    pub optimizer: Optimizer,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Length of the linear learning-rate warm-up in steps.
    pub warmup_steps: u64,
    /// Length of the learning-rate schedule in steps; with a time limit, the steps expected within it.
    pub schedule_steps: u64,
    /// Learning-rate decay after warm-up.
    pub schedule: Schedule,
    /// Final learning rate as a fraction of the peak.
    pub final_fraction: f64,
    /// Gradient clipping: the largest global gradient norm; `None` does not clip.
    pub clip: Option<f64>,
    /// Weight of the z-loss that training adds to the loss of a decoder; 0 adds nothing.
    #[serde(default)]
    pub z_loss: f64,
    /// Implementation of attention, which engines of dtrain's own read; `None` for the engine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionImplementation>,
    /// Seed of the initial weights and of the data order.
    pub seed: u64,
}

impl Hyperparameters {
    /// Returns plain hyperparameters: one sample per step at a constant learning rate, without gradient clipping
    /// and auxiliary losses. Measurements and tests set the fields that they examine.
    pub fn plain() -> Self {
        Self {
            batch: 1,
            share: 0..1,
            micro_batch: 1,
            micro_batches: 1,
            optimizer: Optimizer::ADAMW,
            learning_rate: 1e-3,
            warmup_steps: 0,
            schedule_steps: 1,
            schedule: Schedule::Constant,
            final_fraction: 1.0,
            clip: None,
            z_loss: 0.0,
            attention: None,
            seed: 7,
        }
    }
}

/// Conditions that end an attempt; the first that holds counts. All ranks agree, because the decision is part
/// of the all-reduce of the loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunUntil {
    /// Step after which training is complete; `None` if only time or target ends it.
    pub steps: Option<StepId>,
    /// Seconds left for this attempt, including validations and the last checkpoint; `None` without a time
    /// limit.
    pub seconds: Option<f64>,
    /// Seconds of the time limit that earlier attempts used.
    #[serde(default)]
    pub spent_seconds: f64,
    /// Expected seconds of a validation; 0 if unknown.
    #[serde(default)]
    pub validation_seconds: f64,
    /// Expected seconds of the last checkpoint.
    #[serde(default)]
    pub save_seconds: f64,
    /// Metric value that completes the training; `None` without a target.
    pub target: Option<MetricTarget>,
}

/// A target value of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricTarget {
    /// Metric whose value is compared.
    pub metric: Metric,
    /// Direction in which the metric improves.
    pub goal: Goal,
    /// Target value, in the unit of the metric.
    pub value: f64,
}

impl MetricTarget {
    /// Returns `true` if `metric` is the metric of the target, and `value` reaches it.
    pub fn is_reached(&self, metric: &str, value: f64) -> bool {
        self.metric.name() == metric && self.goal.is_reached(value, self.value)
    }
}

/// The connection of a rank to the other ranks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankTransport {
    /// The rank is the only one.
    Alone,
    /// The ranks are on one host and share a memory mapping, inherited as an open file.
    SharedMemory {
        /// Number of the inherited file descriptor.
        descriptor: i32,
        /// Length of the mapping in bytes.
        bytes: u64,
    },
    /// The ranks use mutual TLS 1.3 over TCP. Each binds its listener, sends the address with
    /// `Event::Listening`, and gets all addresses with `Order::Peers`.
    Tls {
        /// Address that the rank binds, without a port.
        bind: String,
        /// Certificates of the rank for this attempt.
        identity: TlsIdentity,
    },
}

/// The timeouts of waits in collectives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitLimits {
    /// Seconds without a heartbeat after which a rank counts as lost.
    pub silence_seconds: f64,
    /// Seconds without progress after which a rank counts as stuck in spite of its heartbeat. Progress is to
    /// join a collective or to prepare some of the data, by the rank or by any rank for which it waits.
    pub idle_seconds: f64,
    /// Predicted seconds per step; `None` without a prediction.
    pub step_seconds: Option<f64>,
}

/// The TLS certificates of a rank or an agent for one attempt. The private key of the certificate authority
/// stays in the memory of the process that created it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsIdentity {
    /// Certificate of the attempt's certificate authority, as PEM.
    pub authority: String,
    /// Certificate of the rank or agent, as PEM. Its only subject alternative name is [`TlsIdentity::name`]
    /// of a rank, or [`TlsIdentity::agent_name`] of an agent.
    pub certificate: String,
    /// Private key of the rank or agent, as PEM.
    pub key: String,
}

/// The checkpoint from which an attempt resumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// Folder of the committed checkpoint.
    pub folder: PathBuf,
    /// Number of steps completed in the checkpoint.
    pub step: StepId,
}

impl WaitLimits {
    /// Seconds without a heartbeat after which a rank counts as lost.
    pub const SILENCE_SECONDS: f64 = 60.0;

    /// Lower bound of the idle limit in seconds: a live rank may compile kernels, or compute a layer on a
    /// slow processor.
    pub const LEAST_IDLE_SECONDS: f64 = 20.0 * 60.0;

    /// Lower bound of the idle limit in predicted step times, since predictions may be wrong.
    pub const IDLE_STEPS: f64 = 20.0;

    /// Returns the timeouts for a predicted step time.
    pub fn for_steps_of(step_seconds: Option<f64>) -> Self {
        let idle_seconds = Self::LEAST_IDLE_SECONDS.max(Self::IDLE_STEPS * step_seconds.unwrap_or(0.0));
        Self { silence_seconds: Self::SILENCE_SECONDS, idle_seconds, step_seconds }
    }
}

impl RunUntil {
    /// Returns the share of the time limit that earlier attempts used, 0 to 1; `None` without a limit.
    pub fn elapsed(&self) -> Option<f64> {
        let left = self.seconds?;
        Some(if left > 0.0 { self.spent_seconds / (self.spent_seconds + left) } else { 1.0 })
    }
}

impl TlsIdentity {
    /// Returns the name in the certificate of `rank`: `rank-<n>.<attempt>.<trial>`, in lower case.
    pub fn name(trial: &TrialId, attempt: AttemptId, rank: Rank) -> String {
        format!("rank-{rank}.{attempt}.{}", trial.0.to_ascii_lowercase())
    }

    /// Returns the name in the certificate of the agent on host `host`: `agent-<n>.<attempt>.<trial>`, in
    /// lower case.
    pub fn agent_name(trial: &TrialId, attempt: AttemptId, host: u32) -> String {
        format!("agent-{host}.{attempt}.{}", trial.0.to_ascii_lowercase())
    }
}

// Private keys must not reach a log, so no field is printed.
impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsIdentity(…)")
    }
}

impl std::fmt::Debug for RankTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Alone => f.write_str("Alone"),
            Self::SharedMemory { bytes, .. } => write!(f, "SharedMemory({bytes} bytes)"),
            Self::Tls { bind, .. } => write!(f, "Tls({bind})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_waited_for_longer() {
        let idle = |seconds| WaitLimits::for_steps_of(seconds).idle_seconds;
        assert_eq!([None, Some(0.0), Some(2.1), Some(60.0)].map(idle), [1200.0; 4]);
        assert_eq!(idle(Some(300.0)), 6000.0);
    }
}
