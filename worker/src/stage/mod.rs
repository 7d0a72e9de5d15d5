//! Stage: the part of a model that one rank holds, with forward and backward of micro-batches, unit by unit.
//!
//! Every part is an autodiff graph of its own; the backward pass hands the gradient from one to the next.
//! So gradients of a part are final while earlier parts still compute, activations can be dropped and
//! recomputed, and a pipeline can cut anywhere. A stage sums gradients, and does not apply them.
//!
//! Parameters are flat tensors instead of `burn-nn` layers, because the optimizer, the buckets and the
//! checkpoints need contiguous ranges. Initial weights are a function of the seed, the name and the index
//! in the whole tensor, never of the layout.

mod parameters;
mod pass;
mod recompute;
mod sharded;
mod values;
mod weight_decay;

use crate::device;
use crate::gradient_accumulation::Gradients;
use crate::mesh::ModelParallelGroups;
use crate::model;
use crate::network::{
    LayerContext, ModelBuildError, ModelParameter, ModelPart, NeuralNetwork, ParameterSpec, initializer,
};
use crate::ops::{Arithmetic, DeferredWeightGrads, DocumentStarts, Implementation};
use crate::zero::ZeroShards;
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_protocol::{Arrangement, Neighbor, Pass, Rank};
use dtrain_recipes::{Model, PipelineSchedule, Precision, Recompute, ZeroStage};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub use crate::ops::{DeferredLossFigures, LossFigures};
use parameters::{ChunkParameters, FlatParameters, ParameterGroup, assemble};
pub use pass::LossWeights;
use recompute::SavedForBackward;
use sharded::ShardedWeights;

/// The output of a stage's forward for a micro-batch.
#[derive(Clone, Debug)]
pub enum ForwardOutput {
    /// Activation, to be sent to the next stage.
    Activation(Tensor<3>),
    /// Loss figures, from the stage that ends the model.
    Loss(DeferredLossFigures),
}

/// The reason why a stage cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The program cannot build the network of the model.
    #[error(transparent)]
    Unbuilt(#[from] ModelBuildError),
    /// The assigned blocks exceed those of the model.
    #[error("blocks {start}..{end} were assigned, but the model has {found}")]
    Blocks {
        /// First assigned block.
        start: u32,
        /// One after the last assigned block.
        end: u32,
        /// Number of blocks of the model.
        found: u32,
    },
}

/// The description of a rank's part of a model, and of the arrangement of its computation.
#[derive(Clone, Debug)]
pub struct ModelShard<'a> {
    /// The whole model.
    pub model: &'a Model,
    /// Range of blocks of each chunk, in the order of the model.
    pub chunks: &'a [Range<u32>],
    /// Seed of the initial weights.
    pub seed: u64,
    /// Arrangement of the work among all ranks.
    pub arrangement: Arrangement,
    /// Rank that holds the part.
    pub rank: Rank,
    /// Groups that take part in this rank's passes.
    pub partners: ModelParallelGroups,
}

/// A built part of a model, with its weights and gradients.
pub struct Stage {
    network: Box<dyn NeuralNetwork>,
    model: Model,
    layers: LayerContext,
    device: Device,
    recompute: Recompute,
    recompute_every: u32,
    units: Vec<ParameterGroup>,
    /// Range of blocks of each chunk.
    blocks: Vec<Range<u32>>,
    /// Range of units of each chunk.
    chunks: Vec<Range<usize>>,
    parameters: Vec<ModelParameter>,
    /// Frozen parameters, whole on every replica.
    frozen: Vec<ModelParameter>,
    shards: Arc<ZeroShards>,
    /// Whole values of each parameter; if weights are sharded, those not gathered now have no elements.
    values: Vec<Tensor<1>>,
    frozen_values: Vec<Tensor<1>>,
    /// Owned values of this rank, if weights are sharded.
    sharded: Option<ShardedWeights>,
    gradients: Gradients,
    kept: BTreeMap<Pass, Vec<SavedForBackward>>,
    /// Documents of the packed sequences of each pass whose backward is to come.
    documents: BTreeMap<Pass, DocumentStarts>,
    /// True if weight gradients are deferred to [`Stage::backward_weights`].
    splits: bool,
    /// Deferred weight gradients of each pass, part by part, last to first.
    left: BTreeMap<Pass, Vec<(usize, DeferredWeightGrads)>>,
    host: bool,
}

impl Stage {
    /// Builds blocks `blocks` of `model`, uncut, with initial weights that depend on `seed` and names alone.
    ///
    /// The stage begins with the embedding if `blocks` starts at 0, and ends with the head if it ends with
    /// the model. A tied head of a stage without the embedding has its own copy called `embedding.weight`.
    pub fn build(
        model: &Model,
        blocks: Range<u32>,
        seed: u64,
        precision: Precision,
        recompute: Recompute,
        device: &Device,
    ) -> Result<Self, StageError> {
        let arrangement = Arrangement { precision, recompute, ..Arrangement::SINGLE };
        let partners = ModelParallelGroups::none();
        Self::of(&ModelShard { model, chunks: &[blocks], seed, arrangement, rank: Rank(0), partners }, device)
    }

    /// Builds the part that `holding` describes, cut according to its arrangement, with the same initial
    /// weights as the uncut model.
    pub fn of(holding: &ModelShard<'_>, device: &Device) -> Result<Self, StageError> {
        let precision = holding.arrangement.precision;
        let by = Implementation::of(device, precision);
        let forgets_scores = holding.arrangement.recompute == Recompute::Selective;
        Self::with_arithmetic(holding, Arithmetic { by, precision, forgets_scores }, device)
    }

    pub(crate) fn with_arithmetic(
        holding: &ModelShard<'_>,
        arithmetic: Arithmetic,
        device: &Device,
    ) -> Result<Self, StageError> {
        let ModelShard { model, chunks, seed, arrangement, rank, partners } = holding;
        let mut network = model::build(model, *seed)?;
        for Range { start, end } in chunks.iter().cloned() {
            if start > end || end > network.blocks() {
                return Err(StageError::Blocks { start, end, found: network.blocks() });
            }
        }
        let device = device.clone().inner();
        let parts = chunks.iter().map(|blocks| parts(&*network, blocks.clone())).collect();
        network.drop_initial_values();
        let ChunkParameters { units, chunks, trained, frozen } =
            assemble(parts, &arrangement.layout, arrangement.layout.coord(*rank));
        let FlatParameters { parameters, initials } = trained;
        let shards = Arc::new(ZeroShards::of(arrangement, *rank, &parameters));
        let is_sharded = arrangement.zero == ZeroStage::Zero3;
        let sharded = is_sharded.then(|| ShardedWeights::new(&shards, partners, &units));
        let host = device::is_host(&device);
        let gradients = Gradients::new(&parameters, Arc::clone(&shards), arrangement.zero, &device);
        let layers = LayerContext::new(arithmetic, partners.clone(), device.clone());
        let mut stage = Self {
            network,
            model: (*model).clone(),
            layers,
            recompute: arrangement.recompute,
            recompute_every: arrangement.recompute_every,
            units,
            blocks: holding.chunks.to_vec(),
            chunks,
            values: vec![tensor(Vec::new(), &device); parameters.len()],
            frozen_values: vec![tensor(Vec::new(), &device); frozen.parameters.len()],
            device,
            parameters,
            frozen: frozen.parameters,
            shards,
            sharded,
            gradients,
            kept: BTreeMap::new(),
            documents: BTreeMap::new(),
            splits: arrangement.schedule == PipelineSchedule::ZeroBubble,
            left: BTreeMap::new(),
            host,
        };
        for (index, initial) in initials.into_iter().enumerate() {
            let ModelParameter { name, region, .. } = &stage.parameters[index];
            stage.set_values(index, initializer::values(&initial, *seed, name, region));
        }
        for (index, initial) in frozen.initials.into_iter().enumerate() {
            let ModelParameter { name, region, .. } = &stage.frozen[index];
            stage.set_frozen(index, initializer::values(&initial, *seed, name, region));
        }
        Ok(stage)
    }

    /// Sets the weight of the z-loss, which training adds to the loss of a decoder; 0 before.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a small number, which needs no more digits")]
    pub fn with_z_loss(mut self, weight: f64) -> Self {
        self.layers.z_loss = weight as f32;
        self
    }

    /// Returns the trained parameters, in flat order.
    pub fn parameters(&self) -> &[ModelParameter] {
        &self.parameters
    }

    /// Returns the frozen parameters, in flat order.
    pub fn frozen_parameters(&self) -> &[ModelParameter] {
        &self.frozen
    }

    /// Returns the shards of the parameters, of which this rank owns a part.
    pub fn shards(&self) -> &Arc<ZeroShards> {
        &self.shards
    }

    /// Returns the whole model, of which the stage holds a part.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the number of units of the stage; [`ModelParameter::unit`] counts them from 0.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Returns `true` if the stage's values are in host memory.
    pub fn is_on_host(&self) -> bool {
        self.host
    }

    /// Returns the device that the stage's values are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the index of the parameter that a tied head shares with the embedding, if this stage holds
    /// only one of the two: its gradient must be summed over the first and the last stage.
    pub fn tied_across_stages(&self) -> Option<usize> {
        let Model::Decoder(decoder) = &self.model else { return None };
        let has = |part| self.units.iter().any(|unit| unit.part == part);
        if !decoder.tied || has(ModelPart::First) == has(ModelPart::Head) {
            return None;
        }
        self.parameters.iter().position(|parameter| parameter.name == "embedding.weight")
    }

    /// Returns `true` if the stage includes the first part of the model.
    pub fn has_embedding(&self) -> bool {
        self.blocks.iter().any(|blocks| blocks.start == 0)
    }

    /// Returns the number of chunks of the stage.
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.chunks.len()).expect("chunks are few")
    }

    /// Returns `true` if chunk `chunk` is the first of the model.
    pub fn is_first(&self, chunk: u32) -> bool {
        self.blocks[chunk as usize].start == 0
    }

    /// Returns `true` if a forward through chunk `chunk` reads samples: inputs at the beginning of the
    /// model, or targets at its end.
    pub fn reads_samples(&self, chunk: u32) -> bool {
        let blocks = &self.blocks[chunk as usize];
        blocks.start == 0 || blocks.end == self.model.blocks()
    }

    /// Returns the shape of the activation that chunk `chunk` receives from the chunk before, or of the
    /// gradient from the chunk after, for `samples` samples.
    pub fn message_shape(&self, chunk: u32, from: Neighbor, samples: usize) -> [usize; 3] {
        let blocks = &self.blocks[chunk as usize];
        let boundary = match from {
            Neighbor::Previous => blocks.start,
            Neighbor::Next => blocks.end,
        };
        let ModelParallelGroups { tensor, context, sequence, .. } = &self.layers.partners;
        let parts = context.size() as usize * if *sequence { tensor.size() as usize } else { 1 };
        #[expect(clippy::cast_possible_truncation, reason = "sides of what lies in memory")]
        let [rows, width] = self.model.activation_at(boundary).map(|side| side as usize);
        [samples, rows / parts, width]
    }

    /// Returns `true` if the gradients are tensors of a device, rather than values in host memory.
    pub fn has_gradient_tensors(&self) -> bool {
        self.gradients.are_tensors()
    }

    /// Returns the gradients accumulated so far, for modification.
    pub fn gradients(&mut self) -> &mut Gradients {
        &mut self.gradients
    }
}

/// Returns `values` as a tensor on `device`.
fn tensor(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), device)
}

/// Returns the parts of `blocks` with their parameters, first to last.
fn parts(network: &dyn NeuralNetwork, blocks: Range<u32>) -> Vec<(ModelPart, Vec<ParameterSpec>)> {
    let first = (blocks.start == 0).then_some(ModelPart::First);
    let last = (blocks.end == network.blocks()).then_some(ModelPart::Head);
    let parts = first.into_iter().chain(blocks.map(ModelPart::Block)).chain(last);
    parts.map(|part| (part, network.parameters(part))).collect()
}

#[cfg(test)]
mod tests;
