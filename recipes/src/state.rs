//! Training state: the precision of weights, gradients and moments, and the memory that holds them.

use crate::keyword_enum::keyword_enum;
use serde::{Deserialize, Serialize};

keyword_enum! {
    /// The precision of weights that the optimizer updates, or of gradients that it reads.
    #[derive(Default)]
    pub enum StatePrecision {
        /// 32-bit floats.
        #[default]
        F32 = "f32",
        /// bfloat16; small updates of weights are rounded away.
        Bf16 = "bf16",
    }
}

keyword_enum! {
    /// The precision of optimizer moments.
    #[derive(Default)]
    pub enum MomentPrecision {
        /// 32-bit floats.
        #[default]
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit values with a scale per block (Dettmers et al. 2022, arXiv 2110.02861).
        Int8 = "int8",
    }
}

keyword_enum! {
    /// The training state that host memory holds instead of the GPU.
    #[derive(Default)]
    pub enum Offload {
        /// All state is on the GPU.
        #[default]
        None = "none",
        /// Optimizer state is in host memory, and the CPU updates the weights (ZeRO-Offload; Ren et al. 2021,
        /// arXiv 2101.06840).
        Optimizer = "optimizer",
        /// Weights, gradients and optimizer state are in host memory; weights are copied to the GPU for each
        /// pass.
        All = "all",
    }
}

keyword_enum! {
    /// The implementation of the cross-entropy loss over the vocabulary.
    #[derive(Default)]
    pub enum LossKernel {
        /// The logits of a micro-batch are held in full, with their gradients.
        #[default]
        Plain = "plain",
        /// Logits are computed chunk by chunk of the sequence, and again in the backward.
        Chunked = "chunked",
        /// One kernel computes head, loss and gradients without holding logits (Liger, Cut Cross-Entropy).
        Fused = "fused",
    }
}

keyword_enum! {
    /// The implementation of attention, as in `attn_implementation` of transformers.
    pub enum AttentionImplementation {
        /// Separate products, mask and softmax; scores are written to memory.
        Eager = "eager",
        /// `scaled_dot_product_attention` of PyTorch, which picks a fused kernel where one fits.
        Sdpa = "sdpa",
        /// The package flash-attn.
        Flash = "flash",
    }
}

keyword_enum! {
    /// The precision of frozen weights below low-rank adapters.
    pub enum FrozenPrecision {
        /// 32-bit floats.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit integers with outliers in 16 bits (LLM.int8; Dettmers et al. 2022, arXiv 2208.07339).
        Int8 = "int8",
        /// 4-bit NormalFloat with scales per block (QLoRA; Dettmers et al. 2023, arXiv 2305.14314).
        Nf4 = "nf4",
    }
}

/// The training state of a layout: its precision, its place, and the loss that decides what logits it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StatePolicy {
    /// Precision of the weights that the optimizer updates: of the master copy, if the engine keeps 16-bit
    /// weights beside it.
    #[serde(default)]
    pub weights: StatePrecision,
    /// Precision in which gradients are accumulated and reduced; `None` for that of the engine.
    #[serde(default)]
    pub gradients: Option<StatePrecision>,
    /// Precision of optimizer moments.
    #[serde(default)]
    pub moments: MomentPrecision,
    /// State in host memory.
    #[serde(default)]
    pub offload: Offload,
    /// Implementation of the loss.
    #[serde(default)]
    pub loss: LossKernel,
}

impl StatePolicy {
    /// State in f32 on the device, with all logits held: that of dtrain's own worker.
    pub const PLAIN: Self = Self {
        weights: StatePrecision::F32,
        gradients: None,
        moments: MomentPrecision::F32,
        offload: Offload::None,
        loss: LossKernel::Plain,
    };

    /// Returns `true` for [`StatePolicy::PLAIN`].
    pub fn is_plain(&self) -> bool {
        *self == Self::PLAIN
    }

    /// Returns `true` if results equal those of [`StatePolicy::PLAIN`] but for rounding of f32.
    pub fn is_exact(&self) -> bool {
        self.weights == StatePrecision::F32
            && self.gradients.is_none_or(|gradients| gradients == StatePrecision::F32)
            && self.moments == MomentPrecision::F32
    }

    /// Describes the differences from [`StatePolicy::PLAIN`], such as `8-bit moments, optimizer offloaded`.
    pub fn describe(&self) -> String {
        let weights = match self.weights {
            StatePrecision::F32 => None,
            StatePrecision::Bf16 => Some("bf16 weights"),
        };
        let gradients = match self.gradients {
            None => None,
            Some(StatePrecision::F32) => Some("f32 gradients"),
            Some(StatePrecision::Bf16) => Some("bf16 gradients"),
        };
        let moments = match self.moments {
            MomentPrecision::F32 => None,
            MomentPrecision::Bf16 => Some("bf16 moments"),
            MomentPrecision::Int8 => Some("8-bit moments"),
        };
        let offload = match self.offload {
            Offload::None => None,
            Offload::Optimizer => Some("optimizer in host memory"),
            Offload::All => Some("all state in host memory"),
        };
        let loss = match self.loss {
            LossKernel::Plain => None,
            LossKernel::Chunked => Some("loss in chunks"),
            LossKernel::Fused => Some("fused loss"),
        };
        let parts: Vec<&str> = [weights, gradients, moments, offload, loss].into_iter().flatten().collect();
        parts.join(", ")
    }
}

/// The training state that a recipe pins; the planner chooses what is open among the settings that keep the
/// result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePins {
    /// Precision of the weights that the optimizer updates.
    #[serde(default)]
    pub weights: StatePrecision,
    /// Precision of gradients; `None` for that of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<StatePrecision>,
    /// Precision of optimizer moments.
    #[serde(default)]
    pub moments: MomentPrecision,
    /// State in host memory; `None` if the planner chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// Implementation of the loss; `None` if the planner chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossKernel>,
    /// Implementation of attention; `None` for the engine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionImplementation>,
}

impl StatePins {
    /// Returns `true` if nothing is pinned, and state is in f32.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the pinned state, with `open` in place of what the planner chooses.
    pub fn policy(&self, open: StatePolicy) -> StatePolicy {
        StatePolicy {
            weights: self.weights,
            gradients: self.gradients,
            moments: self.moments,
            offload: self.offload.unwrap_or(open.offload),
            loss: self.loss.unwrap_or(open.loss),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_names_what_differs_from_plain_state() {
        assert_eq!(StatePolicy::PLAIN.describe(), "");
        let policy =
            StatePolicy { moments: MomentPrecision::Int8, offload: Offload::Optimizer, ..StatePolicy::PLAIN };
        assert_eq!(policy.describe(), "8-bit moments, optimizer in host memory");
        assert!(!policy.is_exact());
        assert!(StatePolicy { offload: Offload::All, ..StatePolicy::PLAIN }.is_exact());
    }

    #[test]
    fn pins_go_before_what_the_planner_chooses() {
        let open = StatePolicy { offload: Offload::All, loss: LossKernel::Chunked, ..StatePolicy::PLAIN };
        let pins = StatePins { offload: Some(Offload::None), ..StatePins::default() };
        assert_eq!(pins.policy(open), StatePolicy { loss: LossKernel::Chunked, ..StatePolicy::PLAIN });
    }
}
