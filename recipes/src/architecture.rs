//! The architecture choices of decoders: positions, norm, activation, and the families that preset them.

use crate::keyword_enum::keyword_enum;

keyword_enum! {
    /// Position encoding of a decoder.
    pub enum Positions {
        /// A trained vector for each position.
        Learned = "learned",
        /// Rotary embedding of queries and keys, halves rotated (the Llama convention).
        Rotary = "rotary",
    }
}

keyword_enum! {
    /// Normalisation before each sub-layer and before the head.
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
        /// GELU by its tanh form, as in GPT-2 (`gelu_new`).
        GeluTanh = "gelu_tanh",
        /// `silu(gate) · up`: three matrices in place of two.
        Swiglu = "swiglu",
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
