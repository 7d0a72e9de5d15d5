//! What a transformer will cost on hardware and under engines that nobody measured: from data sheets, profiles and formulas.
//!
//! A formula is a free function of values in the file named after its quantity; constants are data, in three kinds of
//! files: `data/gpus.toml` and `generations.toml` (hardware), `engines.toml` (software), `constants.toml` (neither).
//! `docs/cost-model.md` explains them with their sources. Rates that were measured ([`crate::rates::speeds`]) win over this.
//!
//! Numbers are `f64` also where they count things: what is priced here is multiplied, never stored.

pub mod fit;

pub mod collective;
pub mod constants;
pub mod engine;
pub mod gpu_names;
pub mod hardware;
pub mod head_and_embedding;
pub mod heterogeneous;
pub mod layer;
pub mod matmul;
pub mod memory;
pub mod search;
pub mod site_calibration;
pub mod stage_partition;
pub mod step;
pub mod topology;
pub mod transformer;
pub mod uncertainty;

pub use collective::{GroupTopology, Interconnect};
pub use constants::Constants;
pub use engine::{Software, SoftwareStyle};
pub use hardware::{AcceleratorKind, AttentionKernel, DeviceThroughput, GpuSpec, MatmulPrecision};
pub use layer::LayerTimes;
pub use memory::{PeakMemory, StageLoad};
pub use stage_partition::StagePartition;
pub use step::{MicroBatchTimes, StepTimes};
pub use transformer::{ExpertDims, LatentDims, Transformer, WindowDims};
pub use uncertainty::MissingInputs;

use dtrain_protocol::{Arrangement, Layout};
use dtrain_recipes::{Recompute, ZeroStage};
use serde::Serialize;
use std::num::NonZeroU32;

/// A layout with its batch: what the cost of a step follows from. Degrees are given as the `f64` that formulas multiply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepConfig {
    /// How work is arranged among the ranks.
    #[serde(flatten)]
    pub arrangement: Arrangement,
    /// Samples of one forward pass.
    pub micro_batch: u32,
    /// Samples of a step.
    pub batch: u32,
}

/// What a backward computes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recomputation {
    /// Nothing.
    Nothing,
    /// The core of attention: scores and their product with the values.
    Attention,
    /// Every second product, and all that is element-wise.
    EverySecondProduct,
    /// The whole layer.
    All,
}

impl StepConfig {
    /// The same with these degrees. Of the `expert` ranks that share a layer's experts as many as can be are replicas; the
    /// others are ranks that share matrices or sequences ([`Arrangement::expert_fold`]). `None` where the experts cannot
    /// be spread so.
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

    /// Its degrees, as they are searched.
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

    /// Ranks that share a matrix.
    pub fn tensor(&self) -> f64 {
        self.arrangement.layout.tensor.get().into()
    }

    /// Stages of a pipeline.
    pub fn pipeline(&self) -> f64 {
        self.arrangement.layout.pipeline.get().into()
    }

    /// Runs of layers of each stage: 1, or more where they are interleaved.
    pub fn chunks(&self) -> f64 {
        self.arrangement.chunks.into()
    }

    /// Ranks that share a sequence.
    pub fn context(&self) -> f64 {
        self.arrangement.layout.context.get().into()
    }

    /// Ranks that share a layer's experts.
    pub fn expert(&self) -> f64 {
        (self.arrangement.layout.expert.get() * self.arrangement.expert_fold).into()
    }

    /// Ranks that share the matrices of an expert: those that share all matrices, unless experts are folded over them.
    pub fn expert_tensor(&self) -> f64 {
        if self.arrangement.expert_fold > 1 { 1.0 } else { self.tensor() }
    }

    /// Replicas of all that is no expert, each with samples of its own.
    pub fn data(&self) -> f64 {
        self.arrangement.layout.readers().into()
    }

    /// Ranks that hold the same weights, but for experts.
    pub fn replicas(&self) -> f64 {
        self.arrangement.replicas().into()
    }

    /// Ranks that hold the same experts.
    pub fn expert_replicas(&self) -> f64 {
        (self.replicas() * self.tensor() / (self.expert() * self.expert_tensor())).max(1.0)
    }

    /// Replicas among which state is sharded: 1 where nothing is.
    pub fn shard(&self) -> f64 {
        if self.arrangement.zero == ZeroStage::Zero0 { 1.0 } else { self.arrangement.shard.into() }
    }

    /// Ranks that hold the same experts among which their state is sharded.
    pub fn expert_shard(&self) -> f64 {
        match self.shard() {
            shard if shard <= 1.0 => 1.0,
            shard => (shard * self.expert_replicas() / self.replicas()).max(1.0),
        }
    }

    /// Samples of one forward pass.
    pub fn micro(&self) -> f64 {
        self.micro_batch.into()
    }

    /// Samples of a step.
    pub fn batch(&self) -> f64 {
        self.batch.into()
    }

    /// Micro-batches of one replica in a step.
    pub fn micro_batches(&self) -> f64 {
        (self.batch() / (self.data() * self.micro())).max(1.0)
    }

    /// Ranks in all.
    pub fn ranks(&self) -> f64 {
        self.arrangement.layout.world().into()
    }

    /// Share of the layers whose backward computes again what is computed again.
    pub fn recompute_share(&self) -> f64 {
        1.0 / f64::from(self.arrangement.recompute_every)
    }

    /// Whether layers' weights are gathered anew for each pass. In a pipeline they stay gathered.
    pub fn gathers_layers(&self) -> bool {
        self.arrangement.zero == ZeroStage::Zero3 && self.pipeline() <= 1.0
    }

    /// Whether gradients are scattered after each micro-batch, as no rank has room for all of them.
    pub fn scatters_each_micro_batch(&self) -> bool {
        self.arrangement.zero == ZeroStage::Zero2
    }
}

/// Degrees along all axes, as they are searched: the ranks that share experts are among those of the other axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Ranks that share matrices.
    pub tensor: u32,
    /// Ranks that share a sequence.
    pub context: u32,
    /// Ranks that share experts.
    pub expert: u32,
    /// Stages.
    pub pipeline: u32,
    /// Replicas of all that is no expert, each with samples of its own.
    pub data: u32,
}

impl Degrees {
    /// One rank.
    pub const ONE: Self = Self { tensor: 1, context: 1, expert: 1, pipeline: 1, data: 1 };
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// All that decides a step.
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'a> {
    /// What is trained.
    pub model: &'a Transformer,
    /// Layout and batch.
    pub config: StepConfig,
    /// The engine.
    pub engine: Software,
    /// What one device sustains.
    pub device: DeviceThroughput,
    /// What joins the devices.
    pub links: Interconnect,
    /// How attention is computed.
    pub kernel: AttentionKernel,
    /// Number format of linear layers.
    pub products: MatmulPrecision,
    /// The constants of the model.
    pub constants: &'a Constants,
}

impl StepInputs<'_> {
    /// The constants that neither hardware nor engine changes.
    pub fn general(&self) -> &constants::GeneralConstants {
        &self.constants.general
    }

    /// Tokens that one rank computes in a micro-batch.
    pub fn tokens(&self) -> f64 {
        self.config.micro() * self.model.sequence / self.config.context()
    }

    /// Those of them that it holds between matrices that are cut.
    pub fn tokens_between(&self) -> f64 {
        if self.config.arrangement.sequence { self.tokens() / self.config.tensor() } else { self.tokens() }
    }

    /// What a backward of a layer computes again, where it does.
    pub fn recomputation(&self) -> Recomputation {
        match self.config.arrangement.recompute {
            Recompute::None => Recomputation::Nothing,
            Recompute::Selective => self.engine.style.selective(),
            Recompute::Full => Recomputation::All,
        }
    }

    /// Model FLOPs utilisation (MFU) of a step that takes `seconds`: what the formulas of the model ask for, without anything
    /// that is computed again, over the peak of the data sheet.
    pub fn model_flops_utilization(&self, seconds: f64, peak: f64) -> f64 {
        let tokens = self.config.batch() * self.model.sequence;
        self.model.flops_per_token() * tokens / (seconds * self.config.ranks() * peak)
    }
}
