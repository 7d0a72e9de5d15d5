//! Parameter counts of each part of a model on one rank: the shapes that the worker declares, sharded by the
//! layout. Memory, time and traffic are computed from them.

mod shapes;

use crate::pipeline_schedule::chunks_of;
use dtrain_protocol::{Arrangement, Axis, Coord, Layout, communication_volume, sharding};
use dtrain_recipes::{Decoder, Model};
use shapes::{
    NamedShape, cnn_block, cnn_head, cnn_stem, custom_part, decoder_adapters, decoder_block,
    decoder_embedding, decoder_head, mlp_layer,
};
use std::ops::{Add, Range, Sub};

/// Number of parameters that one rank holds, inside and outside the experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterCounts {
    /// Number of parameters outside the experts; all replicas hold the same ones.
    pub dense: u64,
    /// Number of parameters of experts, which differ along the expert axis.
    pub experts: u64,
    /// Number of those in `dense` that every tensor-parallel rank holds whole.
    pub whole: u64,
}

impl ParameterCounts {
    /// Returns the number of parameters inside and outside the experts together.
    pub fn all(self) -> u64 {
        self.dense + self.experts
    }
}

impl Add for ParameterCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            dense: self.dense + other.dense,
            experts: self.experts + other.experts,
            whole: self.whole + other.whole,
        }
    }
}

impl Sub for ParameterCounts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            dense: self.dense - other.dense,
            experts: self.experts - other.experts,
            whole: self.whole - other.whole,
        }
    }
}

/// Parameters of one part of a model (embedding, block or head) on one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerParameters {
    /// Number of parameters in the part.
    pub values: ParameterCounts,
    /// Shapes of the parameters outside the experts.
    lengths: Vec<MatrixShape>,
    /// Shapes of the experts' parameters, as matrices.
    experts: Vec<[u64; 2]>,
}

/// Shape of one parameter, as a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MatrixShape {
    sides: [u64; 2],
    /// True if every tensor-parallel rank holds the whole parameter.
    is_whole: bool,
}

/// Number of values sent in an all-reduce of gradients compressed to two low-rank factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowRankCounts {
    /// Number of values in the factors that have a row for each row of a gradient matrix.
    pub rows: u64,
    /// Number of values in the factors that have a row for each column of a gradient matrix.
    pub columns: u64,
    /// Number of values that are sent uncompressed.
    pub whole: u64,
}

impl MatrixShape {
    fn values(&self) -> u64 {
        self.sides.iter().product()
    }
}

impl LayerParameters {
    fn of(parameters: &[NamedShape], layout: &Layout, coord: Coord) -> Self {
        let mut part = Self::default();
        for (name, shape) in parameters {
            let region = sharding::region(name, shape, layout, coord);
            let values = region.elements();
            if sharding::is_sharded(name, Axis::Expert) {
                part.values.experts += values;
                part.experts.push(communication_volume::matrix(&region.local_shape()));
                continue;
            }
            let is_whole = !sharding::is_sharded(name, Axis::Tensor);
            part.values.dense += values;
            part.values.whole += if is_whole { values } else { 0 };
            part.lengths
                .push(MatrixShape { sides: communication_volume::matrix(&region.local_shape()), is_whole });
        }
        part
    }

    /// Returns the parameters of two parts of a model together.
    fn with(mut self, other: &Self) -> Self {
        self.values = self.values + other.values;
        self.lengths.extend(&other.lengths);
        self.experts.extend(&other.experts);
        self
    }

    /// Returns the number of values outside the experts that each of `shard` ranks keeps when they shard the
    /// part. Every parameter is sharded by itself, and a shorter shard is padded.
    pub fn block(&self, shard: u32) -> u64 {
        self.lengths.iter().map(|length| length.values().div_ceil(u64::from(shard))).sum()
    }

    /// Returns the number of values sent with low-rank compression of rank `rank`, between replicas that hold
    /// all experts.
    pub fn low_rank(&self, rank: u32) -> LowRankCounts {
        let mut all = LowRankCounts::default();
        for [rows, columns] in
            self.lengths.iter().map(|length| length.sides).chain(self.experts.iter().copied())
        {
            if communication_volume::is_low_rank([rows, columns], rank) {
                all.rows += rows * u64::from(rank);
                all.columns += columns * u64::from(rank);
            } else {
                all.whole += rows * columns;
            }
        }
        all
    }

    /// Returns the number of expert values that each of `shard` ranks keeps; see [`LayerParameters::block`].
    pub fn expert_block(&self, shard: u32) -> u64 {
        self.experts.iter().map(|[rows, columns]| (rows * columns).div_ceil(u64::from(shard))).sum()
    }

    /// Returns the number of values, without padding, in shard `index` of `shard` that belong to parameters
    /// which every tensor-parallel rank holds whole.
    pub fn replicated_values(&self, index: u32, shard: u32) -> u64 {
        let whole = self.lengths.iter().filter(|length| length.is_whole);
        whole.map(|length| share(length.values(), index, shard)).sum()
    }
}

/// Returns the size of part `index` when `values` are split into `parts`: the first parts are one value
/// longer.
pub(crate) fn share(values: u64, index: u32, parts: u32) -> u64 {
    values / u64::from(parts) + u64::from(u64::from(index) < values % u64::from(parts))
}

/// Position of a part within a model: embedding, block or head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Layers before the first block.
    Embedding,
    /// One of the blocks.
    Block,
    /// Layers after the last block, on a rank that does not hold the embedding, or with weights of their own.
    Head,
    /// Layers after the last block, where they share the weights of the embedding on the same rank.
    TiedHead,
}

/// Trainable parameters of every part of a model, on a rank with given indices along the tensor and expert
/// axes. Gradients, moments and messages have these sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelParameters {
    embedding: LayerParameters,
    /// Running sum of the parameters before each block; one entry more than blocks.
    before: Vec<ParameterCounts>,
    /// Parameters of each block; a single entry where all blocks are equal.
    blocks: Vec<LayerParameters>,
    /// Parameters that belong to the head alone.
    head: LayerParameters,
    /// Parameters of the head, with a copy of a tied embedding.
    head_apart: LayerParameters,
    /// Number of parameters in a tied embedding.
    tied: u64,
    /// Number of parameters in the largest block.
    widest: ParameterCounts,
    /// Frozen weights of the model; `None` unless adapters are trained instead.
    frozen: Option<Box<Self>>,
}

/// Number of parameters that one rank holds of a pipeline stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageParameters {
    /// Parameters before the first block; zero on later stages.
    pub embedding: ParameterCounts,
    /// Parameters of all blocks of the stage, in all of its chunks.
    pub blocks: ParameterCounts,
    /// Parameters after the last block; zero on earlier stages. An embedding that the stage holds anyway is
    /// not counted again.
    pub head: ParameterCounts,
    /// Parameters of a tied embedding that both the first and the last stage hold, and whose gradients the
    /// two sum.
    pub shared: u64,
    /// Parameters of the largest part of the stage: embedding, block or head.
    pub largest: ParameterCounts,
}

impl StageParameters {
    /// Returns the number of all parameters of the stage.
    pub fn all(&self) -> ParameterCounts {
        self.embedding + self.blocks + self.head
    }
}

/// Returns the parameters of each block of a decoder if only some have experts, or a single entry if all
/// blocks are equal.
fn decoder_blocks(d: &Decoder, part: impl Fn(&[NamedShape]) -> LayerParameters) -> Vec<LayerParameters> {
    if d.lora.is_some() {
        return vec![part(&decoder_adapters(d))];
    }
    let alike = part(&decoder_block(d, false));
    if d.dense_layers() == 0 {
        return vec![alike];
    }
    let dense = part(&decoder_block(d, true));
    (0..d.layers).map(|layer| if layer < d.dense_layers() { &dense } else { &alike }.clone()).collect()
}

impl ModelParameters {
    /// Counts the parameters of `model` in `layout`, on the rank at `coord`.
    pub fn of(model: &Model, layout: &Layout, coord: Coord) -> Self {
        let part = |parameters: &[NamedShape]| LayerParameters::of(parameters, layout, coord);
        let (count, blocks): (u32, Vec<LayerParameters>) = match model {
            Model::Decoder(d) => (d.layers, decoder_blocks(d, part)),
            Model::Mlp(m) => {
                (model.blocks(), (0..m.hidden.len()).map(|layer| part(&mlp_layer(m, layer))).collect())
            }
            Model::Cnn(c) => {
                (model.blocks(), (0..model.blocks()).map(|block| part(&cnn_block(c, block))).collect())
            }
            Model::Custom(own) => {
                (model.blocks(), own.outline.blocks.iter().map(|one| part(&custom_part(one))).collect())
            }
            Model::Command(_) => (0, Vec::new()),
        };
        let (embedding, head, tied) = match model {
            Model::Decoder(d) if d.lora.is_some() => Default::default(),
            Model::Decoder(d) => {
                let (head, tied) = decoder_head(d);
                (part(&decoder_embedding(d)), part(&head), part(&tied))
            }
            Model::Mlp(m) => {
                (LayerParameters::default(), part(&mlp_layer(m, m.hidden.len())), LayerParameters::default())
            }
            Model::Cnn(c) => (part(&cnn_stem(c)), part(&cnn_head(c)), LayerParameters::default()),
            Model::Custom(own) => (
                part(&custom_part(&own.outline.first)),
                part(&custom_part(&own.outline.head)),
                LayerParameters::default(),
            ),
            Model::Command(_) => Default::default(),
        };
        let mut before = vec![ParameterCounts::default()];
        for block in blocks.iter().cycle().take(count as usize) {
            before.push(before[before.len() - 1] + block.values);
        }
        let frozen = match model {
            Model::Decoder(d) if d.lora.is_some() => {
                Some(Box::new(Self::of(&Model::Decoder(d.base()), layout, coord)))
            }
            _ => None,
        };
        let widest = blocks.iter().map(|block| block.values).max_by_key(|block| block.all());
        Self {
            head_apart: head.clone().with(&tied),
            tied: tied.values.all(),
            widest: widest.unwrap_or_default(),
            embedding,
            before,
            blocks,
            head,
            frozen,
        }
    }

    /// Counts the parameters of `model` on the rank that holds most: where parts are uneven, those of the
    /// last index are larger.
    pub fn largest(model: &Model, layout: &Layout) -> Self {
        let mut coord = Coord([0; 5]);
        for axis in [Axis::Tensor, Axis::Expert] {
            coord.0[axis as usize] = layout.degree(axis) - 1;
        }
        Self::of(model, layout, coord)
    }

    /// Returns the number of frozen weights of stage `stage`; zero unless adapters are trained instead.
    pub fn frozen(&self, arrangement: &Arrangement, stage: u32) -> ParameterCounts {
        self.frozen
            .as_ref()
            .map_or_else(ParameterCounts::default, |frozen| frozen.stage(arrangement, stage).all())
    }

    /// Returns the number of parameters in the blocks of the range `run`.
    pub fn blocks(&self, run: &Range<u32>) -> ParameterCounts {
        self.before[run.end as usize] - self.before[run.start as usize]
    }

    /// Returns the number of parameters on stage `stage`.
    pub fn stage(&self, arrangement: &Arrangement, stage: u32) -> StageParameters {
        let stages = arrangement.layout.pipeline.get();
        let (first, last) = (stage == 0, stage + 1 == stages);
        let none = ParameterCounts::default();
        let is_apart = stages > 1 && (first || last);
        let runs = chunks_of(stage, arrangement, self.count());
        let blocks = runs.map(|run| self.blocks(&run)).fold(none, Add::add);
        let embedding = if first { self.embedding.values } else { none };
        let head = match (first, last) {
            (true, true) => self.head.values,
            (false, true) => self.head_apart.values,
            (_, false) => none,
        };
        let block = if blocks == none { none } else { self.widest };
        let largest = [embedding, block, head].into_iter().max_by_key(|part| part.all()).unwrap_or_default();
        StageParameters { embedding, blocks, head, shared: if is_apart { self.tied } else { 0 }, largest }
    }

    /// Returns the parameters before the first block.
    pub fn embedding(&self) -> &LayerParameters {
        &self.embedding
    }

    /// Calls `each` with every part of stage `stage` that is reduced or gathered on its own: its parameters,
    /// its position in the model, and the number of such parts.
    pub fn for_each_unit(
        &self,
        arrangement: &Arrangement,
        stage: u32,
        mut each: impl FnMut(&LayerParameters, LayerKind, u64),
    ) {
        let stages = arrangement.layout.pipeline.get();
        let (first, last) = (stage == 0, stage + 1 == stages);
        let mut each = |part: &LayerParameters, layer, count| {
            if part.values != ParameterCounts::default() {
                each(part, layer, count);
            }
        };
        if first {
            each(&self.embedding, LayerKind::Embedding, 1);
        }
        for run in chunks_of(stage, arrangement, self.count()) {
            match self.blocks.as_slice() {
                [alike] => each(alike, LayerKind::Block, run.len() as u64),
                blocks => {
                    let run = run.start as usize..run.end as usize;
                    blocks[run].iter().for_each(|block| each(block, LayerKind::Block, 1));
                }
            }
        }
        match (first, last) {
            (true, true) if self.tied > 0 => each(&self.head, LayerKind::TiedHead, 1),
            (true, true) => each(&self.head, LayerKind::Head, 1),
            (false, true) => each(&self.head_apart, LayerKind::Head, 1),
            (_, false) => {}
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.before.len() - 1).expect("blocks are counted in 32 bits")
    }
}

#[cfg(test)]
mod tests;
