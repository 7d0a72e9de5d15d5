//! Cuts a list of samples into training and validation.

use super::{Batch, DataError, Source};
use std::sync::Arc;

/// Of `samples`, how many are trained on when `valid` of them, in (0, 1), are cut off the end.
pub(super) fn train_samples(samples: u64, valid: f64) -> Result<u64, DataError> {
    if samples < 2 {
        let what = format!("{samples} samples, too few to cut validation samples off them");
        return Err(DataError::TooFew {
            what,
            hint: "use more data, a shorter context, or files for `valid`",
        });
    }
    let cut = fraction_of(samples, valid, f64::ceil).clamp(1, samples - 1);
    Ok(samples - cut)
}

/// The number of training samples that are used: `fraction` of them, at least one.
pub(super) fn used(samples: u64, fraction: f64) -> u64 {
    fraction_of(samples, fraction, f64::floor).clamp(samples.min(1), samples)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sample counts are far below 2^52 and fractions are positive"
)]
fn fraction_of(samples: u64, fraction: f64, round: fn(f64) -> f64) -> u64 {
    round(samples as f64 * fraction) as u64
}

/// Some consecutive samples of another source.
pub(super) struct Slice<S> {
    pub(super) of: Arc<S>,
    pub(super) begin: u64,
    pub(super) samples: u64,
}

impl<S: Source> Source for Slice<S> {
    fn len(&self) -> u64 {
        self.samples
    }

    fn read(&self, indices: &[u64]) -> Result<Batch, DataError> {
        assert!(indices.iter().all(|index| *index < self.samples), "samples are counted from 0");
        self.of.read(&indices.iter().map(|index| self.begin + index).collect::<Vec<_>>())
    }
}

/// Cuts rows into training and validation by fraction, when there is no separate validation source.
pub(super) fn cut<S: Source + 'static>(
    train: Arc<S>,
    valid: Option<S>,
    valid_fraction: Option<f64>,
    fraction: f64,
) -> Result<(Box<dyn Source>, Box<dyn Source>), DataError> {
    let samples = train.len();
    let trained = valid_fraction.map_or(Ok(samples), |valid| train_samples(samples, valid))?;
    let valid: Box<dyn Source> = match valid {
        Some(valid) => Box::new(valid),
        None => Box::new(Slice { of: Arc::clone(&train), begin: trained, samples: samples - trained }),
    };
    Ok((Box::new(Slice { of: train, begin: 0, samples: used(trained, fraction) }), valid))
}
