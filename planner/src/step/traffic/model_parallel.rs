//! Traffic of tensor, context, expert and pipeline parallelism, all within forward and backward passes.

use super::{
    BlockCounts, CollectiveKind, CommunicationOp, TrafficModel, TrafficPurpose, TransferPhase, skip_empty,
};
use crate::pipeline_schedule::chunks_of;
use dtrain_protocol::{Arrangement, Axis, Channel, DeviceKind};
use dtrain_recipes::{Decoder, Experts, Model, Precision, Recompute, ZeroStage};
use std::ops::Range;

/// Counts the blocks of a stage, and those of them that are recomputed: the first of every `recompute_every`
/// consecutive ones.
pub(super) fn blocks(model: &Model, arrangement: &Arrangement, stage: u32) -> BlockCounts {
    let every = arrangement.recompute_every;
    let (all, again) = chunks_of(stage, arrangement, model.blocks()).fold((0, 0), |(all, again), run| {
        let length = run.end - run.start;
        (all + u64::from(length), again + u64::from(length.div_ceil(every)))
    });
    BlockCounts { all, again: if arrangement.recompute == Recompute::Full { again } else { 0 } }
}

/// Returns the messages that a rank of the stage sends to other stages, activations forward and gradients
/// back: phase of the step, and values per sample.
pub(super) fn messages(model: &Model, arrangement: &Arrangement, stage: u32) -> Vec<(TransferPhase, u64)> {
    let Arrangement { layout, sequence, .. } = arrangement;
    if layout.pipeline.get() == 1 {
        return Vec::new();
    }
    let cut = layout.context.get() * if *sequence { layout.tensor.get() } else { 1 };
    let blocks = model.blocks();
    let values = |boundary| {
        let [rows, width] = model.activation_at(boundary);
        rows / u64::from(cut) * width
    };
    let runs = chunks_of(stage, arrangement, blocks);
    let of_run = |run: Range<u32>| {
        let next = (run.end < blocks).then(|| (TransferPhase::Forward, values(run.end)));
        next.into_iter().chain((run.start > 0).then(|| (TransferPhase::Backward, values(run.start))))
    };
    runs.flat_map(of_run).collect()
}

impl TrafficModel<'_> {
    /// Calls `tell` with the transfers of the rank in every pass of `micro` samples.
    pub(crate) fn passes(&self, micro: u32, tell: impl FnMut(CommunicationOp)) {
        let tell = &mut skip_empty(tell);
        for (when, values) in &self.messages {
            tell(CommunicationOp {
                purpose: TrafficPurpose::Pipeline,
                when: *when,
                kind: CollectiveKind::Message,
                channel: Channel::Pipeline,
                ranks: self.degree(Axis::Pipeline),
                values: u64::from(micro) * values,
                times: 1,
            });
        }
        let Model::Decoder(decoder) = self.model else { return };
        let tokens = u64::from(micro) * u64::from(decoder.context / self.degree(Axis::Context));
        self.products(decoder, tokens, tell);
        self.head_norms(decoder, tell);
        self.ring(decoder, tokens, tell);
        self.experts(decoder, tokens, tell);
    }

    /// Reports the transfers of tensor parallelism (Shoeybi et al. 2019): a block has two column-parallel and
    /// two row-parallel products, and one more of each if it has shared experts. A sum needed in one direction is free in the other; in sequence mode
    /// (Korthikanti et al. 2022) each direction does half of it.
    fn products(&self, d: &Decoder, tokens: u64, tell: &mut impl FnMut(CommunicationOp)) {
        let (ranks, blocks) = (self.degree(Axis::Tensor), self.blocks);
        let stream = tokens * u64::from(d.hidden);
        let mut one = |when, kind, values, times| {
            let (purpose, channel) = (TrafficPurpose::Tensor, Channel::Tensor);
            tell(CommunicationOp { purpose, when, kind, channel, ranks, values, times });
        };
        // Number of times a forward enters column-parallel and leaves row-parallel layers: the embedding is
        // only left, the head only entered.
        let (leaves, enters) = (u64::from(self.is_first()), u64::from(self.is_last()));
        let each = 2 + u64::from(d.experts.is_some_and(|experts| experts.shared_ffn.is_some()));
        let (enter, leave) = (each * blocks.all + enters, each * blocks.all + leaves);
        // Weights gathered with ZeRO 3 are not kept for backward: the embedding looks up again.
        let again = each * blocks.again;
        let leave_again = again + if self.arrangement.zero == ZeroStage::Zero3 { leaves } else { 0 };
        if self.arrangement.sequence {
            one(TransferPhase::Forward, CollectiveKind::AllGather, stream, enter);
            one(TransferPhase::Forward, CollectiveKind::ReduceScatter, stream, leave);
            one(TransferPhase::Backward, CollectiveKind::AllGather, stream, leave + again);
            one(TransferPhase::Backward, CollectiveKind::ReduceScatter, stream, enter + leave_again);
        } else {
            one(TransferPhase::Forward, CollectiveKind::AllReduce, stream, leave);
            one(TransferPhase::Backward, CollectiveKind::AllReduce, stream, enter + leave_again);
        }
        if self.is_last() {
            // Of every row of logits: the maximum, the sum of exponentials and the logit of the target.
            one(TransferPhase::Forward, CollectiveKind::AllGather, u64::from(ranks) * tokens, 1);
            one(TransferPhase::Forward, CollectiveKind::AllReduce, 2 * tokens, 1);
        }
    }

    /// Reports the sums of the gradients of the norms of queries and keys, of which each tensor-parallel rank has
    /// a part, that of its own heads.
    fn head_norms(&self, d: &Decoder, tell: &mut impl FnMut(CommunicationOp)) {
        if d.qk_norm && !self.arrangement.sequence && d.lora.is_none() {
            tell(CommunicationOp {
                purpose: TrafficPurpose::Tensor,
                when: TransferPhase::Backward,
                kind: CollectiveKind::AllReduce,
                channel: Channel::Tensor,
                ranks: self.degree(Axis::Tensor),
                values: 2 * u64::from(d.head_width()),
                times: self.blocks.all,
            });
        }
    }

    /// Reports the transfers of balanced ring attention, in which every rank holds an early and a late piece
    /// of a sequence.
    ///
    /// Keys travel whole towards rank 0, and from there as a first half to the ranks behind their origin,
    /// which see only that. Backward they travel again, their gradients with them and back home; only rank 0
    /// itself sees the second half of its keys. Without the fused operations, keys are gathered and their
    /// gradients scattered.
    fn ring(&self, d: &Decoder, tokens: u64, tell: &mut impl FnMut(CommunicationOp)) {
        let (ranks, blocks) = (self.degree(Axis::Context), self.blocks);
        if ranks == 1 {
            return;
        }
        let (n, r) = (u64::from(ranks), u64::from(self.coord.along(Axis::Context)));
        let width = 2 * d.key_width();
        let keys = tokens * width / u64::from(self.degree(Axis::Tensor));
        let mut one = |when, kind, values, times| {
            let (purpose, channel) = (TrafficPurpose::Context, Channel::Context);
            tell(CommunicationOp { purpose, when, kind, channel, ranks, values, times });
        };
        let Arrangement { device, precision, .. } = self.arrangement;
        if (*device, *precision) != (DeviceKind::Cpu, Precision::F32) {
            one(TransferPhase::Forward, CollectiveKind::AllGather, n * keys, blocks.all);
            one(TransferPhase::Backward, CollectiveKind::AllGather, n * keys, blocks.again);
            one(TransferPhase::Backward, CollectiveKind::ReduceScatter, n * keys, blocks.all);
            return;
        }
        // Whole keys and halves that a rank passes on, and their gradients.
        let ((whole, half), (whole_back, half_back)) = match r {
            0 => ((0, n - 1), (n - 1, 0)),
            r => ((n - r, r - 1), (n.saturating_sub(2), 1)),
        };
        one(TransferPhase::Forward, CollectiveKind::Message, keys, blocks.all * whole);
        one(TransferPhase::Forward, CollectiveKind::Message, keys / 2, blocks.all * half);
        one(
            TransferPhase::Backward,
            CollectiveKind::Message,
            keys,
            (blocks.again + blocks.all) * whole + blocks.all * whole_back,
        );
        one(
            TransferPhase::Backward,
            CollectiveKind::Message,
            keys / 2,
            (blocks.again + blocks.all) * half + blocks.all * half_back,
        );
    }

    /// Reports the transfers of expert parallelism: tokens and their gradients travel to experts and back, as
    /// many as go to other ranks under an even load. Their number is sent before them.
    fn experts(&self, d: &Decoder, tokens: u64, tell: &mut impl FnMut(CommunicationOp)) {
        let Some(Experts { count, per_token, balance, .. }) = d.experts else { return };
        let (blocks, choices) = (self.blocks, tokens * u64::from(per_token));
        let mut one = |when, kind, axis, values, times| {
            let (purpose, channel) = match axis {
                Axis::Tensor => (TrafficPurpose::Tensor, Channel::Tensor),
                Axis::Context => (TrafficPurpose::Context, Channel::Context),
                _ => (TrafficPurpose::Expert, Channel::Expert),
            };
            let ranks = self.degree(axis);
            tell(CommunicationOp { purpose, when, kind, channel, ranks, values, times });
        };
        let (ways, counts) = (choices * u64::from(d.hidden), u64::from(count));
        one(TransferPhase::Forward, CollectiveKind::AllToAll, Axis::Expert, counts, blocks.all);
        one(TransferPhase::Forward, CollectiveKind::AllToAll, Axis::Expert, ways, 2 * blocks.all);
        one(TransferPhase::Backward, CollectiveKind::AllToAll, Axis::Expert, counts, blocks.again);
        one(
            TransferPhase::Backward,
            CollectiveKind::AllToAll,
            Axis::Expert,
            ways,
            2 * (blocks.all + blocks.again),
        );
        if !self.arrangement.sequence {
            // Each tensor-parallel rank has a part of the gradient of the gates.
            one(TransferPhase::Backward, CollectiveKind::AllReduce, Axis::Tensor, choices, blocks.all);
        }
        if balance > 0.0 {
            // Choices of experts in whole sequences, sent where the pass is recorded.
            let samples = tokens / u64::from(d.context / self.degree(Axis::Context));
            let chosen = samples * counts;
            one(
                TransferPhase::Forward,
                CollectiveKind::AllReduce,
                Axis::Context,
                chosen,
                blocks.all - blocks.again,
            );
            one(TransferPhase::Backward, CollectiveKind::AllReduce, Axis::Context, chosen, blocks.again);
        }
    }
}
