//! The analytic cost model: predicts step time and memory of a transformer on unmeasured hardware, from data
//! sheets, engine profiles and formulas.
//!
//! A formula is a free function in the file named after its quantity. Constants are data: `data/engines.toml`
//! (software), `data/constants.toml` (general), and the tables of [`crate::hardware`].
//! `docs/cost-model.md` explains them with their sources. Measured rates ([`crate::rates::speeds`]) take
//! precedence.
//!
//! Counts are `f64` too, as formulas multiply them.

pub mod collective;
pub mod constants;
pub mod device_throughput;
mod flops;
mod gradient_sync;
pub mod head_and_embedding;
pub mod heterogeneous;
pub mod layer;
mod local_parameters;
pub mod matmul;
pub mod memory;
mod overlap;
mod recompute;
pub mod search;
pub mod site_calibration;
pub mod software;
pub mod software_profile;
pub mod stage_partition;
pub mod step;
pub mod topology;
pub mod transformer;
pub mod uncertainty;

pub use collective::{GroupTopology, Interconnect};
pub use constants::Constants;
pub use device_throughput::{DeviceThroughput, MatmulPrecision};
pub use layer::LayerTimes;
pub use memory::{PeakMemory, StageLoad};
pub use software::Software;
pub use stage_partition::StagePartition;
pub use step::{MicroBatchTimes, StepTimes};
pub use transformer::{ExpertDims, LatentDims, Transformer, WindowDims};
pub use uncertainty::MissingInputs;

use crate::engine::AttentionKernel;
use dtrain_protocol::{Arrangement, Layout};
use dtrain_recipes::ZeroStage;
use serde::Serialize;
use std::num::NonZeroU32;

/// A layout with its batch. Its degrees are returned as `f64`, for formulas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepConfig {
    /// Arrangement of work among the ranks.
    #[serde(flatten)]
    pub arrangement: Arrangement,
    /// Samples per micro-batch.
    pub micro_batch: u32,
    /// Samples per step.
    pub batch: u32,
}

impl StepConfig {
    /// Returns the configuration with these degrees. As many as possible of the `expert` ranks are replicas;
    /// the others are tensor- or context-parallel ranks ([`Arrangement::expert_fold`]). `None` if the experts
    /// cannot be spread so.
    pub fn with_degrees(self, degrees: Degrees, folded: bool) -> Option<Self> {
        let Degrees { tensor, context, expert, pipeline, data } = degrees;
        let fold = if folded { common_divisor(expert, tensor * context) } else { 1 };
        let among = expert / fold;
        if !data.is_multiple_of(among) {
            return None;
        }
        let n = NonZeroU32::new;
        let layout = Layout {
            tensor: n(tensor)?,
            context: n(context)?,
            expert: n(among)?,
            data: n(data / among)?,
            pipeline: n(pipeline)?,
        };
        let arrangement = Arrangement { layout, expert_fold: fold, ..self.arrangement };
        Some(Self { arrangement, ..self })
    }

    /// Returns its degrees as whole numbers.
    pub fn degrees(&self) -> Degrees {
        let layout = &self.arrangement.layout;
        Degrees {
            tensor: layout.tensor.get(),
            context: layout.context.get(),
            expert: layout.expert.get() * self.arrangement.expert_fold,
            pipeline: layout.pipeline.get(),
            data: layout.readers(),
        }
    }

    /// Tensor-parallel degree.
    pub fn tensor(&self) -> f64 {
        self.arrangement.layout.tensor.get().into()
    }

    /// Number of pipeline stages.
    pub fn pipeline(&self) -> f64 {
        self.arrangement.layout.pipeline.get().into()
    }

    /// Chunks (runs of layers) per stage; more than 1 for interleaved schedules.
    pub fn chunks(&self) -> f64 {
        self.arrangement.chunks.into()
    }

    /// Context-parallel degree.
    pub fn context(&self) -> f64 {
        self.arrangement.layout.context.get().into()
    }

    /// Expert-parallel degree.
    pub fn expert(&self) -> f64 {
        (self.arrangement.layout.expert.get() * self.arrangement.expert_fold).into()
    }

    /// Tensor-parallel degree within an expert: 1 if experts are folded over these ranks.
    pub fn expert_tensor(&self) -> f64 {
        if self.arrangement.expert_fold > 1 { 1.0 } else { self.tensor() }
    }

    /// Data-parallel degree of all but experts; each replica reads samples of its own.
    pub fn data(&self) -> f64 {
        self.arrangement.layout.readers().into()
    }

    /// Ranks with the same weights, experts aside.
    pub fn replicas(&self) -> f64 {
        self.arrangement.replicas().into()
    }

    /// Ranks with the same experts.
    pub fn expert_replicas(&self) -> f64 {
        (self.replicas() * self.tensor() / (self.expert() * self.expert_tensor())).max(1.0)
    }

    /// Replicas among which state is sharded; 1 without ZeRO.
    pub fn shard(&self) -> f64 {
        if self.arrangement.zero == ZeroStage::Zero0 { 1.0 } else { self.arrangement.shard.into() }
    }

    /// Ranks among which the state of an expert is sharded.
    pub fn expert_shard(&self) -> f64 {
        match self.shard() {
            shard if shard <= 1.0 => 1.0,
            shard => (shard * self.expert_replicas() / self.replicas()).max(1.0),
        }
    }

    /// Samples per micro-batch.
    pub fn micro(&self) -> f64 {
        self.micro_batch.into()
    }

    /// Samples per step.
    pub fn batch(&self) -> f64 {
        self.batch.into()
    }

    /// Micro-batches per replica and step.
    pub fn micro_batches(&self) -> f64 {
        (self.batch() / (self.data() * self.micro())).max(1.0)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> f64 {
        self.arrangement.layout.world().into()
    }

    /// Share of the layers that recompute.
    pub fn recompute_share(&self) -> f64 {
        1.0 / f64::from(self.arrangement.recompute_every)
    }

    /// Returns `true` if weights are gathered for each pass (ZeRO-3). In a pipeline they stay gathered.
    pub fn gathers_layers(&self) -> bool {
        self.arrangement.zero == ZeroStage::Zero3 && self.pipeline() <= 1.0
    }

    /// Returns `true` if gradients are reduce-scattered after each micro-batch (ZeRO-2).
    pub fn scatters_each_micro_batch(&self) -> bool {
        self.arrangement.zero == ZeroStage::Zero2
    }
}

/// Degrees of parallelism along all axes; expert-parallel ranks are counted within the other axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Tensor-parallel degree.
    pub tensor: u32,
    /// Context-parallel degree.
    pub context: u32,
    /// Expert-parallel degree.
    pub expert: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Data-parallel degree of all but experts.
    pub data: u32,
}

impl Degrees {
    /// A single rank.
    pub const ONE: Self = Self { tensor: 1, context: 1, expert: 1, pipeline: 1, data: 1 };
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// All inputs of the cost formulas.
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'a> {
    /// Dimensions of the model.
    pub model: &'a Transformer,
    /// Layout and batch.
    pub config: StepConfig,
    /// Cost profile of the engine.
    pub engine: Software,
    /// Throughput of one device.
    pub device: DeviceThroughput,
    /// Links between the devices.
    pub links: Interconnect,
    /// Attention kernel.
    pub kernel: AttentionKernel,
    /// Number format of linear layers.
    pub products: MatmulPrecision,
    /// Constants of the cost model.
    pub constants: &'a Constants,
}

impl StepInputs<'_> {
    /// Returns the constants independent of hardware and engine.
    pub fn general(&self) -> &constants::GeneralConstants {
        &self.constants.general
    }

    /// Tokens per rank and micro-batch.
    pub fn tokens(&self) -> f64 {
        self.config.micro() * self.model.sequence / self.config.context()
    }

    /// Tokens per rank between split matrices: fewer with sequence parallelism.
    pub fn tokens_between(&self) -> f64 {
        if self.config.arrangement.sequence { self.tokens() / self.config.tensor() } else { self.tokens() }
    }
}
