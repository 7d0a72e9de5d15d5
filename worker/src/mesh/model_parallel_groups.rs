//! Model-parallel groups: the ranks that take part in one rank's passes.

use super::AllGatherQueue;
use super::peers::{FirstFailure, Peers};
use crate::comm::{Communicator, loopback};

/// The groups that take part in one rank's passes, by axis.
#[derive(Clone, Debug)]
pub struct ModelParallelGroups {
    /// Group of the ranks that hold parts of the same matrices.
    pub tensor: Peers,
    /// Group of the ranks that hold parts of the same sequences.
    pub context: Peers,
    /// Group of the ranks that hold other experts.
    pub expert: Peers,
    /// Queue to the ranks that hold the other parts of the weights, if weights are sharded.
    pub weights: Option<AllGatherQueue>,
    /// Queue to the ranks that hold the other parts of the same experts' weights, if experts are distributed
    /// and weights are sharded.
    pub expert_weights: Option<AllGatherQueue>,
    /// True if the ranks of [`ModelParallelGroups::tensor`] hold parts of the sequence where matrices are
    /// not cut (sequence parallelism).
    pub sequence: bool,
}

impl ModelParallelGroups {
    /// Creates the groups of a rank without model parallelism, each of which has one rank.
    pub fn none() -> Self {
        let alone =
            || Peers::of(Communicator::staged(Box::new(loopback::SingleRank)), FirstFailure::default());
        let (tensor, context, expert) = (alone(), alone(), alone());
        Self { tensor, context, expert, weights: None, expert_weights: None, sequence: false }
    }

    /// Returns the seconds that this rank has spent communicating in these groups.
    pub fn waited(&self) -> f64 {
        let passes: f64 = [&self.tensor, &self.context, &self.expert].into_iter().map(Peers::waited).sum();
        passes + self.weights.iter().chain(&self.expert_weights).map(AllGatherQueue::waited).sum::<f64>()
    }
}
