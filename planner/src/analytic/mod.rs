//! The analytic cost model: predicts step time and memory of a transformer on unmeasured hardware, from data
//! sheets, engine profiles and formulas.
//!
//! A formula is a free function in the file named after its quantity. Constants are data: `data/engines.toml`
//! (software), `data/constants.toml` (general), and the tables of [`crate::hardware`].
//! `docs/cost-model.md` explains them with their sources. Measured rates ([`crate::rates::speeds`]) take
//! precedence.
//!
//! Counts are `f64` too, as formulas multiply them.

mod adapters;
pub mod collective;
pub mod constants;
pub mod device_throughput;
pub mod experience;
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
mod run_properties;
pub mod search;
pub mod site_calibration;
pub mod software;
pub mod software_profile;
pub mod stage_partition;
mod state;
pub mod step;
pub mod topology;
pub mod transformer;
pub mod uncertainty;

pub use adapters::{AdaptedMatrices, AdapterDims};
pub use collective::{GroupTopology, Interconnect};
pub use constants::Constants;
pub use device_throughput::{DeviceThroughput, MatmulPrecision};
pub use experience::Experience;
pub use layer::LayerTimes;
pub use memory::{PeakMemory, StageLoad};
pub use software::Software;
pub use stage_partition::StagePartition;
pub use step::{MicroBatchTimes, StepTimes};
pub use transformer::{ExpertDims, LatentDims, Transformer, WindowDims};
pub use uncertainty::MissingInputs;

use crate::engine::AttentionKernel;
use dtrain_protocol::{Arrangement, Layout};
use dtrain_recipes::{Offload, ZeroStage};
use serde::Serialize;
use std::num::NonZeroU32;

/// A layout with its batch size. Its methods return degrees as `f64`, for formulas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepConfig {
    /// Distribution of the work among the ranks.
    #[serde(flatten)]
    pub arrangement: Arrangement,
    /// Samples per micro-batch.
    pub micro_batch: u32,
    /// Samples per step.
    pub batch: u32,
}

impl StepConfig {
    /// Returns the configuration with the given degrees. As many as possible of the `expert` ranks are
    /// replicas; the others are tensor- or context-parallel ranks ([`Arrangement::expert_fold`]). `None` if
    /// the experts cannot be spread so.
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

    /// Returns the degrees of the layout as whole numbers.
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

    /// Returns the tensor-parallel degree.
    pub fn tensor(&self) -> f64 {
        self.arrangement.layout.tensor.get().into()
    }

    /// Returns the number of pipeline stages.
    pub fn pipeline(&self) -> f64 {
        self.arrangement.layout.pipeline.get().into()
    }

    /// Returns the number of chunks (runs of layers) per stage; more than 1 for interleaved schedules.
    pub fn chunks(&self) -> f64 {
        self.arrangement.chunks.into()
    }

    /// Returns the context-parallel degree.
    pub fn context(&self) -> f64 {
        self.arrangement.layout.context.get().into()
    }

    /// Returns the expert-parallel degree.
    pub fn expert(&self) -> f64 {
        (self.arrangement.layout.expert.get() * self.arrangement.expert_fold).into()
    }

    /// Returns the tensor-parallel degree within an expert: 1 if experts are folded over the tensor-parallel
    /// ranks.
    pub fn expert_tensor(&self) -> f64 {
        if self.arrangement.expert_fold > 1 { 1.0 } else { self.tensor() }
    }

    /// Returns the data-parallel degree of all but experts; each replica reads samples of its own.
    pub fn data(&self) -> f64 {
        self.arrangement.layout.readers().into()
    }

    /// Returns the number of ranks that hold the same weights, experts aside.
    pub fn replicas(&self) -> f64 {
        self.arrangement.replicas().into()
    }

    /// Returns the number of ranks that hold the same experts.
    pub fn expert_replicas(&self) -> f64 {
        (self.replicas() * self.tensor() / (self.expert() * self.expert_tensor())).max(1.0)
    }

    /// Returns the number of replicas among which state is sharded; 1 without ZeRO.
    pub fn shard(&self) -> f64 {
        if self.arrangement.zero == ZeroStage::Zero0 { 1.0 } else { self.arrangement.shard.into() }
    }

    /// Returns the number of ranks among which the state of an expert is sharded.
    pub fn expert_shard(&self) -> f64 {
        match self.shard() {
            shard if shard <= 1.0 => 1.0,
            shard => (shard * self.expert_replicas() / self.replicas()).max(1.0),
        }
    }

    /// Returns the number of samples per micro-batch.
    pub fn micro(&self) -> f64 {
        self.micro_batch.into()
    }

    /// Returns the number of samples per step.
    pub fn batch(&self) -> f64 {
        self.batch.into()
    }

    /// Returns the number of micro-batches per replica and step.
    pub fn micro_batches(&self) -> f64 {
        (self.batch() / (self.data() * self.micro())).max(1.0)
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> f64 {
        self.arrangement.layout.world().into()
    }

    /// Returns the share of the layers that recompute.
    pub fn recompute_share(&self) -> f64 {
        1.0 / f64::from(self.arrangement.recompute_every)
    }

    /// Returns `true` if weights are gathered for each pass: from the other ranks (ZeRO-3), or from host
    /// memory. In a pipeline they stay gathered.
    pub fn gathers_layers(&self) -> bool {
        let is_apart = self.arrangement.zero == ZeroStage::Zero3 || self.is_offloaded();
        is_apart && self.pipeline() <= 1.0
    }

    /// Returns `true` if weights are in host memory.
    pub fn is_offloaded(&self) -> bool {
        self.arrangement.state.offload == Offload::All
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
    /// Number of pipeline stages.
    pub pipeline: u32,
    /// Data-parallel degree of all parameters but those of experts.
    pub data: u32,
}

impl Degrees {
    /// Degrees of a single rank: 1 along each axis.
    pub const ONE: Self = Self { tensor: 1, context: 1, expert: 1, pipeline: 1, data: 1 };
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// All inputs of the cost formulas of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'a> {
    /// Dimensions of the model.
    pub model: &'a Transformer,
    /// Layout and batch size.
    pub config: StepConfig,
    /// Cost profile of the engine.
    pub engine: Software,
    /// Sustained throughput of one device.
    pub device: DeviceThroughput,
    /// Links between the devices.
    pub links: Interconnect,
    /// Implementation of attention.
    pub kernel: AttentionKernel,
    /// Number format of the products in linear layers.
    pub products: MatmulPrecision,
    /// Constants of the cost model.
    pub constants: &'a Constants,
}

impl StepInputs<'_> {
    /// Returns the constants that depend on neither hardware nor engine.
    pub fn general(&self) -> &constants::GeneralConstants {
        &self.constants.general
    }

    /// Returns `true` if gradients are reduce-scattered after each micro-batch (ZeRO-2). In a pipeline, only
    /// dtrain's own worker does so; others keep them until the last micro-batch.
    pub fn scatters_each_micro_batch(&self) -> bool {
        let is_kept =
            self.config.pipeline() > 1.0 && self.engine.style != crate::engine::SoftwareStyle::Dtrain;
        self.config.arrangement.zero == ZeroStage::Zero2 && !is_kept
    }

    /// Returns the number of tokens per rank and micro-batch.
    pub fn tokens(&self) -> f64 {
        self.config.micro() * self.model.sequence / self.config.context()
    }

    /// Returns the number of tokens per rank between split matrices, which sequence parallelism divides.
    pub fn tokens_between(&self) -> f64 {
        if self.config.arrangement.sequence { self.tokens() / self.config.tensor() } else { self.tokens() }
    }
}
