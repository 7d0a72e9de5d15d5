//! Sums gradients over the replicas, as the arrangement tells.

use super::scatter::Scatter;
use super::{Buckets, Mesh};
use crate::gradients::Gradients;
use crate::stage::Stage;
use dtrain_protocol::split::is_cut;
use dtrain_protocol::{Arrangement, Axis, Failure};
use dtrain_recipes::ZeroStage;

/// The gradients of one step on their way to the other replicas.
#[derive(Debug)]
pub enum Reduction {
    /// Every replica gets all sums.
    Buckets {
        /// Of what all replicas hold.
        common: Buckets,
        /// Of experts that are spread, which some replicas hold.
        experts: Buckets,
    },
    /// Every replica gets the sums of its shards.
    Scatter(Scatter),
}

impl Reduction {
    /// For the gradients of `stage`.
    pub fn of(stage: &Stage, arrangement: &Arrangement) -> Self {
        match arrangement.zero {
            ZeroStage::Zero0 => {
                let is_spread = arrangement.layout.degree(Axis::Expert) > 1;
                let is_own = |name: &str| is_spread && is_cut(name, Axis::Expert);
                let parameters = stage.parameters();
                Self::Buckets {
                    common: Buckets::new(parameters, |name| !is_own(name)),
                    experts: Buckets::new(parameters, is_own),
                }
            }
            ZeroStage::Zero1 => Self::Scatter(Scatter::once(stage.shards())),
            ZeroStage::Zero2 | ZeroStage::Zero3 => Self::Scatter(Scatter::always(stage.shards())),
        }
    }

    /// Notes that a backward has added the gradients of `unit`; `is_final` when no other follows in this step.
    /// Sends what can leave.
    pub fn finish(&mut self, unit: usize, gradients: &mut Gradients, mesh: &Mesh, is_final: bool) {
        match self {
            Self::Buckets { common, experts } if is_final => {
                if mesh.replicas().ranks() > 1 {
                    common.finish(unit, gradients, mesh.replicas());
                }
                if let Some(courier) = mesh.experts() {
                    experts.finish(unit, gradients, courier);
                }
            }
            Self::Buckets { .. } => {}
            Self::Scatter(scatter) => scatter.finish(unit, gradients, mesh, is_final),
        }
    }

    /// Waits for all sums and puts them into `gradients`.
    pub fn collect(&mut self, gradients: &mut Gradients, mesh: &Mesh) -> Result<(), Failure> {
        match self {
            Self::Buckets { common, experts } => {
                if mesh.replicas().ranks() > 1 {
                    common.collect(gradients, mesh.replicas())?;
                }
                mesh.experts().map_or(Ok(()), |courier| experts.collect(gradients, courier))
            }
            Self::Scatter(scatter) => scatter.collect(gradients, mesh),
        }
    }
}
