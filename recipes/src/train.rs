//! Training settings: optimizer, learning rate, batch size, gradient clipping and precision.

use crate::hub_model::HubModel;
use crate::keyword_enum::keyword_enum;
use crate::state::StatePins;
use crate::tunable::Tunable;
use crate::units::{Samples, Tokens};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The settings of `[train]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Train {
    /// Optimizer, with its constants.
    pub optimizer: Optimizer,
    /// Global batch: samples in one optimizer step over all ranks.
    pub batch: Tunable<Samples>,
    /// Peak learning rate.
    pub learning_rate: Tunable<f64>,
    /// Length of the linear warm-up of the learning rate.
    pub warmup: Tunable<Warmup>,
    /// Learning-rate decay after warm-up.
    pub schedule: Schedule,
    /// The learning rate at the end as a fraction of the peak, in [0, 1].
    pub final_fraction: f64,
    /// Gradient clipping: the largest global gradient norm; `None` does not clip.
    pub clip: Option<f64>,
    /// Weight of the z-loss (Chowdhery et al. 2022, PaLM): training adds this times the mean of `log(Z)²` to the
    /// mean cross-entropy, where `Z` is the sum of the exponentials of a prediction's scores. 0 adds nothing;
    /// only decoders have another.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub z_loss: f64,
    /// Precision of matrix products.
    pub precision: Tunable<Precision>,
    /// Scaling of values into the range of fp8; `None` unless the precision is `Fp8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8_recipe: Option<Fp8Recipe>,
    /// Pretrained weights that training starts from: a folder of Hugging Face transformers, relative to the
    /// base of data paths, or the name of a [`HubModel`]; `None`: random weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// Precision and place of weights, gradients and moments.
    #[serde(default, skip_serializing_if = "StatePins::is_open")]
    pub state: StatePins,
    /// Seed of the initial weights and of the data order.
    pub seed: u64,
}

impl Train {
    /// Returns the model on the Hugging Face Hub that training starts from; `None` if it starts from a folder
    /// or from random weights.
    pub fn hub_model(&self) -> Option<HubModel> {
        HubModel::parse(self.from.as_ref()?.to_str()?).ok()
    }

    /// Returns example settings for tests: AdamW with a cosine schedule, and the planner's choice of batch,
    /// learning rate, warm-up and precision.
    pub fn example() -> Self {
        Self {
            optimizer: Optimizer::ADAMW,
            batch: Tunable::Auto,
            learning_rate: Tunable::Auto,
            warmup: Tunable::Auto,
            schedule: Schedule::Cosine,
            final_fraction: 0.1,
            clip: Some(1.0),
            z_loss: 0.0,
            precision: Tunable::Auto,
            fp8_recipe: None,
            from: None,
            state: StatePins::default(),
            seed: 1,
        }
    }
}

/// Returns `true` for a weight that adds nothing, which the JSON of a recipe leaves out.
fn is_zero(weight: &f64) -> bool {
    *weight == 0.0
}

/// The length of the learning-rate warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmup {
    /// A warm-up of this many optimizer steps.
    Steps(u64),
    /// A warm-up of this many tokens, rounded up to whole steps.
    Tokens(Tokens),
}

keyword_enum! {
    /// An update rule of an optimizer.
    pub enum OptimizerKind {
        /// AdamW: Adam with decoupled weight decay.
        Adamw = "adamw",
        /// Stochastic gradient descent with heavy-ball momentum.
        Sgd = "sgd",
        /// Lion: updates by the sign of an interpolated momentum.
        Lion = "lion",
        /// LAMB: AdamW updates, scaled per tensor by the trust ratio.
        Lamb = "lamb",
    }
}

/// An optimizer: an update rule with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// Update rule of the optimizer.
    pub kind: OptimizerKind,
    /// Decay rate of the first moment (the momentum of sgd), in [0, 1).
    pub beta1: f64,
    /// Decay rate of the second moment, in [0, 1); unused by sgd.
    pub beta2: f64,
    /// Constant that is added to the square root of the second moment; unused by sgd and lion.
    pub epsilon: f64,
    /// Coefficient of the decoupled weight decay, which applies to matrices but not to norms and biases.
    pub weight_decay: f64,
}

impl Optimizer {
    /// AdamW with the default constants for a decoder.
    pub const ADAMW: Self =
        Self { kind: OptimizerKind::Adamw, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
}

keyword_enum! {
    /// The learning-rate decay after warm-up.
    pub enum Schedule {
        /// The learning rate falls along half a cosine to the final fraction.
        Cosine = "cosine",
        /// The learning rate falls linearly to the final fraction.
        Linear = "linear",
        /// The learning rate stays at its peak.
        Constant = "constant",
    }
}

keyword_enum! {
    /// The precision of matrix products.
    pub enum Precision {
        /// 32-bit floats (TF32 inside a GPU's tensor cores).
        F32 = "f32",
        /// bfloat16 matrix products, with f32 master weights.
        Bf16 = "bf16",
        /// Half-precision matrix products, with f32 master weights and a loss scale.
        F16 = "f16",
        /// 8-bit floats (e4m3 and e5m2) in the matrix products of linear layers, bf16 in others, with f32
        /// master weights.
        Fp8 = "fp8",
    }
}

keyword_enum! {
    /// The scaling of values into the range of fp8, named as in Megatron-LM's `--fp8-recipe`.
    #[derive(Default)]
    pub enum Fp8Recipe {
        /// One scale per tensor, from its current values.
        #[default]
        Tensorwise = "tensorwise",
        /// One scale per tensor, from its values in earlier steps.
        Delayed = "delayed",
        /// One scale per 1 × 128 activations and per 128 × 128 weights (DeepSeek-V3).
        Blockwise = "blockwise",
        /// One power of two per 32 values, applied by Blackwell tensor cores (OCP microscaling).
        Mxfp8 = "mxfp8",
    }
}
