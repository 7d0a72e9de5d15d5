//! Sums gradients over the replicas, as the arrangement tells.

use super::scatter::Scatter;
use super::{Buckets, Mesh};
use crate::gradients::Gradients;
use crate::stage::Stage;
use dtrain_protocol::{Arrangement, Failure};
use dtrain_recipes::ZeroStage;

/// The gradients of one step on their way to the other replicas.
#[derive(Debug)]
pub enum Reduction {
    /// Every replica gets all sums.
    Buckets(Buckets),
    /// Every replica gets the sums of its shards.
    Scatter(Scatter),
}

impl Reduction {
    /// For the gradients of `stage`.
    pub fn of(stage: &Stage, arrangement: &Arrangement) -> Self {
        match arrangement.zero {
            ZeroStage::Zero0 => Self::Buckets(Buckets::new(stage.parameters())),
            ZeroStage::Zero1 => Self::Scatter(Scatter::once(stage.shards())),
            ZeroStage::Zero2 | ZeroStage::Zero3 => Self::Scatter(Scatter::always(stage.shards())),
        }
    }

    /// Notes that a backward has added the gradients of `unit`; `is_final` when no other follows in this step.
    /// Sends what can leave.
    pub fn finish(&mut self, unit: usize, gradients: &mut Gradients, mesh: &Mesh, is_final: bool) {
        match self {
            Self::Buckets(buckets) if is_final && mesh.replicas().ranks() > 1 => {
                buckets.finish(unit, gradients, mesh.replicas());
            }
            Self::Buckets(_) => {}
            Self::Scatter(scatter) => scatter.finish(unit, gradients, mesh.sharding(), is_final),
        }
    }

    /// Waits for all sums and puts them into `gradients`.
    pub fn collect(&mut self, gradients: &mut Gradients, mesh: &Mesh) -> Result<(), Failure> {
        match self {
            Self::Buckets(buckets) if mesh.replicas().ranks() > 1 => {
                buckets.collect(gradients, mesh.replicas())
            }
            Self::Buckets(_) => Ok(()),
            Self::Scatter(scatter) => scatter.collect(gradients, mesh.sharding()),
        }
    }
}
