//! Layers of a network, with the ranks that may share their work and the arithmetic that they use.

use super::kv_cache::KvCache;
use super::{ForwardMode, ModelInput, context_parallel, tensor_parallel};
use crate::mesh::ModelParallelGroups;
use crate::ops::{self, Arithmetic, AttentionHeads, DeferredLossFigures, LinearWeight, Rotary, VocabRange};
use burn::tensor::{Device, Tensor, TensorData};
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
    rotary: OnceLock<Rotary>,
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
}

impl LayerContext {
    pub(crate) fn new(arithmetic: Arithmetic, partners: ModelParallelGroups, device: Device) -> Self {
        let (rotary, key_values) = (OnceLock::new(), Mutex::default());
        Self { arithmetic, partners, z_loss: 0.0, device, rotary, key_values }
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
        ops::add_positions(self.arithmetic, x, table, tensor_parallel::part_of(&self.partners, &places))
    }

    /// Returns the positions of this rank's tokens in sequences of `length`.
    fn positions(&self, length: usize) -> Vec<usize> {
        context_parallel::pieces(length, &self.partners.context).into_iter().flatten().collect()
    }

    /// Applies rotary position embeddings to queries and keys. `[b, t, (query + 2·key)·width]`
    pub(crate) fn rotary(&self, packed: Tensor<3>, heads: AttentionHeads, angles: RotaryAngles) -> Tensor<3> {
        let RotaryAngles { context, base } = angles;
        if let Some(begin) = self.next_position() {
            let positions = begin..begin + packed.dims()[1];
            return ops::rotary(self.arithmetic, packed, heads, &Rotary::new(positions, heads.width, base));
        }
        let made = || Rotary::new(self.positions(context).into_iter(), heads.width, base);
        ops::rotary(self.arithmetic, packed, heads, self.rotary.get_or_init(made))
    }

    /// Computes causal attention over whole sequences for this rank's tokens.
    ///
    /// `[b, t, (query + 2·key)·width]` → `[b, t, query·width]`
    pub(crate) fn attention(&self, packed: Tensor<3>, heads: AttentionHeads) -> Tensor<3> {
        if let Some(key_values) = &mut *self.key_values() {
            return key_values.attention(self.arithmetic, packed, heads);
        }
        context_parallel::attention(self.arithmetic, packed, heads, &self.partners.context)
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
