//! All one rank must know for one attempt. Nothing is left to decide.

use crate::{Action, Arrangement, AttemptId, Rank, StepId, TrialId};
use dtrain_recipes::{Data, Goal, Metric, Model, Optimizer, Schedule};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;

/// All one rank must know for one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The trial.
    pub trial: TrialId,
    /// The attempt: stamped on every event and every checkpoint.
    pub attempt: AttemptId,
    /// This rank.
    pub rank: Rank,
    /// How the work of a step is arranged among all ranks.
    pub arrangement: Arrangement,
    /// What is trained.
    pub model: Model,
    /// The runs of blocks this rank holds, in the order of the model: one, or several where the pipeline is
    /// interleaved.
    pub chunks: Vec<Range<u32>>,
    /// Where samples come from; `None` for a foreign command, which knows itself.
    pub data: Option<Data>,
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// How the weights are moved.
    pub training: Hyperparameters,
    /// When the attempt is over.
    pub until: RunUntil,
    /// What this rank does in each optimizer step.
    pub step: Vec<Action>,
    /// Where this rank runs.
    pub placement: Placement,
    /// How this rank reaches the others.
    pub link: RankTransport,
    /// How long this rank waits for another one.
    pub waits: WaitLimits,
    /// Validate after every this many steps, and after the last.
    pub validate_every: u64,
    /// At most this many validation samples are used.
    pub validate_samples: u64,
    /// Save after every this many steps, and after the last.
    pub save_every: u64,
    /// Folder of this trial's checkpoints.
    pub checkpoints: PathBuf,
    /// Where to go on from; `None` starts afresh.
    pub resume: Option<ResumePoint>,
}

/// How the weights are moved, with every number decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hyperparameters {
    /// Samples of one optimizer step over all ranks.
    pub batch: u64,
    /// The samples of each step's batch that this rank reads, `micro_batch · micro_batches` of them.
    pub share: Range<u64>,
    /// Samples of one forward pass on this rank.
    pub micro_batch: u32,
    /// Forward passes of one step on this rank.
    pub micro_batches: u32,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Warm-up in steps.
    pub warmup_steps: u64,
    /// Steps the schedule is stretched over; with a time limit, as many as are expected within it.
    pub schedule_steps: u64,
    /// Shape after warm-up.
    pub schedule: Schedule,
    /// Final learning rate as a fraction of the peak.
    pub final_fraction: f64,
    /// Largest global gradient norm.
    pub clip: Option<f64>,
    /// Seed of weights and data order.
    pub seed: u64,
}

/// When the attempt is over: the first condition that holds. All ranks decide alike, because the decision
/// travels with the reduced loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunUntil {
    /// The step after which training is complete; `None` when only time or target ends it.
    pub steps: Option<StepId>,
    /// Seconds left for this attempt, with its validations and its last checkpoint.
    pub seconds: Option<f64>,
    /// Seconds of the same limit that earlier attempts used.
    #[serde(default)]
    pub spent_seconds: f64,
    /// Seconds that a validation is expected to take; 0 where nobody knows.
    #[serde(default)]
    pub validation_seconds: f64,
    /// Seconds that the last checkpoint is expected to take.
    #[serde(default)]
    pub save_seconds: f64,
    /// What completes the training.
    pub target: Option<MetricTarget>,
}

/// A value of a metric that is to be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricTarget {
    /// The metric.
    pub metric: Metric,
    /// Which way it is better.
    pub goal: Goal,
    /// In the units of the metric.
    pub value: f64,
}

impl MetricTarget {
    /// Whether a value of a metric reaches it.
    pub fn is_reached(&self, metric: &str, value: f64) -> bool {
        self.metric.name() == metric && self.goal.is_reached(value, self.value)
    }
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Index of the host. Ranks of one host are neighbours.
    #[serde(default)]
    pub host: u32,
    /// Which backend.
    pub device: DeviceKind,
    /// Index among the host's devices of that kind.
    pub index: u32,
    /// Threads for compute on the CPU.
    pub threads: u32,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A GPU of any maker, through wgpu and Vulkan.
    Wgpu,
}

impl DeviceKind {
    /// The name of its backend: `cpu`, `cuda` or `wgpu`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }

    /// Whether it is a GPU, of whatever maker.
    pub fn is_gpu(self) -> bool {
        self != Self::Cpu
    }
}

/// How a rank reaches the others.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankTransport {
    /// There are no others.
    Alone,
    /// All ranks are processes of one host and share one mapping, inherited as an open file.
    SharedMemory {
        /// Number of the inherited file descriptor.
        descriptor: i32,
        /// Length of the mapping in bytes.
        bytes: u64,
    },
    /// Mutual TLS 1.3 over TCP; the listener is bound first, then `Event::Listening` tells its port, and
    /// `Order::Peers` answers with all addresses.
    Tls {
        /// Address to bind, without a port.
        bind: String,
        /// Certificates of this attempt.
        identity: TlsIdentity,
    },
}

/// How long a rank waits for another one that is due in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitLimits {
    /// Seconds without a heartbeat after which the other is lost.
    pub silence_seconds: f64,
    /// Seconds after which the other is given up although its heart beats, when in that time neither it nor any rank it
    /// waits for itself got anything done: joined a collective, or prepared some of the data.
    pub idle_seconds: f64,
    /// Seconds of a step in the plan; `None` where nobody predicted it.
    pub step_seconds: Option<f64>,
}

/// Certificates of one attempt: the authority lives only in the memory of the process that made it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsIdentity {
    /// The attempt's certificate authority, PEM.
    pub authority: String,
    /// The owner's certificate, PEM; its only subject alternative name is [`TlsIdentity::name`] of a rank, or
    /// [`TlsIdentity::agent_name`] of an agent.
    pub certificate: String,
    /// The owner's private key, PEM.
    pub key: String,
}

/// Where to go on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// The folder of the committed checkpoint.
    pub folder: PathBuf,
    /// Steps completed in it.
    pub step: StepId,
}

impl WaitLimits {
    /// Seconds without a heartbeat after which a rank is lost.
    pub const SILENCE_SECONDS: f64 = 60.0;

    /// A rank that is alive is never given up earlier: kernels are compiled, or a layer is computed on a slow processor.
    pub const LEAST_IDLE_SECONDS: f64 = 20.0 * 60.0;

    /// Nor before this many steps of the plan are over: predictions may be wrong.
    pub const IDLE_STEPS: f64 = 20.0;

    /// The limits where the plan expects steps of this length.
    pub fn for_steps_of(step_seconds: Option<f64>) -> Self {
        let idle_seconds = Self::LEAST_IDLE_SECONDS.max(Self::IDLE_STEPS * step_seconds.unwrap_or(0.0));
        Self { silence_seconds: Self::SILENCE_SECONDS, idle_seconds, step_seconds }
    }
}

impl RunUntil {
    /// Share of the time limit that earlier attempts used, 0 to 1; `None` without a limit.
    pub fn elapsed(&self) -> Option<f64> {
        let left = self.seconds?;
        Some(if left > 0.0 { self.spent_seconds / (self.spent_seconds + left) } else { 1.0 })
    }
}

impl TlsIdentity {
    /// The name in the certificate of `rank`: `rank-<n>.<attempt>.<trial>`, in lower case.
    pub fn name(trial: &TrialId, attempt: AttemptId, rank: Rank) -> String {
        format!("rank-{rank}.{attempt}.{}", trial.0.to_ascii_lowercase())
    }

    /// The name in the certificate of the agent on host `host`: `agent-<n>.<attempt>.<trial>`, in lower case.
    pub fn agent_name(trial: &TrialId, attempt: AttemptId, host: u32) -> String {
        format!("agent-{host}.{attempt}.{}", trial.0.to_ascii_lowercase())
    }
}

// Keys never reach a log: the identity prints as its kind only.
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
