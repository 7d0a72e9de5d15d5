//! Bytes one rank holds at the peak of a step, by what they are for.
//!
//! Counts what the worker keeps: f32 weights, gradients and optimizer state, the tensors every operation saves
//! for its backward, the logits, the buffers of communication, and the process itself.

mod kept;

#[cfg(test)]
mod tests;

use crate::parameters::Parts;
use crate::schedule::{self, Shape, chunks_of};
use dtrain_protocol::mapping::{MAIL_VALUES, SLOT_VALUES};
use dtrain_protocol::{Arrangement, DeviceKind};
use dtrain_recipes::{
    Bytes, Model, Optimizer, OptimizerKind, PipelineSchedule, Precision, Recompute, ZeroStage,
};
use kept::{Cut, Kept, kept};
use serde::{Deserialize, Serialize};

/// Bytes of one rank at the peak of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Weights, with their copies in a shorter format, and what is gathered of others' shards.
    pub weights: Bytes,
    /// Gradients, with the sum over micro-batches.
    pub gradients: Bytes,
    /// Moments of the optimizer.
    pub optimizer: Bytes,
    /// Values kept for backward, over all micro-batches alive at once.
    pub activations: Bytes,
    /// The output of the head, its softmax and its gradient.
    pub logits: Bytes,
    /// Buffers of communication.
    pub buckets: Bytes,
    /// The copy of this rank's share of the state while a checkpoint is written.
    pub checkpoint: Bytes,
    /// The process itself: what was resident before the model was built, code, stacks.
    pub baseline: Bytes,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> Bytes {
        Bytes(self.categories().iter().map(|(_, bytes)| bytes.0).sum())
    }

    /// The parts with their names, in a fixed order.
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

/// What decides the memory of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its parts as the largest rank of the layout holds them.
    pub parts: &'a Parts,
    /// The update rule.
    pub optimizer: &'a Optimizer,
    /// How the work is arranged.
    pub arrangement: Arrangement,
    /// Samples of one forward pass.
    pub micro: u32,
    /// Forward passes of a step.
    pub micro_batches: u32,
    /// Bytes of the process itself.
    pub baseline: u64,
}

/// Bytes of the heaviest rank. The heaviest stage is found, not assumed: it is often the last.
pub fn peak(held: &Held<'_>) -> Memory {
    let kept = kept_of(held);
    (0..held.arrangement.layout.pipeline.get())
        .map(|stage| of_stage(held, &kept, stage))
        .max_by_key(|m| m.total())
        .unwrap_or_default()
}

fn is_on_host(arrangement: &Arrangement) -> bool {
    arrangement.device == DeviceKind::Cpu
}

fn kept_of(held: &Held<'_>) -> Kept {
    let Arrangement { layout, sequence, precision, recompute, .. } = held.arrangement;
    let cut = Cut { tensor: layout.tensor.get().into(), sequence, context: layout.context.get().into() };
    let fused = is_on_host(&held.arrangement) && precision == Precision::F32;
    kept(held.model, cut, recompute, precision, fused)
}

/// Bytes of a rank of pipeline stage `stage`.
fn of_stage(held: &Held<'_>, kept: &Kept, stage: u32) -> Memory {
    let arrangement = &held.arrangement;
    let parts = held.parts.stage(arrangement, stage);
    let (parameters, largest) = (parts.all().all(), parts.largest.all());
    let shard = u64::from(arrangement.shard);
    let share = |at: ZeroStage| if arrangement.zero >= at { parameters.div_ceil(shard) } else { parameters };
    let is_sharded = |at: ZeroStage| arrangement.zero >= at && shard > 1;
    let copies = match arrangement.precision {
        Precision::F32 => 4,
        Precision::Bf16 => 6,
    };
    // While one part computes, the next is gathered.
    let gathered = if is_sharded(ZeroStage::Zero3) { 2 * 4 * largest } else { 0 };
    let moments = moments(held.optimizer);
    let (activations, logits) = passing(held, kept, stage);
    let replicas = u64::from(arrangement.replicas());
    let saved = if is_on_host(arrangement) { 4 * (1 + moments) * parameters / replicas } else { 0 };
    Memory {
        weights: Bytes(copies * share(ZeroStage::Zero3) + gathered),
        // Fresh gradients of a part lie beside the sums until they are added.
        gradients: Bytes(4 * (share(ZeroStage::Zero2) + largest)),
        optimizer: Bytes(4 * moments * share(ZeroStage::Zero1)),
        activations: Bytes(activations),
        logits: Bytes(logits),
        buckets: Bytes(buffers(arrangement, parameters, largest)),
        checkpoint: Bytes(saved),
        baseline: Bytes(held.baseline),
    }
}

/// Bytes that passes leave for their backward: in the blocks with what is before them, and after them.
fn passing(held: &Held<'_>, kept: &Kept, stage: u32) -> (u64, u64) {
    let Held { model, arrangement, micro, micro_batches, .. } = held;
    let stages = arrangement.layout.pipeline.get();
    let (first, last) = (stage == 0, stage + 1 == stages);
    let shape = Shape { stages, chunks: arrangement.chunks, micros: *micro_batches };
    let alive = u64::from(schedule::alive(arrangement.schedule, shape, stage));
    let every = arrangement.recompute_every;
    let (mut blocks, mut again) = (0, 0);
    for run in chunks_of(stage, arrangement, model.blocks()) {
        blocks += run.len() as u64;
        again += u64::from((run.end - run.start).div_ceil(every));
    }
    if arrangement.recompute == Recompute::None {
        again = 0;
    }
    let stored = again * kept.again_stored + (blocks - again) * kept.block_stored;
    let working = if again > 0 { kept.again_working } else { kept.block_working };
    let logits = if last { kept.logits } else { 0 };
    // Backward begins at once where forward ends, but all forwards of GPipe end before the first backward, and the
    // weights of the head wait for a zero bubble.
    let heads = match arrangement.schedule {
        PipelineSchedule::Gpipe | PipelineSchedule::ZeroBubble => alive.min(u64::from(*micro_batches)),
        PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved => 1,
    };
    // The logits are gone before gradients pass through a block: the larger of the two counts.
    let working = working.saturating_sub(logits);
    let outer = if first { kept.outer } else { 0 };
    let samples = u64::from(*micro);
    let in_blocks = (stored * alive).div_ceil(u64::from(arrangement.chunks));
    (samples * (in_blocks + working + outer), samples * logits * heads)
}

/// Bytes of what lies ready to be sent, and of the memory that the ranks of a host show to each other.
fn buffers(arrangement: &Arrangement, parameters: u64, largest: u64) -> u64 {
    let Arrangement { layout, zero, shard, .. } = arrangement;
    let [replicas, tensor] = [arrangement.replicas(), layout.tensor.get()].map(u64::from);
    let gradients = match (replicas > 1, zero) {
        (false, _) => 0,
        (true, ZeroStage::Zero0 | ZeroStage::Zero1) => 4 * parameters,
        (true, ZeroStage::Zero2 | ZeroStage::Zero3) => 2 * 4 * largest,
    };
    if !is_on_host(arrangement) {
        return gradients;
    }
    // Two slots a rank of every group that sums or gathers, and two mails each way to every neighbour.
    let across = u64::from(arrangement.replicas() / (*shard).max(1));
    let groups =
        if *zero == ZeroStage::Zero0 { [replicas, 1, tensor] } else { [u64::from(*shard), across, tensor] };
    let members: u64 = groups.into_iter().filter(|members| *members > 1).sum();
    let degrees = [layout.pipeline, layout.context, layout.expert].map(|degree| u64::from(degree.get()));
    let neighbours: u64 = degrees.into_iter().map(|degree| (degree - 1).min(2)).sum();
    gradients + 2 * members * 4 * SLOT_VALUES as u64 + 4 * neighbours * 4 * MAIL_VALUES as u64
}

/// Values the optimizer keeps for each parameter.
pub fn moments(optimizer: &Optimizer) -> u64 {
    match optimizer.kind {
        OptimizerKind::Adamw | OptimizerKind::Lamb => 2,
        OptimizerKind::Lion => 1,
        OptimizerKind::Sgd => u64::from(optimizer.beta1 > 0.0),
    }
}
