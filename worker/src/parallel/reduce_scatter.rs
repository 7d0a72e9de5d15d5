//! Reduce-scatter of gradients: every rank of a shard group gets the sums of its shards, while backward
//! still computes.
//!
//! A bucket is sent when the backward of its unit is done: with ZeRO 1 once a step, with ZeRO 2 and 3 after
//! every micro-batch, because no rank has memory for all of them. A reduce-scatter of a bucket of `N` bytes
//! costs `N (n - 1) / n` bytes among the `n` ranks of the group. Groups that hold the same shards then sum
//! them by an all-reduce, once a step.

use crate::gradient_accumulation::Gradients;
use crate::mesh::{Mesh, ShardGroups};
use crate::zero::ZeroShards;
use dtrain_protocol::Failure;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most buckets in flight with ZeRO 1, whose gradients stay in place: enough to keep the queue busy.
const AHEAD: usize = 4;

/// The shard buckets of one step that are being reduced.
#[derive(Debug)]
pub struct ReduceScatter {
    shards: Arc<ZeroShards>,
    /// True if a bucket is sent after every micro-batch.
    always: bool,
    /// Buckets in flight, each with `true` if its sum will be complete.
    travelling: VecDeque<(usize, bool)>,
    /// Buckets whose shards are being summed with the other shard groups.
    across: VecDeque<usize>,
    failure: Option<Failure>,
}

impl ReduceScatter {
    /// Creates a reduction that sends every bucket once per step.
    pub(super) fn once(shards: &Arc<ZeroShards>) -> Self {
        let shards = Arc::clone(shards);
        Self { shards, always: false, travelling: VecDeque::new(), across: VecDeque::new(), failure: None }
    }

    /// Creates a reduction that sends every bucket after every micro-batch.
    pub(super) fn always(shards: &Arc<ZeroShards>) -> Self {
        Self { always: true, ..Self::once(shards) }
    }

    /// Records that a backward has added the gradients of `unit`, and starts to reduce-scatter its buckets.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `pack`.
    pub(super) fn finish(&mut self, unit: usize, gradients: &mut Gradients, mesh: &Mesh, is_final: bool) {
        if !(is_final || self.always) {
            return;
        }
        // A rank that stores only shards has memory for one bucket in flight and one being computed.
        let most = if self.always { 1 } else { AHEAD };
        for pack in self.shards.packs_of(unit).collect::<Vec<_>>() {
            while self.travelling.len() >= most {
                self.receive(gradients, mesh);
            }
            self.sharding(pack, mesh).inside().start_reduce_scatter(gradients.take_bucket(pack));
            self.travelling.push_back((pack, is_final));
        }
    }

    pub(super) fn collect(&mut self, gradients: &mut Gradients, mesh: &Mesh) -> Result<(), Failure> {
        while !self.travelling.is_empty() {
            self.receive(gradients, mesh);
        }
        for pack in std::mem::take(&mut self.across) {
            let across = self.sharding(pack, mesh).across();
            if let Some(across) = across.filter(|_| self.failure.is_none()) {
                gradients.replace(pack, &across.wait()?);
            }
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Waits for the oldest bucket in flight; a complete sum goes on to the other groups. A failure is stored
    /// until the end.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `pack`.
    fn receive(&mut self, gradients: &mut Gradients, mesh: &Mesh) {
        let Some((pack, is_final)) = self.travelling.pop_front() else { return };
        let sharding = self.sharding(pack, mesh);
        match sharding.inside().wait() {
            Ok(packed) => gradients.come_back(pack, packed),
            Err(failure) => {
                self.failure.get_or_insert(failure);
                return;
            }
        }
        if let (true, Some(across)) = (is_final, sharding.across()) {
            across.start_all_reduce(gradients.block(pack));
            self.across.push_back(pack);
        }
    }

    /// Returns the groups among which bucket `pack` is sharded.
    fn sharding<'m>(&self, pack: usize, mesh: &'m Mesh) -> &'m ShardGroups {
        mesh.sharding(self.shards.packs()[pack].replication())
    }
}

#[cfg(test)]
mod tests {
    use crate::comm::loopback;
    use crate::mesh::Mesh;
    use crate::network::ModelInput;
    use crate::parallel::GradientReduction;
    use crate::stage::{ModelShard, Stage};
    use burn::tensor::Device;
    use dtrain_protocol::{Arrangement, Layout, Pass, Rank};
    use dtrain_recipes::{Mlp, MlpActivation, Model, Recompute, ZeroStage};
    use std::num::NonZeroU32;
    use std::time::Duration;

    const RANKS: u32 = 4;

    /// Peak values of gradients and weights, and values of the whole model and of its largest bucket.
    struct BufferSizes {
        gradients: usize,
        weights: usize,
        whole: usize,
        largest: usize,
    }

    /// Runs a step of two micro-batches on one of the ranks.
    fn rooms(zero: ZeroStage, group: loopback::ThreadRank, rank: u32) -> BufferSizes {
        let model = Mlp { inputs: 32, hidden: vec![64; 12], classes: 8, activation: MlpActivation::Relu };
        let model = Model::Mlp(model);
        let layout = Layout::replicas(NonZeroU32::new(RANKS).expect("not zero"));
        let recompute = Recompute::Full;
        let arrangement = Arrangement { layout, zero, shard: RANKS, recompute, ..Arrangement::SINGLE };
        let mesh = Mesh::of(Box::new(group), &arrangement, Rank(rank)).expect("all are there");
        let (rank, partners) = (Rank(rank), mesh.partners().clone());
        let blocks = 0..12;
        let chunks = std::slice::from_ref(&blocks);
        let holding = ModelShard { model: &model, chunks, seed: 3, arrangement, rank, partners };
        let mut stage = Stage::of(&holding, &Device::flex()).expect("the model has these blocks");
        let mut reduction = GradientReduction::of(&stage, &arrangement);
        let values: Vec<_> = (0..64).map(|i| i as f32 / 64.0).collect();
        let samples = ModelInput::Rows { values: &values, classes: &[1, 2], samples: 2, width: 32 };
        stage.gradients().clear();
        let (mut gradients, mut weights) = (0, 0);
        for pass in (0..2).map(|micro| Pass { micro, chunk: 0 }) {
            drop(stage.forward(pass, None, &samples));
            weights = weights.max(stage.room());
            stage.backward(pass, None, 0.5, &mut |unit, found| {
                reduction.finish(unit, found, &mesh, pass.micro == 1);
                gradients = gradients.max(found.room());
            });
            weights = weights.max(stage.room());
        }
        reduction.collect(stage.gradients(), &mesh).expect("all are there");
        let whole = stage.parameters().last().map_or(0, |last| last.range.end);
        let largest =
            stage.shards().packs().iter().map(|pack| pack.length()).max().expect("it has parameters");
        BufferSizes { gradients, weights, whole, largest }
    }

    #[test]
    fn a_rank_has_room_for_its_shards_and_one_unit() {
        for zero in [ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3] {
            let groups = loopback::threads(RANKS, Duration::from_secs(20));
            let ranks = groups.into_iter().zip(0..);
            let threads: Vec<_> =
                ranks.map(|(group, rank)| std::thread::spawn(move || rooms(zero, group, rank))).collect();
            for thread in threads {
                let BufferSizes { gradients, weights, whole, largest } = thread.join().expect("no panic");
                // Padding is less than one value for each parameter.
                let shard = whole / RANKS as usize + 26;
                assert!(largest < whole / 8, "the model has many units");
                let expected = if zero == ZeroStage::Zero1 { whole } else { shard + largest };
                assert!(gradients <= expected, "{zero:?}: room for {gradients} gradients, not {expected}");
                let expected = if zero == ZeroStage::Zero3 { shard + largest } else { whole };
                assert!(weights <= expected, "{zero:?}: room for {weights} weights, not {expected}");
            }
        }
    }
}
