//! Synthetic samples with the shape that a model reads.

use crate::data::Batch;
use crate::network::ModelInput;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_recipes::{CustomModel, Decoder, InputSignature, Model};
use std::time::Instant;

/// Samples of one micro-batch, with pseudo-random values.
#[derive(Clone, Debug)]
pub(crate) struct SyntheticSamples {
    samples: usize,
    /// Number of tokens in a sequence, or of values in a row.
    width: usize,
    tokens: Vec<u32>,
    targets: Vec<u32>,
    values: Vec<f32>,
}

impl SyntheticSamples {
    /// Creates a micro-batch of `samples` samples for `model`; without values for a foreign command, for
    /// which no stage can be built.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of classes, a u32")]
    pub(crate) fn of(model: &Model, samples: u32) -> Self {
        let samples = samples as usize;
        let below = |length: usize, classes: u32| -> Vec<u32> {
            (0..length as u64).map(|i| (splitmix64(1, i) % u64::from(classes)) as u32).collect()
        };
        let rows = |width: usize, classes: u32| Self {
            samples,
            width,
            tokens: Vec::new(),
            targets: below(samples, classes),
            values: (0..samples as u64 * width as u64)
                .map(|i| (splitmix64(2, i) % 1000) as f32 / 500.0 - 1.0)
                .collect(),
        };
        match model {
            Model::Decoder(Decoder { context, vocab, .. })
            | Model::Custom(CustomModel { reads: InputSignature::Tokens { context, vocab }, .. }) => {
                let width = *context as usize;
                let tokens = below(samples * width, *vocab);
                Self {
                    samples,
                    width,
                    targets: tokens.iter().rev().copied().collect(),
                    tokens,
                    values: Vec::new(),
                }
            }
            Model::Mlp(mlp) => rows(mlp.inputs as usize, mlp.classes),
            Model::Cnn(cnn) => rows((cnn.channels * cnn.height * cnn.width) as usize, cnn.classes),
            Model::Custom(CustomModel { reads: InputSignature::Rows { inputs, classes }, .. }) => {
                rows(*inputs as usize, *classes)
            }
            Model::Command(_) => rows(0, 1),
        }
    }

    /// Returns the samples in the form in which a stage reads them.
    pub(crate) fn view(&self) -> ModelInput<'_> {
        let Self { samples, width, tokens, targets, values } = self;
        if tokens.is_empty() {
            return ModelInput::Rows { values, classes: targets, samples: *samples, width: *width };
        }
        ModelInput::Tokens { inputs: tokens, targets, samples: *samples, length: *width, packed: None }
    }

    /// Returns the samples in the form in which a data set returns them.
    pub(super) fn batch(&self) -> Batch {
        let Self { samples, width, tokens, targets, values } = self.clone();
        if tokens.is_empty() {
            return Batch::Rows { values, classes: targets, samples, width };
        }
        Batch::Tokens { inputs: tokens, targets, samples, length: width, packed: None }
    }

    /// Returns the seconds of copying the samples into one batch, as a data set does.
    pub(super) fn seconds_to_gather(&self) -> f64 {
        let began = Instant::now();
        drop(std::hint::black_box(self.clone()));
        began.elapsed().as_secs_f64()
    }
}
