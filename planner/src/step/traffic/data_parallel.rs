//! Traffic of data parallelism: reduced gradients, and gathered weights that are sharded.

use super::{
    BUCKET_VALUES, CollectiveKind, CommunicationOp, TrafficModel, TrafficPurpose, TransferPhase, skip_empty,
};
use crate::layout::parameters::{LayerKind, LayerParameters, LowRankCounts, share};
use dtrain_protocol::{Axis, Channel, communication_volume};
use dtrain_recipes::{Compression, Model, ZeroStage};

/// Parameters in one part of a model that are sharded among the same ranks.
#[derive(Clone, Copy, Debug)]
struct ShardedParameters {
    /// Channels of the shard group, and of the ranks that hold the same shard.
    channels: [Channel; 2],
    /// Number of ranks in each of the two channels.
    ranks: [u32; 2],
    /// Number of values that one rank keeps.
    block: u64,
}

impl TrafficModel<'_> {
    /// Calls `tell` with the transfers of the rank that do not depend on the micro-batch: gradients, weights
    /// and figures.
    pub(crate) fn state(&self, tell: impl FnMut(CommunicationOp)) {
        let tell = &mut skip_empty(tell);
        self.whole(tell);
        let held = self.parts.stage(self.arrangement, self.stage()).all();
        let is_spread = self.degree(Axis::Expert) > 1;
        if let Compression::PowerSgd { rank } = self.arrangement.sync.compress {
            self.factors(rank, tell);
        } else if self.arrangement.zero == ZeroStage::Zero0 {
            let common = if is_spread { held.dense } else { held.all() };
            self.buckets(Channel::Replicas, self.arrangement.replicas(), common, tell);
            // Ranks along the expert axis hold different experts.
            let replicas = self.degree(Axis::Context) * self.degree(Axis::Data);
            let own = if is_spread { held.experts } else { 0 };
            self.buckets(Channel::ExpertReplicas, replicas, own, tell);
        } else {
            self.parts.for_each_unit(self.arrangement, self.stage(), |unit, layer, count| {
                self.shards(unit, layer, count, tell);
            });
        }
        self.tied(tell);
        self.figures(tell);
    }

    /// Reports the sum of gradients that sequence parallelism needs for parameters whole on all
    /// tensor-parallel ranks, since each saw only a part of the sequence. It is one message; where gradients
    /// are sharded, it has only the rank's own shard.
    fn whole(&self, tell: &mut impl FnMut(CommunicationOp)) {
        if !matches!(self.model, Model::Decoder(_)) || !self.arrangement.sequence {
            return;
        }
        let ((index, shard), mut values) = (self.shard(), 0);
        self.parts.for_each_unit(self.arrangement, self.stage(), |unit, _, count| {
            values += count * unit.replicated_values(index, shard);
        });
        tell(CommunicationOp {
            purpose: TrafficPurpose::Tensor,
            when: TransferPhase::Step,
            kind: CollectiveKind::AllReduce,
            channel: Channel::Tensor,
            ranks: self.degree(Axis::Tensor),
            values,
            times: 1,
        });
    }

    /// Returns the index of the rank's shard among the replicas, and the number of shards.
    fn shard(&self) -> (u32, u32) {
        match self.arrangement.zero {
            ZeroStage::Zero0 => (0, 1),
            ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3 => {
                (self.index(Channel::Shard), self.arrangement.shard)
            }
        }
    }

    /// Reports the reductions of `values` gradients over the group of `channel`: one for each whole bucket,
    /// and one for the rest.
    fn buckets(&self, channel: Channel, ranks: u32, values: u64, tell: &mut impl FnMut(CommunicationOp)) {
        let sync = self.arrangement.sync;
        let (purpose, n) = (TrafficPurpose::Gradients, u64::from(ranks));
        let when = if sync.local.is_some() { TransferPhase::Meeting } else { TransferPhase::LastBackward };
        for (bucket, times) in [(BUCKET_VALUES, values / BUCKET_VALUES), (values % BUCKET_VALUES, 1)] {
            let mut one =
                |kind, values| tell(CommunicationOp { purpose, when, kind, channel, ranks, values, times });
            match sync.compress {
                Compression::None | Compression::PowerSgd { .. } => one(CollectiveKind::AllReduce, bucket),
                _ if bucket == 0 => {}
                Compression::F16 | Compression::Bf16 => {
                    one(CollectiveKind::AllToAll, n * communication_volume::fp16_block_values(bucket, ranks));
                    one(
                        CollectiveKind::AllGather,
                        n * communication_volume::fp16_block_values(bucket, ranks),
                    );
                }
                // Each value is sent with its index.
                Compression::TopK { keep } => {
                    one(CollectiveKind::AllGather, n * 2 * communication_volume::top_k_count(bucket, keep));
                }
            }
        }
    }

    /// Reports the reductions of the two low-rank factors, one after the other; uncompressed values are sent
    /// with the first.
    fn factors(&self, rank: u32, tell: &mut impl FnMut(CommunicationOp)) {
        let sync = self.arrangement.sync;
        let mut all = LowRankCounts::default();
        self.parts.for_each_unit(self.arrangement, self.stage(), |unit, _, count| {
            let LowRankCounts { rows, columns, whole } = unit.low_rank(rank);
            all.rows += count * rows;
            all.columns += count * columns;
            all.whole += count * whole;
        });
        for values in [all.rows + all.whole, all.columns] {
            tell(CommunicationOp {
                purpose: TrafficPurpose::Gradients,
                when: if sync.local.is_some() { TransferPhase::Meeting } else { TransferPhase::Step },
                kind: CollectiveKind::AllReduce,
                channel: Channel::Replicas,
                ranks: self.arrangement.replicas(),
                values,
                times: 1,
            });
        }
    }

    /// Reports the transfers of `count` equal parts of the model, whose state `shard` replicas share (ZeRO:
    /// Rajbhandari et al. 2020).
    fn shards(
        &self,
        unit: &LayerParameters,
        layer: LayerKind,
        count: u64,
        tell: &mut impl FnMut(CommunicationOp),
    ) {
        let (all, shard) = (self.arrangement.replicas(), self.arrangement.shard);
        let common = ShardedParameters {
            channels: [Channel::Shard, Channel::AcrossShards],
            ranks: [shard, all / shard],
            block: unit.block(shard),
        };
        self.pack(&common, layer, count, tell);
        if unit.values.experts == 0 {
            return;
        }
        // Groups that hold different numbers of an expert are not supported.
        let own = self.arrangement.expert_shard().unwrap_or(1);
        let across = all / self.degree(Axis::Expert) / own;
        let channels = [Channel::ExpertShard, Channel::AcrossExpertShards];
        let experts = ShardedParameters { channels, ranks: [own, across], block: unit.expert_block(own) };
        self.pack(&experts, layer, count, tell);
    }

    /// Reports the transfers of parameters that are sharded among the same ranks; see
    /// [`TrafficModel::shards`].
    fn pack(
        &self,
        pack: &ShardedParameters,
        layer: LayerKind,
        count: u64,
        tell: &mut impl FnMut(CommunicationOp),
    ) {
        let (zero, ShardedParameters { channels: [inside, across], ranks: [shard, groups], block }) =
            (self.arrangement.zero, *pack);
        let mut within = |purpose, when, kind, block| {
            let (channel, ranks) = (inside, shard);
            let values = block * u64::from(shard);
            tell(CommunicationOp { purpose, when, kind, channel, ranks, values, times: count });
        };
        // Sharded gradients cannot be accumulated until the last micro-batch.
        let reduced =
            if zero == ZeroStage::Zero1 { TransferPhase::LastBackward } else { TransferPhase::Backward };
        within(TrafficPurpose::Gradients, reduced, CollectiveKind::ReduceScatter, block);
        if zero == ZeroStage::Zero3 {
            within(TrafficPurpose::Weights, TransferPhase::Forward, CollectiveKind::AllGather, block);
            match layer {
                LayerKind::Embedding | LayerKind::Block => {
                    within(
                        TrafficPurpose::Weights,
                        TransferPhase::Backward,
                        CollectiveKind::AllGather,
                        block,
                    );
                }
                // Its backward follows its forward.
                LayerKind::Head => {}
                LayerKind::TiedHead => {
                    let embedding = self.parts.embedding().block(shard);
                    within(
                        TrafficPurpose::Weights,
                        TransferPhase::Forward,
                        CollectiveKind::AllGather,
                        embedding,
                    );
                }
            }
        } else {
            within(TrafficPurpose::Weights, TransferPhase::Step, CollectiveKind::AllGather, block);
        }
        // Ranks that hold the same shard sum it among each other.
        tell(CommunicationOp {
            purpose: TrafficPurpose::Gradients,
            when: TransferPhase::Step,
            kind: CollectiveKind::AllReduce,
            channel: across,
            ranks: groups,
            values: block,
            times: count,
        });
    }

    /// Reports the exchange of a tied embedding's gradients between the first and the last stage, or of the
    /// shards that the two own.
    fn tied(&self, tell: &mut impl FnMut(CommunicationOp)) {
        let shared = self.parts.stage(self.arrangement, self.stage()).shared;
        let (index, shard) = self.shard();
        let owned = share(shared, index, shard);
        tell(CommunicationOp {
            purpose: TrafficPurpose::Tied,
            when: TransferPhase::Step,
            kind: CollectiveKind::Message,
            channel: Channel::Pipeline,
            ranks: self.degree(Axis::Pipeline),
            values: owned,
            times: 1,
        });
    }
}
