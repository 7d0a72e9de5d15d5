//! Peak memory of one rank in a step, by category.
//!
//! Counts the worker's f32 weights, gradients and optimizer state, the tensors that every operation saves for
//! its backward, the logits, the buffers of communication, and the process itself.

mod activations;
mod largest_tensor;

#[cfg(test)]
mod tests;

use crate::layout::parameters::{ModelParameters, ParameterCounts};
use crate::pipeline_schedule::{self, PipelineShape, chunks_of};
use activations::{ActivationSharding, OpBackend, SavedActivations, factor_bytes, saved_activations};
use dtrain_protocol::shared_memory_layout::{MAIL_VALUES, SLOT_VALUES};
use dtrain_protocol::{Arrangement, DeviceKind};
use dtrain_recipes::{
    Activation, Bytes, Compression, Model, MomentPrecision, Offload, Optimizer, OptimizerKind,
    PipelineSchedule, Precision, Recompute, StatePrecision, ZeroStage,
};
pub use largest_tensor::LargestTensor;
use serde::{Deserialize, Serialize};

/// Bytes of one rank at the peak of a step, by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBreakdown {
    /// Bytes of weights, with their copies in a shorter format, and of weights gathered from other ranks'
    /// shards.
    pub weights: Bytes,
    /// Bytes of gradients, with the sum over micro-batches.
    pub gradients: Bytes,
    /// Bytes of optimizer moments, and of the extra state of replicas that are only approximately equal.
    pub optimizer: Bytes,
    /// Bytes of activations saved for backward, over all micro-batches alive at once.
    pub activations: Bytes,
    /// Bytes of the head's output, its softmax and its gradient.
    pub logits: Bytes,
    /// Bytes of communication buffers.
    pub buckets: Bytes,
    /// Bytes of the copy of this rank's shard of the state, while a checkpoint is written.
    pub checkpoint: Bytes,
    /// Bytes of the process itself: memory resident before the model was built, code, stacks.
    pub baseline: Bytes,
}

impl MemoryBreakdown {
    /// Returns the sum of the bytes in all categories.
    pub fn total(&self) -> Bytes {
        Bytes(self.categories().iter().map(|(_, bytes)| bytes.0).sum())
    }

    /// Returns the bytes of each category with its name, in a fixed order.
    pub fn categories(&self) -> [(&'static str, Bytes); 8] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("logits", self.logits),
            ("buckets", self.buckets),
            ("checkpoint", self.checkpoint),
            ("baseline", self.baseline),
        ]
    }
}

/// Inputs for the memory of a rank that do not depend on the micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct MemoryInputs<'a> {
    /// Model to train.
    pub model: &'a Model,
    /// Parameters on the largest rank of the layout.
    pub parts: &'a ModelParameters,
    /// Optimizer of the training, which keeps moments.
    pub optimizer: &'a Optimizer,
    /// Layout, schedule, sharding, recompute and precision of the training.
    pub arrangement: Arrangement,
    /// Bytes of the process itself.
    pub baseline: u64,
}

/// Memory of one rank in every pipeline stage: the fixed part, and the part per sample.
#[derive(Clone, Debug)]
pub struct PipelineMemory<'a> {
    model: &'a Model,
    arrangement: Arrangement,
    stages: Vec<StageMemory>,
}

#[derive(Clone, Copy, Debug)]
struct StageMemory {
    /// Fixed bytes by category: all but activations, logits and the weight copies of a pass.
    held: MemoryBreakdown,
    /// Bytes of the weight copies that each pass keeps while it is alive, and of those in use.
    copies: [u64; 2],
    /// Bytes per sample that the blocks keep while the micro-batch is alive.
    stored: u64,
    /// Bytes per sample in the block that computes, and in the layers before the first block.
    working: u64,
    /// Bytes per sample of the head's output.
    logits: u64,
}

impl<'a> PipelineMemory<'a> {
    /// Computes the fixed memory and the memory per sample of all stages of a pipeline.
    pub fn of(held: &MemoryInputs<'a>) -> Self {
        let kept = activations_of(held);
        let stages = held.arrangement.layout.pipeline.get();
        Self {
            model: held.model,
            arrangement: held.arrangement,
            stages: (0..stages).map(|stage| of_stage(held, &kept, stage)).collect(),
        }
    }

    /// Returns the memory of the heaviest rank by category, in a step whose `split` is (samples of a forward
    /// pass, number of forward passes). All stages are compared: the heaviest is often the last.
    pub fn peak(&self, split: (u32, u32)) -> MemoryBreakdown {
        self.stages(split).max_by_key(|m| m.total()).unwrap_or_default()
    }

    /// Returns the largest tensor on any rank, for forward passes of `micro` samples.
    pub fn largest_tensor(&self, micro: u32) -> LargestTensor {
        largest_tensor::largest(self.model, &self.arrangement, micro.into())
    }

    /// Returns the memory of one rank in every stage, from the first stage to the last.
    pub fn each(&self, split: (u32, u32)) -> Vec<MemoryBreakdown> {
        self.stages(split).collect()
    }

    fn stages(&self, split: (u32, u32)) -> impl Iterator<Item = MemoryBreakdown> + '_ {
        (0..self.arrangement.layout.pipeline.get()).map(move |stage| self.passing(stage, split))
    }

    /// Returns the memory of a rank in stage `index`, with the activations and logits that are alive at its
    /// peak.
    fn passing(&self, index: u32, (micro, micro_batches): (u32, u32)) -> MemoryBreakdown {
        let Arrangement { layout, schedule, chunks, .. } = self.arrangement;
        let StageMemory { held, copies: [of_pass, at_work], stored, working, logits } =
            self.stages[index as usize];
        let shape = PipelineShape { stages: layout.pipeline.get(), chunks, micros: micro_batches };
        let alive = u64::from(pipeline_schedule::alive(schedule, shape, index));
        // Backward starts right after its forward in the last stage, but GPipe ends all forwards before the
        // first backward, and a zero bubble delays the weight gradients of the head.
        let heads = match schedule {
            PipelineSchedule::Gpipe | PipelineSchedule::ZeroBubble => alive.min(u64::from(micro_batches)),
            PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved => 1,
        };
        let samples = u64::from(micro);
        let of_chunks = |bytes: u64| (bytes * alive).div_ceil(u64::from(chunks));
        let in_blocks = of_chunks(stored);
        MemoryBreakdown {
            weights: Bytes(held.weights.0 + of_chunks(of_pass) + at_work),
            activations: Bytes(samples * (in_blocks + working)),
            logits: Bytes(samples * logits * heads),
            ..held
        }
    }
}

fn is_on_host(arrangement: &Arrangement) -> bool {
    arrangement.device == DeviceKind::Cpu
}

fn activations_of(held: &MemoryInputs<'_>) -> SavedActivations {
    let Arrangement { layout, sequence, precision, recompute, .. } = held.arrangement;
    let cut = ActivationSharding {
        tensor: layout.tensor.get().into(),
        sequence,
        context: layout.context.get().into(),
    };
    let by = match (is_on_host(&held.arrangement), precision) {
        (true, Precision::F32) => OpBackend::Host,
        (true, Precision::Bf16 | Precision::F16 | Precision::Fp8) => OpBackend::Plain,
        (false, _) => OpBackend::Device,
    };
    saved_activations(held.model, cut, recompute, precision, by)
}

/// Returns the bytes of the weights in one block that a pass copies: all in 16 bits, or on a device those
/// that are joined for one product, in f32.
fn copied(held: &MemoryInputs<'_>, of_block: u64) -> u64 {
    let Arrangement { precision, layout, .. } = held.arrangement;
    match (precision, held.model) {
        (Precision::Bf16 | Precision::F16 | Precision::Fp8, _) => factor_bytes(precision) * of_block,
        (Precision::F32, Model::Decoder(d)) if !is_on_host(&held.arrangement) => {
            let up = match d.activation {
                Activation::Swiglu | Activation::Geglu if d.experts.is_none() => 2 * u64::from(d.ffn),
                Activation::Swiglu | Activation::Geglu | Activation::Gelu | Activation::GeluTanh => 0,
            };
            let values = u64::from(d.hidden) * (d.query_width() + 2 * d.key_width() + up);
            4 * values.div_ceil(layout.tensor.get().into())
        }
        (Precision::F32, _) => 0,
    }
}

fn of_stage(held: &MemoryInputs<'_>, kept: &SavedActivations, stage: u32) -> StageMemory {
    let MemoryInputs { model, arrangement, baseline, .. } = held;
    let parts = held.parts.stage(arrangement, stage);
    let (parameters, largest) = (parts.all().all(), parts.largest.all());
    let shard = u64::from(arrangement.shard);
    // The state of an expert is shared only by the ranks of a shard group that hold it.
    let of_experts = u64::from(arrangement.expert_shard().unwrap_or(1));
    let shared = parts.all().dense.div_ceil(shard) + parts.all().experts.div_ceil(of_experts);
    let share = |at: ZeroStage| if arrangement.zero >= at { shared } else { parameters };
    let is_sharded = |at: ZeroStage| arrangement.zero >= at && shard > 1;
    // The gathered values of the part in use, the bucket they came in, and the next one arriving.
    let gathered = if is_sharded(ZeroStage::Zero3) { 3 * 4 * largest } else { 0 };
    let moments = moments(held.optimizer);
    let replicas = u64::from(arrangement.replicas());
    // Each rank writes its shard; an expert's only the ranks that hold it.
    let written =
        |values: ParameterCounts| values.dense + u64::from(arrangement.layout.expert.get()) * values.experts;
    let frozen = held.parts.frozen(arrangement, stage);
    let written = (1 + moments) * written(parts.all()) + written(frozen);
    let StateBytes { weight, gradient, moment } = StateBytes::of(arrangement);
    let saved = if is_on_host(arrangement) { 4 * written / replicas } else { 0 };
    let fixed = MemoryBreakdown {
        weights: Bytes(weight * share(ZeroStage::Zero3) + 4 * frozen.all() + gathered),
        // Fresh gradients of a part lie beside the sums until they are added.
        gradients: Bytes(gradient * (share(ZeroStage::Zero2) + largest)),
        optimizer: Bytes(
            moment * moments * share(ZeroStage::Zero1) + 4 * kept_apart(arrangement) * parameters,
        ),
        activations: Bytes(0),
        logits: Bytes(0),
        buckets: Bytes(buffers(arrangement, parameters, largest)),
        checkpoint: Bytes(saved),
        baseline: Bytes(*baseline),
    };
    let (first, last) = (stage == 0, stage + 1 == arrangement.layout.pipeline.get());
    let (mut blocks, mut again) = (0, 0);
    for run in chunks_of(stage, arrangement, model.blocks()) {
        blocks += run.len() as u64;
        again += u64::from((run.end - run.start).div_ceil(arrangement.recompute_every));
    }
    if arrangement.recompute == Recompute::None {
        again = 0;
    }
    // A recomputed block copies its weights again; one that recomputes only attention keeps them.
    let in_blocks = parts.blocks.all() + frozen.all();
    let of_block = copied(held, in_blocks.div_ceil(blocks.max(1)));
    let outside = match arrangement.precision {
        Precision::F32 => 0,
        Precision::Bf16 | Precision::F16 | Precision::Fp8 => {
            factor_bytes(arrangement.precision) * parameters.saturating_sub(parts.blocks.all())
        }
    };
    let copies = match arrangement.recompute {
        Recompute::None | Recompute::Selective => [blocks * of_block, outside],
        Recompute::Full => [(blocks - again) * of_block, outside + of_block],
    };
    let working = if again > 0 { kept.again_working } else { kept.block_working };
    let logits = if last { kept.logits } else { 0 };
    // The logits are freed before gradients pass through a block: the larger of the two counts.
    let working = working.saturating_sub(logits) + if first { kept.outer } else { 0 };
    let stored = again * kept.again_stored + (blocks - again) * kept.block_stored;
    StageMemory { held: fixed, copies, stored, working, logits }
}

/// Bytes on the device of one value of the state that ranks train.
#[derive(Clone, Copy, Debug)]
struct StateBytes {
    weight: u64,
    gradient: u64,
    moment: u64,
}

impl StateBytes {
    /// Returns the bytes by the precision of the state; zero for state that a GPU keeps in host memory.
    fn of(arrangement: &Arrangement) -> Self {
        let of = |precision| match precision {
            StatePrecision::F32 => 4,
            StatePrecision::Bf16 => 2,
        };
        let state = &arrangement.state;
        let all = Self {
            weight: of(state.weights),
            gradient: of(state.gradients.unwrap_or(state.weights)),
            moment: match state.moments {
                MomentPrecision::F32 => 4,
                MomentPrecision::Bf16 => 2,
                MomentPrecision::Int8 => 1,
            },
        };
        match state.offload {
            Offload::Optimizer if !is_on_host(arrangement) => Self { moment: 0, ..all },
            Offload::All if !is_on_host(arrangement) => Self { weight: 0, gradient: 0, moment: 0 },
            Offload::None | Offload::Optimizer | Offload::All => all,
        }
    }
}

/// Returns the bytes of send buffers on one rank, and of the memory shared between the ranks of a host.
fn buffers(arrangement: &Arrangement, parameters: u64, largest: u64) -> u64 {
    let Arrangement { layout, zero, shard, .. } = arrangement;
    let [replicas, tensor] = [arrangement.replicas(), layout.tensor.get()].map(u64::from);
    let gradients = match (replicas > 1, zero) {
        (false, _) => 0,
        (true, ZeroStage::Zero0) => 4 * parameters,
        // Parameter groups in flight: some more with zero 1, but only while activations are freed.
        (true, ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3) => 2 * 4 * largest,
    };
    if !is_on_host(arrangement) {
        return gradients;
    }
    // Two slots per rank of every group that sums or gathers, and two mailboxes each way to every neighbor.
    let across = u64::from(arrangement.replicas() / (*shard).max(1));
    let groups =
        if *zero == ZeroStage::Zero0 { [replicas, 1, tensor] } else { [u64::from(*shard), across, tensor] };
    let members: u64 = groups.into_iter().filter(|members| *members > 1).sum();
    let degrees = [layout.pipeline, layout.context, layout.expert].map(|degree| u64::from(degree.get()));
    let neighbours: u64 = degrees.into_iter().map(|degree| (degree - 1).min(2)).sum();
    gradients + 2 * members * 4 * SLOT_VALUES as u64 + 4 * neighbours * 4 * MAIL_VALUES as u64
}

/// Returns the number of extra values per parameter that approximately equal replicas keep: the part not sent
/// yet; the last common weights with their momentum, and the summed change; gradients in flight for some
/// steps.
pub(crate) fn kept_apart(arrangement: &Arrangement) -> u64 {
    let sync = &arrangement.sync;
    let residual = match sync.compress {
        Compression::None | Compression::F16 | Compression::Bf16 => 0,
        Compression::PowerSgd { .. } | Compression::TopK { .. } => 1,
    };
    let is_sparse = matches!(sync.compress, Compression::TopK { .. });
    let travelling = if is_sparse { 0 } else { sync.staleness.into() };
    residual + travelling + if sync.local.is_some() { 3 } else { 0 }
}

/// Returns the number of values per parameter that the optimizer keeps as its state.
pub fn moments(optimizer: &Optimizer) -> u64 {
    match optimizer.kind {
        OptimizerKind::Adamw | OptimizerKind::Lamb => 2,
        OptimizerKind::Lion => 1,
        OptimizerKind::Sgd => u64::from(optimizer.beta1 > 0.0),
    }
}
