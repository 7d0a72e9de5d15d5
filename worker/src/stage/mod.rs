//! The part of a model that one rank holds: forward and backward of micro-batches, part by part.
//!
//! Every part is an autodiff graph of its own; the backward pass hands the gradient from one to the next. So
//! gradients of a part are final while earlier parts still compute, activations can be dropped and computed
//! again, and a pipeline cuts where it likes. It sums gradients, and does not apply them.
//!
//! Parameters are flat tensors of our own instead of `burn-nn` layers, because the optimizer, the buckets and the checkpoints need
//! contiguous ranges. Initial weights are a function of the seed, the name and the place in the whole tensor, never of the layout.

mod parameters;
mod pass;
mod sharded;
mod values;

use crate::data::Batch;
use crate::device;
use crate::gradients::Gradients;
use crate::model::initializer;
use crate::network::{self, LayerContext, ModelBuildError, ModelPart, NeuralNetwork, ParameterSpec};
use crate::ops::{Arithmetic, DeferredWeightGrads, Implementation};
use crate::parallel::{ModelParallelGroups, ZeroShards};
use burn::tensor::{Device, Tensor};
use dtrain_protocol::{Arrangement, Neighbor, Pass, Rank};
use dtrain_recipes::{Model, PipelineSchedule, Precision, Recompute, ZeroStage};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub use crate::ops::{DeferredLossFigures, LossFigures};
pub use parameters::ModelParameter;
use parameters::{ChunkParameters, FlatParameters, ParameterGroup, assemble};
use pass::SavedForBackward;
use sharded::ShardedWeights;
use values::tensor;

/// What a forward pass reads.
#[derive(Clone, Copy, Debug)]
pub enum ModelInput<'a> {
    /// Sequences of tokens with, for each token, the one that follows; `samples · length` each.
    Tokens {
        /// Tokens.
        inputs: &'a [u32],
        /// The token after each.
        targets: &'a [u32],
        /// Sequences.
        samples: usize,
        /// Tokens of a sequence.
        length: usize,
    },
    /// Rows of a table, or images as `[channels, height, width]`, with their classes.
    Rows {
        /// `samples · width` values.
        values: &'a [f32],
        /// A class for each row.
        classes: &'a [u32],
        /// Rows.
        samples: usize,
        /// Values of a row.
        width: usize,
    },
}

impl ModelInput<'static> {
    /// What a chunk in the middle of the model reads besides its activation.
    pub const NOTHING: Self = Self::Tokens { inputs: &[], targets: &[], samples: 0, length: 0 };
}

impl<'a> ModelInput<'a> {
    /// Those of `batch`.
    pub(crate) fn of(batch: &'a Batch) -> Self {
        match batch {
            Batch::Tokens { inputs, targets, samples, length } => {
                Self::Tokens { inputs, targets, samples: *samples, length: *length }
            }
            Batch::Rows { values, classes, samples, width } => {
                Self::Rows { values, classes, samples: *samples, width: *width }
            }
        }
    }

    /// A copy without what is to be predicted.
    fn inputs(&self) -> Batch {
        match *self {
            Self::Tokens { inputs, samples, length, .. } => {
                Batch::Tokens { inputs: inputs.to_vec(), targets: Vec::new(), samples, length }
            }
            Self::Rows { values, samples, width, .. } => {
                Batch::Rows { values: values.to_vec(), classes: Vec::new(), samples, width }
            }
        }
    }

    /// What is to be predicted.
    fn targets(&self) -> &'a [u32] {
        match self {
            Self::Tokens { targets, .. } => targets,
            Self::Rows { classes, .. } => classes,
        }
    }
}

/// What a stage gives for a micro-batch.
#[derive(Clone, Debug)]
pub enum ForwardOutput {
    /// What the next stage reads.
    Activation(Tensor<3>),
    /// Figures of the last stage.
    Loss(DeferredLossFigures),
}

/// Why a stage cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// This program cannot build the network.
    #[error(transparent)]
    Unbuilt(#[from] ModelBuildError),
    /// The blocks are not blocks of the model.
    #[error("blocks {start}..{end} were assigned, but the model has {found}")]
    Blocks {
        /// First block.
        start: u32,
        /// One after the last block.
        end: u32,
        /// Blocks of the model.
        found: u32,
    },
}

/// What of a model a rank holds, and how it computes with it.
#[derive(Clone, Debug)]
pub struct ModelShard<'a> {
    /// The model.
    pub model: &'a Model,
    /// The runs of blocks, in the order of the model.
    pub chunks: &'a [Range<u32>],
    /// Seed of the first weights.
    pub seed: u64,
    /// How the work is arranged among all ranks.
    pub arrangement: Arrangement,
    /// This rank.
    pub rank: Rank,
    /// The ranks that take part in its passes.
    pub partners: ModelParallelGroups,
}

/// The part of a model that one rank holds.
pub struct Stage {
    network: Box<dyn NeuralNetwork>,
    model: Model,
    layers: LayerContext,
    device: Device,
    recompute: Recompute,
    recompute_every: u32,
    units: Vec<ParameterGroup>,
    /// The blocks of each chunk.
    blocks: Vec<Range<u32>>,
    /// The units of each chunk.
    chunks: Vec<Range<usize>>,
    parameters: Vec<ModelParameter>,
    /// Parameters that training leaves as they begin, whole on every replica.
    frozen: Vec<ModelParameter>,
    shards: Arc<ZeroShards>,
    /// Whole parameters; of sharded weights only those that are gathered now, and the others have no elements.
    values: Vec<Tensor<1>>,
    frozen_values: Vec<Tensor<1>>,
    /// The owned values, where weights are sharded.
    sharded: Option<ShardedWeights>,
    gradients: Gradients,
    kept: BTreeMap<Pass, Vec<SavedForBackward>>,
    /// Whether gradients of weights are left for [`Stage::backward_weights`].
    splits: bool,
    /// What was left of each pass, part by part, last to first.
    left: BTreeMap<Pass, Vec<(usize, DeferredWeightGrads)>>,
    host: bool,
}

impl Stage {
    /// Builds the blocks `blocks` of `model`, uncut, with their first weights, a function of `seed` and names alone.
    ///
    /// The stage begins with the embedding when `blocks` starts at 0, and ends with the head when it ends with
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

    /// Builds what `holding` says, cut as its arrangement tells, with the same first weights as the uncut model.
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
        let mut network = network::build(model, *seed)?;
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

    /// The parameters that are trained, in flat order.
    pub fn parameters(&self) -> &[ModelParameter] {
        &self.parameters
    }

    /// The parameters that are frozen, in flat order.
    pub fn frozen_parameters(&self) -> &[ModelParameter] {
        &self.frozen
    }

    /// Which parts of them this rank owns.
    pub fn shards(&self) -> &Arc<ZeroShards> {
        &self.shards
    }

    /// The model this is a part of.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Number of parts; [`ModelParameter::unit`] counts them from 0.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Whether the values lie in host memory.
    pub fn is_on_host(&self) -> bool {
        self.host
    }

    /// The device the values lie on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The parameter that a tied head shares with the embedding, when this stage holds only one of the two:
    /// its gradient must be summed over the first and the last stage.
    pub fn tied_across_stages(&self) -> Option<usize> {
        let Model::Decoder(decoder) = &self.model else { return None };
        let has = |part| self.units.iter().any(|unit| unit.part == part);
        if !decoder.tied || has(ModelPart::First) == has(ModelPart::Head) {
            return None;
        }
        self.parameters.iter().position(|parameter| parameter.name == "embedding.weight")
    }

    /// Whether it begins with the first part of the model.
    pub fn has_embedding(&self) -> bool {
        self.blocks.iter().any(|blocks| blocks.start == 0)
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.chunks.len()).expect("chunks are few")
    }

    /// Whether chunk `chunk` is the first of the model.
    pub fn is_first(&self, chunk: u32) -> bool {
        self.blocks[chunk as usize].start == 0
    }

    /// Whether a forward through chunk `chunk` reads samples: at the beginning of the model, or targets at its end.
    pub fn reads_samples(&self, chunk: u32) -> bool {
        let blocks = &self.blocks[chunk as usize];
        blocks.start == 0 || blocks.end == self.model.blocks()
    }

    /// Shape of the activation that chunk `chunk` reads from the chunk before, or of the gradient it reads from the
    /// chunk after, for `samples` samples.
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

    /// Whether the gradients are tensors of a device, rather than values in host memory.
    pub fn has_gradient_tensors(&self) -> bool {
        self.gradients.are_tensors()
    }

    /// The gradients summed so far.
    pub fn gradients(&mut self) -> &mut Gradients {
        &mut self.gradients
    }
}

/// The parts of `blocks` with their parameters, first to last.
fn parts(network: &dyn NeuralNetwork, blocks: Range<u32>) -> Vec<(ModelPart, Vec<ParameterSpec>)> {
    let first = (blocks.start == 0).then_some(ModelPart::First);
    let last = (blocks.end == network.blocks()).then_some(ModelPart::Head);
    let parts = first.into_iter().chain(blocks.map(ModelPart::Block)).chain(last);
    parts.map(|part| (part, network.parameters(part))).collect()
}

#[cfg(test)]
mod tests;
