//! What a transformer will cost on hardware and under engines that nobody measured: from data sheets, profiles and formulas.
//!
//! A formula is a free function of values in the file named after its quantity; constants are data, in three kinds of
//! files: `data/gpus.toml` and `generations.toml` (hardware), `engines.toml` (software), `constants.toml` (neither).
//! `docs/cost-model.md` explains them with their sources. Rates that were measured ([`crate::speeds`]) win over this.
//!
//! Numbers are `f64` also where they count things: what is priced here is multiplied, never stored.

pub mod collective;
pub mod constants;
pub mod doubt;
pub mod ends;
pub mod engine;
pub mod hardware;
pub mod layer;
pub mod memory;
pub mod mixed;
pub mod product;
pub mod search;
pub mod site;
pub mod step;
pub mod transformer;

pub use collective::{Group, Links};
pub use constants::Constants;
pub use doubt::Unknown;
pub use engine::{Engine, Style};
pub use hardware::{Device, Gpu, Kernel, Products};
pub use layer::Layer;
pub use memory::{Peak, Stage};
pub use step::{Step, Unit};
pub use transformer::{Experts, Latent, Transformer, Window};

use dtrain_recipes::{PipelineSchedule, ZeroStage};
use serde::Serialize;

/// How the work of a step is cut among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cut {
    /// Ranks that share a matrix.
    pub tensor: f64,
    /// Stages of a pipeline.
    pub pipeline: f64,
    /// Order of the passes in the pipeline.
    pub schedule: PipelineSchedule,
    /// Runs of layers of each stage: 1, or more where they are interleaved.
    pub chunks: f64,
    /// Ranks that share a sequence.
    pub context: f64,
    /// Ranks that share a layer's experts; they are among those of the data and context axes.
    pub expert: f64,
    /// Replicas of all that is no expert.
    pub data: f64,
    /// What the replicas shard among them.
    pub zero: ZeroStage,
    /// Whether ranks that share matrices hold a part of the sequence each between them.
    pub is_sequence_parallel: bool,
    /// What a backward computes again.
    pub again: Again,
    /// Samples of one forward pass.
    pub micro: f64,
    /// Samples of a step.
    pub batch: f64,
}

/// What a backward computes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Again {
    /// Nothing.
    Nothing,
    /// The core of attention: scores and their product with the values.
    Attention,
    /// Every second product, and all that is element-wise.
    EverySecondProduct,
    /// The whole layer.
    All,
}

impl Cut {
    /// Micro-batches of one replica in a step.
    pub fn micro_batches(&self) -> f64 {
        (self.batch / (self.data * self.micro)).max(1.0)
    }

    /// Ranks that hold the same weights, but for experts.
    pub fn replicas(&self) -> f64 {
        self.data * self.context
    }

    /// Ranks in all.
    pub fn ranks(&self) -> f64 {
        self.tensor * self.pipeline * self.context * self.data
    }

    /// Whether layers' weights are gathered anew for each pass. In a pipeline they stay gathered.
    pub fn gathers_layers(&self) -> bool {
        self.zero == ZeroStage::Zero3 && self.pipeline <= 1.0
    }
}

/// All that decides a step.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What is trained.
    pub model: &'a Transformer,
    /// How it is cut.
    pub cut: Cut,
    /// The engine.
    pub engine: Engine,
    /// What one device sustains.
    pub device: Device,
    /// What joins the devices.
    pub links: Links,
    /// How attention is computed.
    pub kernel: Kernel,
    /// Number format of linear layers.
    pub products: Products,
    /// The constants of the model.
    pub constants: &'a Constants,
}

impl Case<'_> {
    /// The constants that neither hardware nor engine changes.
    pub fn general(&self) -> &constants::General {
        &self.constants.general
    }

    /// Tokens that one rank computes in a micro-batch.
    pub fn tokens(&self) -> f64 {
        self.cut.micro * self.model.sequence / self.cut.context
    }

    /// Those of them that it holds between matrices that are cut.
    pub fn tokens_between(&self) -> f64 {
        if self.cut.is_sequence_parallel { self.tokens() / self.cut.tensor } else { self.tokens() }
    }

    /// Model FLOPs utilisation of a step that takes `seconds`: what the formulas of the model ask for, without anything
    /// that is computed again, over the peak of the data sheet.
    pub fn utilisation(&self, seconds: f64, peak: f64) -> f64 {
        let tokens = self.cut.batch * self.model.sequence;
        self.model.flops_per_token() * tokens / (seconds * self.cut.ranks() * peak)
    }
}
