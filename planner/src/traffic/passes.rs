//! What is sent in the middle of forward and backward.

use super::{Kind, Purpose, Sender, Transfer, When};
use crate::schedule::chunks_of;
use dtrain_protocol::{Arrangement, Axis, Channel, DeviceKind};
use dtrain_recipes::{Decoder, Model, Precision, Recompute, ZeroStage};

/// The blocks of a stage, and how many of them are computed again.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    all: u64,
    again: u64,
}

impl Sender<'_> {
    pub(super) fn passes(&self, tell: &mut impl FnMut(Transfer)) {
        self.messages(tell);
        let Model::Decoder(decoder) = self.model else { return };
        let blocks = self.blocks();
        let tokens = u64::from(self.micro) * u64::from(decoder.context / self.degree(Axis::Context));
        self.products(decoder, tokens, blocks, tell);
        self.ring(decoder, tokens, blocks, tell);
    }

    /// Blocks of the stage; the first of every run of `recompute_every` is computed again.
    fn blocks(&self) -> Blocks {
        let every = self.arrangement.recompute_every;
        let runs = chunks_of(self.stage(), self.arrangement, self.model.blocks());
        let (all, again) = runs.fold((0, 0), |(all, again), run| {
            let length = run.end - run.start;
            (all + u64::from(length), again + u64::from(length.div_ceil(every)))
        });
        Blocks { all, again: if self.arrangement.recompute == Recompute::Full { again } else { 0 } }
    }

    /// Tensor parallelism (Shoeybi et al. 2019): a block enters two column cuts and leaves two row cuts. What is summed in
    /// one direction costs nothing in the other; in sequence mode (Korthikanti et al. 2022) half of a sum is done in each.
    fn products(&self, d: &Decoder, tokens: u64, blocks: Blocks, tell: &mut impl FnMut(Transfer)) {
        let ranks = self.degree(Axis::Tensor);
        let stream = tokens * u64::from(d.hidden);
        let mut one = |when, kind, values, times| {
            let (purpose, channel) = (Purpose::Tensor, Channel::Tensor);
            tell(Transfer { purpose, when, kind, channel, ranks, values, times });
        };
        // Entering and leaving what is cut by columns and by rows, forward: the embedding is only left, the head only
        // entered.
        let (leaves, enters) = (u64::from(self.is_first()), u64::from(self.is_last()));
        let (enter, leave) = (2 * blocks.all + enters, 2 * blocks.all + leaves);
        // Weights that are gathered for a pass are not kept for its backward: the embedding looks up again.
        let again = 2 * blocks.again;
        let leave_again = again + if self.arrangement.zero == ZeroStage::Zero3 { leaves } else { 0 };
        if self.arrangement.sequence {
            one(When::Forward, Kind::AllGather, stream, enter);
            one(When::Forward, Kind::ReduceScatter, stream, leave);
            one(When::Backward, Kind::AllGather, stream, leave + again);
            one(When::Backward, Kind::ReduceScatter, stream, enter + leave_again);
            // Each rank saw a part of the sequence only; so gradients of what is whole on all of them are summed, in one
            // message, of shards those that the rank keeps.
            let ((index, shard), mut whole) = (self.shard(), 0);
            self.parts.units(self.arrangement, self.stage(), |unit, _, count| {
                whole += count * unit.whole_of(index, shard);
            });
            one(When::Step, Kind::AllReduce, whole, 1);
        } else {
            one(When::Forward, Kind::AllReduce, stream, leave);
            one(When::Backward, Kind::AllReduce, stream, enter + leave_again);
        }
        if self.is_last() {
            // Of every row of logits: the maximum, the sum of exponentials and the logit of the target.
            one(When::Forward, Kind::AllGather, u64::from(ranks) * tokens, 1);
            one(When::Forward, Kind::AllReduce, 2 * tokens, 1);
        }
    }

    /// Ring attention, balanced: every rank holds an early and a late piece of a sequence.
    ///
    /// Keys travel towards rank 0, whole; from there to the ranks behind the one they began at, which see only their
    /// first half. Backward they travel again, and their gradients with them and home; nobody but rank 0 itself sees
    /// the second half of its keys. Off the fused operations, keys are gathered and their gradients scattered.
    fn ring(&self, d: &Decoder, tokens: u64, blocks: Blocks, tell: &mut impl FnMut(Transfer)) {
        let ranks = self.degree(Axis::Context);
        let (n, r) = (u64::from(ranks), u64::from(self.coord.along(Axis::Context)));
        let width = 2 * u64::from(d.kv_heads) * u64::from(d.head_width());
        let keys = tokens * width / u64::from(self.degree(Axis::Tensor));
        let mut one = |when, kind, values, times| {
            let (purpose, channel) = (Purpose::Context, Channel::Context);
            tell(Transfer { purpose, when, kind, channel, ranks, values, times });
        };
        let Arrangement { device, precision, .. } = self.arrangement;
        if (*device, *precision) != (DeviceKind::Cpu, Precision::F32) {
            one(When::Forward, Kind::AllGather, n * keys, blocks.all);
            one(When::Backward, Kind::AllGather, n * keys, blocks.again);
            one(When::Backward, Kind::ReduceScatter, n * keys, blocks.all);
            return;
        }
        // Whole keys and halves that a rank hands on, and gradients of them.
        let ((whole, half), (whole_back, half_back)) = match r {
            0 => ((0, n - 1), (n - 1, 0)),
            r => ((n - r, r - 1), (n.saturating_sub(2), 1)),
        };
        one(When::Forward, Kind::Message, keys, blocks.all * whole);
        one(When::Forward, Kind::Message, keys / 2, blocks.all * half);
        one(
            When::Backward,
            Kind::Message,
            keys,
            (blocks.again + blocks.all) * whole + blocks.all * whole_back,
        );
        one(
            When::Backward,
            Kind::Message,
            keys / 2,
            (blocks.again + blocks.all) * half + blocks.all * half_back,
        );
    }

    /// Activations to the next stage, their gradients to the previous.
    fn messages(&self, tell: &mut impl FnMut(Transfer)) {
        let Arrangement { layout, sequence, .. } = self.arrangement;
        let ranks = layout.pipeline.get();
        let cut = layout.context.get() * if *sequence { layout.tensor.get() } else { 1 };
        let mut one = |when, boundary| {
            let [rows, width] = self.model.activation_at(boundary);
            let values = u64::from(self.micro) * (rows / u64::from(cut)) * width;
            let (purpose, channel, kind) = (Purpose::Pipeline, Channel::Pipeline, Kind::Message);
            tell(Transfer { purpose, when, kind, channel, ranks, values, times: 1 });
        };
        if ranks == 1 {
            return;
        }
        let blocks = self.model.blocks();
        for run in chunks_of(self.stage(), self.arrangement, blocks) {
            if run.end < blocks {
                one(When::Forward, run.end);
            }
            if run.start > 0 {
                one(When::Backward, run.start);
            }
        }
    }
}
