//! What is sent to keep ranks alike: gradients, and sharded weights.

use super::{BUCKET_VALUES, Kind, Purpose, Sender, Transfer, When, talking};
use crate::layout::parameters::{LowRank, Part, Place, share};
use dtrain_protocol::{Axis, Channel, wire};
use dtrain_recipes::{Compression, Model, ZeroStage};

/// Parameters of a part that are sharded among the same ranks.
#[derive(Clone, Copy, Debug)]
struct Pack {
    /// Of a shard group, and of those that hold the same shard.
    channels: [Channel; 2],
    /// How many these are.
    ranks: [u32; 2],
    /// Values of what one rank keeps.
    block: u64,
}

impl Sender<'_> {
    /// What is sent to keep ranks alike, and the figures: the same whatever the micro-batches.
    pub(crate) fn state(&self, tell: impl FnMut(Transfer)) {
        let tell = &mut talking(tell);
        self.whole(tell);
        let held = self.parts.stage(self.arrangement, self.stage()).all();
        let is_spread = self.degree(Axis::Expert) > 1;
        if let Compression::PowerSgd { rank } = self.arrangement.sync.compress {
            self.factors(rank, tell);
        } else if self.arrangement.zero == ZeroStage::Zero0 {
            let common = if is_spread { held.dense } else { held.all() };
            self.buckets(Channel::Replicas, self.arrangement.replicas(), common, tell);
            // Ranks along the expert axis hold other experts.
            let replicas = self.degree(Axis::Context) * self.degree(Axis::Data);
            let own = if is_spread { held.experts } else { 0 };
            self.buckets(Channel::ExpertReplicas, replicas, own, tell);
        } else {
            self.parts.units(self.arrangement, self.stage(), |unit, place, count| {
                self.shards(unit, place, count, tell);
            });
        }
        self.tied(tell);
        self.figures(tell);
    }

    /// In sequence mode each tensor-parallel rank saw a part of the sequence only; so gradients of what is whole on all
    /// of them are summed, in one message, of shards those that the rank keeps.
    fn whole(&self, tell: &mut impl FnMut(Transfer)) {
        if !matches!(self.model, Model::Decoder(_)) || !self.arrangement.sequence {
            return;
        }
        let ((index, shard), mut values) = (self.shard(), 0);
        self.parts.units(self.arrangement, self.stage(), |unit, _, count| {
            values += count * unit.whole_of(index, shard);
        });
        tell(Transfer {
            purpose: Purpose::Tensor,
            when: When::Step,
            kind: Kind::AllReduce,
            channel: Channel::Tensor,
            ranks: self.degree(Axis::Tensor),
            values,
            times: 1,
        });
    }

    /// Which part of the state of the replicas the rank keeps, of how many.
    fn shard(&self) -> (u32, u32) {
        match self.arrangement.zero {
            ZeroStage::Zero0 => (0, 1),
            ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3 => {
                (self.index(Channel::Shard), self.arrangement.shard)
            }
        }
    }

    /// Sums of whole buckets and of what is left.
    fn buckets(&self, channel: Channel, ranks: u32, values: u64, tell: &mut impl FnMut(Transfer)) {
        let sync = self.arrangement.sync;
        let (purpose, n) = (Purpose::Gradients, u64::from(ranks));
        let when = if sync.local.is_some() { When::Meeting } else { When::LastBackward };
        for (bucket, times) in [(BUCKET_VALUES, values / BUCKET_VALUES), (values % BUCKET_VALUES, 1)] {
            let mut one =
                |kind, values| tell(Transfer { purpose, when, kind, channel, ranks, values, times });
            match sync.compress {
                Compression::None | Compression::PowerSgd { .. } => one(Kind::AllReduce, bucket),
                _ if bucket == 0 => {}
                Compression::F16 | Compression::Bf16 => {
                    one(Kind::AllToAll, n * wire::half_block(bucket, ranks));
                    one(Kind::AllGather, n * wire::half_block(bucket, ranks));
                }
                // Each with its place.
                Compression::TopK { keep } => one(Kind::AllGather, n * 2 * wire::largest(bucket, keep)),
            }
        }
    }

    /// Factors of low rank, the second after the first; what has none travels with the first.
    fn factors(&self, rank: u32, tell: &mut impl FnMut(Transfer)) {
        let sync = self.arrangement.sync;
        let mut all = LowRank::default();
        self.parts.units(self.arrangement, self.stage(), |unit, _, count| {
            let LowRank { rows, columns, whole } = unit.low_rank(rank);
            all.rows += count * rows;
            all.columns += count * columns;
            all.whole += count * whole;
        });
        for values in [all.rows + all.whole, all.columns] {
            tell(Transfer {
                purpose: Purpose::Gradients,
                when: if sync.local.is_some() { When::Meeting } else { When::Step },
                kind: Kind::AllReduce,
                channel: Channel::Replicas,
                ranks: self.arrangement.replicas(),
                values,
                times: 1,
            });
        }
    }

    /// `count` parts of the model, whose state `shard` replicas share (Rajbhandari et al. 2020).
    fn shards(&self, unit: &Part, place: Place, count: u64, tell: &mut impl FnMut(Transfer)) {
        let (all, shard) = (self.arrangement.replicas(), self.arrangement.shard);
        let common = Pack {
            channels: [Channel::Shard, Channel::AcrossShards],
            ranks: [shard, all / shard],
            block: unit.block(shard),
        };
        self.pack(&common, place, count, tell);
        if unit.values.experts == 0 {
            return;
        }
        // Groups that hold unlike many of an expert are not run.
        let own = self.arrangement.expert_shard().unwrap_or(1);
        let across = all / self.degree(Axis::Expert) / own;
        let channels = [Channel::ExpertShard, Channel::AcrossExpertShards];
        let experts = Pack { channels, ranks: [own, across], block: unit.expert_block(own) };
        self.pack(&experts, place, count, tell);
    }

    /// As [`Sender::shards`], of what travels together.
    fn pack(&self, pack: &Pack, place: Place, count: u64, tell: &mut impl FnMut(Transfer)) {
        let (zero, Pack { channels: [inside, across], ranks: [shard, groups], block }) =
            (self.arrangement.zero, *pack);
        let mut within = |purpose, when, kind, block| {
            let (channel, ranks) = (inside, shard);
            let values = block * u64::from(shard);
            tell(Transfer { purpose, when, kind, channel, ranks, values, times: count });
        };
        // Gradients of which only the shard is kept cannot wait for the last micro-batch.
        let reduced = if zero == ZeroStage::Zero1 { When::LastBackward } else { When::Backward };
        within(Purpose::Gradients, reduced, Kind::ReduceScatter, block);
        if zero == ZeroStage::Zero3 {
            within(Purpose::Weights, When::Forward, Kind::AllGather, block);
            match place {
                Place::Embedding | Place::Block => {
                    within(Purpose::Weights, When::Backward, Kind::AllGather, block);
                }
                // Its backward follows its forward.
                Place::Head => {}
                Place::TiedHead => {
                    let embedding = self.parts.embedding().block(shard);
                    within(Purpose::Weights, When::Forward, Kind::AllGather, embedding);
                }
            }
        } else {
            within(Purpose::Weights, When::Step, Kind::AllGather, block);
        }
        // Groups that hold the same shards sum them among each other.
        tell(Transfer {
            purpose: Purpose::Gradients,
            when: When::Step,
            kind: Kind::AllReduce,
            channel: across,
            ranks: groups,
            values: block,
            times: count,
        });
    }

    /// The first and the last stage give each other their gradients of a tied embedding, or of what they own of them.
    fn tied(&self, tell: &mut impl FnMut(Transfer)) {
        let shared = self.parts.stage(self.arrangement, self.stage()).shared;
        let (index, shard) = self.shard();
        let owned = share(shared, index, shard);
        tell(Transfer {
            purpose: Purpose::Tied,
            when: When::Step,
            kind: Kind::Message,
            channel: Channel::Pipeline,
            ranks: self.degree(Axis::Pipeline),
            values: owned,
            times: 1,
        });
    }
}
