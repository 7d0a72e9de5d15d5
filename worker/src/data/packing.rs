//! Packing: cuts documents, joined end to end, into training sequences of equal length, without padding.

use super::tokens::TokenFiles;
use super::{Batch, DataError, SampleSource, Sequences, TokenWindows, split};
use dtrain_recipes::{Data, ValidationSource};
use std::sync::Arc;

/// Samples of `context` consecutive tokens each, with the token that follows each of them.
#[derive(Debug)]
struct ContextWindows {
    tokens: Arc<TokenFiles>,
    /// Index of the first token of the first sample.
    begin: u64,
    samples: u64,
    context: u64,
    vocab: u32,
}

impl SampleSource for ContextWindows {
    fn len(&self) -> u64 {
        self.samples
    }

    fn token_windows(&self) -> Option<Result<TokenWindows, DataError>> {
        let (first, samples) = (self.begin, self.samples);
        Some(self.tokens.ranges().map(|segments| TokenWindows { segments, first, samples }))
    }

    fn read(&self, indices: &[u64]) -> Result<Batch, DataError> {
        let length = usize::try_from(self.context).expect("a context is a u32");
        let mut inputs = Vec::with_capacity(indices.len() * length);
        let mut targets = Vec::with_capacity(indices.len() * length);
        let mut window = Vec::with_capacity(length + 1);
        for index in indices {
            assert!(*index < self.samples, "sample {index} of {}", self.samples);
            window.clear();
            self.tokens.read(self.begin + index * self.context, self.context + 1, self.vocab, &mut window)?;
            inputs.extend_from_slice(&window[..length]);
            targets.extend_from_slice(&window[1..]);
        }
        Ok(Batch::Tokens { inputs, targets, samples: indices.len(), length, packed: None })
    }
}

/// Returns all whole samples in `tokens` from `begin` on; the last one needs one more token, as its last
/// target.
fn windows(tokens: &Arc<TokenFiles>, begin: u64, model: Sequences) -> ContextWindows {
    let context = u64::from(model.context);
    let samples = (tokens.len() - begin).saturating_sub(1) / context;
    ContextWindows { tokens: Arc::clone(tokens), begin, samples, context, vocab: model.vocab }
}

/// Packs tokens into training and validation samples; the latter are cut off the end of `train` if
/// `valid` is `None`.
pub(super) fn pack(
    data: &Data,
    train: TokenFiles,
    valid: Option<TokenFiles>,
    model: Sequences,
) -> Result<(Box<dyn SampleSource>, Box<dyn SampleSource>), DataError> {
    let train = Arc::new(train);
    let mut all = windows(&train, 0, model);
    at_least_one(&all, &train, "train")?;
    let valid = match (valid, &data.valid) {
        (Some(valid), _) => {
            let valid = Arc::new(valid);
            let windows = windows(&valid, 0, model);
            at_least_one(&windows, &valid, "validate")?;
            windows
        }
        (None, ValidationSource::Fraction(fraction)) => {
            all.samples = split::train_samples(all.samples, *fraction)?;
            // The last target of training is the first input of validation, so no token is predicted in both.
            windows(&train, all.samples * all.context, model)
        }
        (None, ValidationSource::Files(_)) => panic!("validation files were opened"),
    };
    all.samples = split::used(all.samples, data.fraction);
    Ok((Box::new(all), Box::new(valid)))
}

fn at_least_one(windows: &ContextWindows, tokens: &TokenFiles, deed: &str) -> Result<(), DataError> {
    if windows.samples > 0 {
        return Ok(());
    }
    let (have, context) = (tokens.len(), windows.context);
    let what = format!(
        "{have} tokens; one sample to {deed} on takes {} (a context of {context} and one more)",
        context + 1
    );
    Err(DataError::TooFew { what, hint: "use more data or a shorter `model.context`" })
}
