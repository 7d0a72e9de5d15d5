//! Random models and random layouts.

use super::way::shards_evenly;
use super::*;
use std::num::NonZeroU32;

/// Possible parameters of a block: name and number of dimensions.
const NAMES: [(&str, usize); 8] = [
    ("scale", 0),
    ("norm.weight", 1),
    ("attention.q.bias", 1),
    ("attention.q.weight", 2),
    ("ffn.down.weight", 2),
    ("convolution.weight", 3),
    ("experts.up.weight", 3),
    ("experts.down.weight", 3),
];

/// Random numbers that follow from a seed.
pub(super) struct Dice {
    pub(super) seed: u64,
    pub(super) thrown: u64,
}

impl Dice {
    /// Returns a number below `sides`.
    fn below(&mut self, sides: u64) -> u64 {
        self.thrown += 1;
        splitmix64(self.seed, self.thrown) % sides
    }

    pub(super) fn model(&mut self) -> Vec<Parameter> {
        let mut shape = |dimensions: usize| (0..dimensions).map(|_| 1 + self.below(7)).collect::<Vec<_>>();
        let (embedding, head) = (shape(2), shape(2));
        let mut model = Vec::new();
        for index in 0..BLOCKS {
            let (short, dimensions) = NAMES[self.below(NAMES.len() as u64) as usize];
            let shape = (0..dimensions).map(|_| 1 + self.below(7)).collect();
            model.push(Parameter {
                name: format!("blocks.{index}.{short}"),
                shape,
                block: Place::Block(index),
            });
        }
        let is_tied = self.below(2) == 0;
        let block = if is_tied { Place::FirstAndLast } else { Place::First };
        model.push(Parameter { name: "embedding.weight".into(), shape: embedding, block });
        if !is_tied {
            model.push(Parameter { name: "head.weight".into(), shape: head, block: Place::Last });
        }
        model
    }

    /// Returns a random layout of up to eight ranks, along any axes.
    pub(super) fn way(&mut self) -> Way {
        let mut degrees = [1u32; 5];
        let mut ranks = 1 + self.below(8);
        for prime in [2, 3, 5, 7] {
            while ranks.is_multiple_of(prime) {
                ranks /= prime;
                degrees[self.below(5) as usize] *= prime as u32;
            }
        }
        let [tensor, context, expert, data, pipeline] =
            degrees.map(|degree| NonZeroU32::new(degree).expect("degrees start at one"));
        let layout = Layout { tensor, context, expert, data, pipeline };
        let arrangement = Arrangement { layout, ..Arrangement::SINGLE };
        let mut shards: Vec<_> =
            (1..=8).filter(|shard| arrangement.replicas().is_multiple_of(*shard)).collect();
        shards.retain(|shard| shards_evenly(&Arrangement { shard: *shard, ..arrangement }));
        let shard = shards[self.below(shards.len() as u64) as usize];
        let zero = [ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3];
        let zero = zero[self.below(4) as usize];
        let stages = (0..BLOCKS).map(|_| self.below(u64::from(pipeline.get())) as u32).collect();
        Way { arrangement: Arrangement { zero, shard, ..arrangement }, stages }
    }
}
