//! The model that a recipe trains: its kind and sizes.

use crate::custom_model::{CustomModel, InputSignature};
use crate::decoder::Decoder;
use crate::keyword_enum::keyword_enum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The model that a recipe trains, of one of the supported kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Model {
    /// A causal transformer of the GPT-2 or the Llama family.
    Decoder(Decoder),
    /// A multi-layer perceptron over the columns of a table.
    Mlp(Mlp),
    /// A residual convolutional network over images.
    Cnn(Cnn),
    /// A network that the program registered under a name.
    Custom(CustomModel),
    /// A foreign program that trains by itself; dtrain places and watches it.
    Command(ForeignCommand),
}

keyword_enum! {
    /// The non-linearity between the layers of a multi-layer perceptron.
    pub enum MlpActivation {
        /// `max(0, x)`.
        Relu = "relu",
        /// The exact (erf) GELU.
        Gelu = "gelu",
    }
}

/// A multi-layer perceptron.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mlp {
    /// Number of input columns.
    pub inputs: u32,
    /// Width of each hidden layer, in order; at least one.
    pub hidden: Vec<u32>,
    /// Number of classes that the model distinguishes.
    pub classes: u32,
    /// Non-linearity between layers.
    pub activation: MlpActivation,
}

/// A residual network over images. Uses group norm: the statistics of batch norm would depend on the
/// micro-batch, and so the trained weights on the layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cnn {
    /// Number of channels of an image.
    pub channels: u32,
    /// Height of an image in pixels.
    pub height: u32,
    /// Width of an image in pixels.
    pub width: u32,
    /// Number of channels of each residual stage, in order; every stage after the first halves the image.
    pub stages: Vec<u32>,
    /// Number of residual blocks in each stage.
    pub blocks: u32,
    /// Number of classes that the model distinguishes.
    pub classes: u32,
}

/// A foreign training command, run once for each rank in the environment that its framework expects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignCommand {
    /// Program and its arguments, which may have placeholders; no shell is involved.
    pub argv: Vec<String>,
    /// Additional environment variables by name; their values may have placeholders.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Framework whose environment variables the program expects.
    #[serde(default)]
    pub framework: Framework,
    /// Templates for the lines that report progress, each a valid [`crate::line_template::LineTemplate`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<String>,
}

keyword_enum! {
    /// The framework that a foreign command is written for.
    #[derive(Default)]
    pub enum Framework {
        /// PyTorch, or any program that reads the variables of torchrun.
        #[default]
        Pytorch = "pytorch",
        /// DeepSpeed, with the variables of its launcher.
        Deepspeed = "deepspeed",
        /// TensorFlow, with the cluster in `TF_CONFIG`.
        Tensorflow = "tensorflow",
        /// JAX, with its distributed runtime.
        Jax = "jax",
        /// Horovod, with Gloo.
        Horovod = "horovod",
    }
}

impl Mlp {
    /// Returns the widths of all layers of the perceptron in order: inputs, hidden layers, classes.
    pub fn widths(&self) -> Vec<u32> {
        let mut widths = vec![self.inputs];
        widths.extend(&self.hidden);
        widths.push(self.classes);
        widths
    }
}

impl Model {
    /// Returns the number of parameters that are trained; zero for a foreign command, where it is unknown.
    pub fn trained_parameters(&self) -> u64 {
        if let Self::Decoder(decoder) = self { decoder.trained_parameters() } else { self.parameters() }
    }

    /// Returns the same model without low-rank adapters.
    pub fn base(&self) -> Self {
        if let Self::Decoder(decoder) = self { Self::Decoder(decoder.base()) } else { self.clone() }
    }

    /// Returns `true` if the model has low-rank adapters: only these are trained, and all other weights are
    /// frozen.
    pub fn has_frozen_weights(&self) -> bool {
        matches!(self, Self::Decoder(decoder) if decoder.lora.is_some())
    }

    /// Returns the number of parameters, each counted once and adapters left out; [`u64::MAX`] on overflow,
    /// zero for a foreign command.
    pub fn parameters(&self) -> u64 {
        match self {
            Self::Decoder(d) => d.parameters(),
            Self::Mlp(m) => m.widths().windows(2).map(|w| (u64::from(w[0]) + 1) * u64::from(w[1])).sum(),
            Self::Cnn(c) => c.parameters(),
            Self::Custom(own) => own.parameters(),
            Self::Command(_) => 0,
        }
    }

    /// Returns the number of tokens in one sample: the context if samples are sequences, otherwise one.
    pub fn sample_tokens(&self) -> u64 {
        match self {
            Self::Decoder(d) => u64::from(d.context),
            Self::Custom(own) => own.reads.context().unwrap_or(1).into(),
            Self::Mlp(_) | Self::Cnn(_) | Self::Command(_) => 1,
        }
    }

    /// Returns the shape of one sample's activation before block `boundary` (the number of blocks stands for
    /// the output of the last): `[tokens, hidden]` of a decoder, `[1, width]` of an mlp, `[channels, pixels]`
    /// of a cnn.
    pub fn activation_at(&self, boundary: u32) -> [u64; 2] {
        match self {
            Self::Decoder(d) => [d.context.into(), d.hidden.into()],
            Self::Mlp(m) => [1, m.widths()[boundary as usize].into()],
            Self::Cnn(c) => {
                let stage = boundary.saturating_sub(1) / c.blocks;
                let halved = |side: u32| (0..stage).fold(side, |side, _| side.div_ceil(2));
                let pixels = u64::from(halved(c.height)) * u64::from(halved(c.width));
                [c.stages[stage as usize].into(), pixels]
            }
            Self::Custom(own) => own.activation_at(boundary),
            Self::Command(_) => [0, 0],
        }
    }

    /// Returns the number of blocks, between which a pipeline can be cut.
    pub fn blocks(&self) -> u32 {
        match self {
            Self::Decoder(d) => d.layers,
            #[expect(clippy::cast_possible_truncation, reason = "a list in a recipe is short")]
            Self::Mlp(m) => m.hidden.len() as u32,
            #[expect(clippy::cast_possible_truncation, reason = "a list in a recipe is short")]
            Self::Cnn(c) => c.stages.len() as u32 * c.blocks,
            #[expect(clippy::cast_possible_truncation, reason = "each block was built")]
            Self::Custom(own) => own.outline.blocks.len() as u32,
            Self::Command(_) => 0,
        }
    }

    /// Returns the kind of inputs and predictions of the model; `None` for a foreign command, which reads its
    /// own data.
    pub fn reads(&self) -> Option<InputSignature> {
        let rows = |inputs, classes| Some(InputSignature::Rows { inputs, classes });
        match self {
            Self::Decoder(d) => Some(InputSignature::Tokens { context: d.context, vocab: d.vocab }),
            Self::Mlp(m) => rows(m.inputs, m.classes),
            Self::Cnn(c) => rows(c.channels * c.height * c.width, c.classes),
            Self::Custom(own) => Some(own.reads),
            Self::Command(_) => None,
        }
    }

    /// Returns `true` if the samples of the model are token sequences.
    pub fn reads_tokens(&self) -> bool {
        matches!(self.reads(), Some(InputSignature::Tokens { .. }))
    }
}

impl Cnn {
    /// Returns the number of trainable parameters: the 3×3 stem, two 3×3 convolutions with group norms per
    /// block, a 1×1 projection where the channels or the size change, and the linear head. Convolutions have
    /// no bias.
    pub fn parameters(&self) -> u64 {
        let conv = |i: u64, o: u64, k: u64| i * o * k * k;
        let mut before = u64::from(self.stages[0]);
        let mut total = conv(u64::from(self.channels), before, 3) + 2 * before;
        for (index, stage) in self.stages.iter().enumerate() {
            let after = u64::from(*stage);
            for block in 0..self.blocks {
                let input = if block == 0 { before } else { after };
                total += conv(input, after, 3) + conv(after, after, 3) + 4 * after;
                if block == 0 && (index > 0 || input != after) {
                    total += conv(input, after, 1);
                }
            }
            before = after;
        }
        total + (before + 1) * u64::from(self.classes)
    }
}
