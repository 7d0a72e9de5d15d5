//! Kinds of models, which decide the keys that apply.

use crate::keyword_enum::keyword_enum;

keyword_enum! {
    /// A kind of model. Some keys apply to some kinds only.
    pub enum Kind {
        /// A causal transformer.
        Decoder = "decoder",
        /// A multi-layer perceptron.
        Mlp = "mlp",
        /// A residual convolutional network.
        Cnn = "cnn",
        /// A custom network that the program registers.
        Custom = "custom",
        /// A foreign program that trains by itself.
        Command = "command",
    }
}
