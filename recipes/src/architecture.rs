//! The architecture choices of decoders: positions, norm, activation, and the families that preset them.

use crate::keyword_enum::keyword_enum;

keyword_enum! {
    /// The position encoding of a decoder.
    pub enum Positions {
        /// A trained vector for each position.
        Learned = "learned",
        /// Rotary embedding of queries and keys, halves rotated (the Llama convention).
        Rotary = "rotary",
    }
}

keyword_enum! {
    /// The normalization before each sub-layer of a decoder, and before its head.
    pub enum Norm {
        /// LayerNorm with scale and bias.
        Layer = "layer",
        /// RMSNorm with scale.
        Rms = "rms",
    }
}

keyword_enum! {
    /// The feed-forward non-linearity of a decoder.
    pub enum Activation {
        /// The exact (erf) GELU.
        Gelu = "gelu",
        /// The tanh approximation of GELU, as in GPT-2 (`gelu_new`).
        GeluTanh = "gelu_tanh",
        /// SwiGLU, `silu(gate) · up`: a feed-forward layer has three matrices instead of two.
        Swiglu = "swiglu",
        /// GeGLU, `gelu_tanh(gate) · up`, as in Gemma: three matrices, as with SwiGLU.
        Geglu = "geglu",
    }
}

impl Activation {
    /// Returns `true` if a feed-forward layer has a third matrix, the gate.
    pub const fn is_gated(self) -> bool {
        matches!(self, Self::Swiglu | Self::Geglu)
    }
}

keyword_enum! {
    /// The method that scales the angles of rotary positions, for contexts longer than those of pretraining.
    pub enum RotaryScalingKind {
        /// Every angle is divided by the factor.
        Linear = "linear",
        /// Llama 3.1: slow angles are divided by the factor, fast ones are not, those between partly.
        Llama3 = "llama3",
    }
}

keyword_enum! {
    /// A preset of the architecture choices of decoders.
    pub enum Family {
        /// GPT-2: learned positions, layer norms, GELU, tied, with biases.
        Gpt2 = "gpt2",
        /// Llama: rotary positions, RMS norms, SwiGLU, untied, without biases.
        Llama = "llama",
    }
}
