//! Layers of a network, with the ranks that may share their work and the arithmetic that they use.

use super::kv_cache::KvCache;
use super::{ForwardMode, ModelInput, context_parallel, tensor_parallel};
use crate::mesh::ModelParallelGroups;
use crate::ops::collective::copy_to;
use crate::ops::{
    self, Arithmetic, AttentionHeads, AttentionMask, DeferredLossFigures, DocumentStarts, LinearWeight,
    Rotary, VocabRange,
};
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_recipes::RotaryScaling;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The arithmetic and the process groups for all passes through the parts of a stage.
///
/// The layers communicate among the ranks where needed: so a network is written as if one rank computed all
/// of it.
pub struct LayerContext {
    pub(crate) arithmetic: Arithmetic,
    /// Process groups of the ranks that compute the same passes.
    pub(crate) partners: ModelParallelGroups,
    /// Weight of the z-loss in the training loss of a decoder.
    pub(crate) z_loss: f32,
    device: Device,
    /// Tables of rotary positions: of all layers, and of those whose windows have a base of their own.
    rotary: [OnceLock<Rotary>; 2],
    /// Documents of the packed sequences that the current pass computes.
    documents: Mutex<Option<DocumentStarts>>,
    /// KV cache; `Some` while a text is generated token by token.
    key_values: Mutex<Option<KvCache>>,
}

/// The parameters that determine the angles of rotary position embeddings (RoPE).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RotaryAngles {
    /// Number of tokens in a whole sequence.
    pub(crate) context: usize,
    /// Base of the angles, known as theta.
    pub(crate) base: u64,
    /// Scaling of the angles; `None`: they are not scaled.
    pub(crate) scaling: Option<RotaryScaling>,
    /// True in layers whose window has a base of its own.
    pub(crate) is_local: bool,
}

impl LayerContext {
    pub(crate) fn new(arithmetic: Arithmetic, partners: ModelParallelGroups, device: Device) -> Self {
        Self {
            arithmetic,
            partners,
            z_loss: 0.0,
            device,
            rotary: Default::default(),
            documents: Mutex::default(),
            key_values: Mutex::default(),
        }
    }

    /// Returns the KV cache, which is `Some` while a text is generated token by token.
    pub(crate) fn key_values(&self) -> MutexGuard<'_, Option<KvCache>> {
        self.key_values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the position of the first token of a pass that generates text; `None` in any other pass.
    fn next_position(&self) -> Option<usize> {
        self.key_values().as_ref().map(KvCache::tokens)
    }

    /// Returns the device that holds the activations.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the rows of `samples` unchanged, as `[samples, 1, width]`; panics if the samples are
    /// tokens.
    pub(crate) fn rows(&self, samples: &ModelInput<'_>) -> Tensor<3> {
        let ModelInput::Rows { values, samples, width, .. } = samples else {
            panic!("this model trains on rows, not on tokens");
        };
        Tensor::from_data(TensorData::new(values.to_vec(), [*samples, 1, *width]), &self.device)
    }

    /// Looks tokens up in a table that may be cut by rows, of which this rank holds the range `share`.
    /// `[samples, length, width]`
    pub(crate) fn look_up(
        &self,
        table: Tensor<2>,
        share: VocabRange,
        tokens: &[u32],
        sizes: [usize; 2],
    ) -> Tensor<3> {
        tensor_parallel::leave(
            &self.partners,
            ops::embed(self.arithmetic, table, share, tokens, sizes),
            None,
            None,
        )
    }

    /// Adds the position embeddings in `table` to the tokens of each sequence, of which this rank holds
    /// `held`.
    pub(crate) fn add_positions(&self, x: Tensor<3>, table: Tensor<2>, held: usize) -> Tensor<3> {
        if let Some(begin) = self.next_position() {
            let places: Vec<_> = (begin..begin + held).collect();
            return ops::add_positions(self.arithmetic, x, table, &places);
        }
        let places = self.positions(held * self.partners.context.size() as usize);
        let places = tensor_parallel::part_of(&self.partners, &places);
        let Some(documents) = &*self.documents() else {
            return ops::add_positions(self.arithmetic, x, table, places);
        };
        // Positions are counted from the beginning of each document.
        let of_sample = |starts: &[u32]| places.iter().map(|place| place - starts[*place] as usize).collect();
        let places: Vec<usize> = documents
            .starts
            .chunks(documents.length)
            .flat_map(|starts| -> Vec<usize> { of_sample(starts) })
            .collect();
        ops::add_positions(self.arithmetic, x, table, &places)
    }

    /// Returns the positions of this rank's tokens in sequences of `length`.
    fn positions(&self, length: usize) -> Vec<usize> {
        context_parallel::pieces(length, &self.partners.context).into_iter().flatten().collect()
    }

    /// Applies rotary position embeddings to queries and keys. `[b, t, (query + 2·key)·width]`
    pub(crate) fn rotary(&self, packed: Tensor<3>, heads: AttentionHeads, angles: RotaryAngles) -> Tensor<3> {
        let RotaryAngles { context, base, scaling, is_local } = angles;
        if let Some(begin) = self.next_position() {
            let positions = begin..begin + packed.dims()[1];
            let table = Rotary::new(positions, heads.width, base, scaling);
            return ops::rotary(self.arithmetic, packed, heads, &table);
        }
        let made = || Rotary::new(self.positions(context).into_iter(), heads.width, base, scaling);
        ops::rotary(self.arithmetic, packed, heads, self.rotary[usize::from(is_local)].get_or_init(made))
    }

    /// Computes causal attention over whole sequences for this rank's tokens, each of which sees at most
    /// `window` tokens, and none of another document.
    ///
    /// `[b, t, (query + 2·key)·width]` → `[b, t, query·width]`
    pub(crate) fn attention(
        &self,
        packed: Tensor<3>,
        heads: AttentionHeads,
        window: Option<usize>,
    ) -> Tensor<3> {
        if let Some(key_values) = &mut *self.key_values() {
            return key_values.attention(self.arithmetic, packed, heads, window);
        }
        let mask = AttentionMask { window, documents: self.documents().clone() };
        context_parallel::attention(self.arithmetic, packed, heads, &mask, &self.partners.context)
    }

    /// Applies an RMS norm to each head of queries and of keys, and multiplies the queries by `factor` more.
    /// `weights` are those of queries and of keys, `[width]`.
    ///
    /// If tensor-parallel ranks hold different heads, each has a part of the gradient of the weights. In
    /// sequence mode it may stay one, as the gradients of replicated parameters are summed in the end.
    ///
    /// Counted in `planner/src/step/traffic/model_parallel.rs`, `head_norms`.
    pub(crate) fn head_norms(
        &self,
        packed: Tensor<3>,
        heads: AttentionHeads,
        weights: [Tensor<1>; 2],
        epsilon: f32,
        factor: f64,
    ) -> Tensor<3> {
        let [b, t, all] = packed.dims();
        let AttentionHeads { query, key, width } = heads;
        let both = Tensor::cat(weights.to_vec(), 0).reshape([1, 1, 2 * width]);
        let both = if self.partners.sequence { both } else { copy_to(both, &self.partners.tensor) };
        let [of_queries, of_keys] =
            [0, width].map(|begin| both.clone().narrow(2, begin, width).reshape([width]));
        let of_queries = if factor == 1.0 { of_queries } else { of_queries * factor };
        let normed = |begin: usize, count: usize, weight| {
            let columns = packed.clone().narrow(2, begin * width, count * width);
            let rows = columns.reshape([b, t * count, width]);
            ops::rms_norm(self.arithmetic, rows, weight, epsilon).reshape([b, t, count * width])
        };
        let values = packed.clone().narrow(2, (query + key) * width, all - (query + key) * width);
        Tensor::cat(vec![normed(0, query, of_queries), normed(query, key, of_keys), values], 2)
    }

    /// Returns the documents of the packed sequences that the current pass computes; `None` if each sequence
    /// is one document.
    pub(crate) fn documents(&self) -> MutexGuard<'_, Option<DocumentStarts>> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes the scores of classes with a matrix that may be cut by classes. `[b, t, w]` → `[b·t,
    /// classes held]`
    pub(crate) fn classify(&self, weight: LinearWeight, x: Tensor<3>) -> Tensor<2> {
        let x = tensor_parallel::enter(&self.partners, x);
        ops::rows(self.arithmetic, ops::project(self.arithmetic, x, vec![weight], Vec::new(), None))
    }

    /// Computes the mean cross-entropy of scores, of which this rank has those of the classes in `share`; in
    /// training the loss has the z-loss as well.
    pub(crate) fn cross_entropy(
        &self,
        scores: Tensor<2>,
        targets: &[u32],
        share: VocabRange,
        mode: ForwardMode,
    ) -> (Tensor<1>, DeferredLossFigures) {
        let z_loss = match mode {
            ForwardMode::Train => self.z_loss,
            ForwardMode::Evaluate => 0.0,
        };
        let peers = &self.partners.tensor;
        if peers.size() == 1 {
            return ops::cross_entropy(self.arithmetic, scores, targets, z_loss);
        }
        ops::cross_entropy_of_part(self.arithmetic, scores, targets, share, peers, z_loss)
    }
}
