//! Splits samples into a training and a validation set.

use super::{Batch, DataError, SampleSource};
use dtrain_protocol::shuffle::{shuffled_sample, splitmix64};
use std::sync::Arc;

/// Number mixed into the seed, so that the split has another order than training.
const SPLIT: u64 = 0x5917;

/// Limit on the number of classes listed in a warning.
const NAMED: usize = 8;

/// Returns the number of training samples that remain of `samples` when the fraction `valid`, in (0, 1),
/// is split off the end for validation.
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

/// Returns the number of training samples that are used: the share `fraction` of them, at least one.
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

/// A split of samples into training and validation, by their position in an order.
pub(super) struct TrainValidationSplit {
    order: SplitOrder,
    /// Number of used training samples, which come first in the order.
    trained: u64,
    /// Position in the order of the first validation sample.
    valid: u64,
}

/// The set that a sample belongs to, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subset {
    Train,
    Valid,
    Unused,
}

/// The order of samples in which they are split.
#[derive(Clone, Copy)]
struct SplitOrder {
    /// Seed of the shuffle; `None` keeps the order of the files.
    mix: Option<u64>,
    samples: u64,
}

impl SplitOrder {
    fn sample(self, index: u64) -> u64 {
        match self.mix {
            Some(seed) => shuffled_sample(splitmix64(seed, SPLIT), self.samples, index),
            None => index,
        }
    }
}

impl TrainValidationSplit {
    /// Creates a split in which the fraction `valid` of the samples is for validation (`None` if there
    /// are validation files), and the share `fraction` of the others for training.
    pub(super) fn of(
        samples: u64,
        valid: Option<f64>,
        fraction: f64,
        mix: Option<u64>,
    ) -> Result<Self, DataError> {
        let valid = valid.map_or(Ok(samples), |valid| train_samples(samples, valid))?;
        Ok(Self { order: SplitOrder { mix, samples }, trained: used(valid, fraction), valid })
    }

    /// Returns the set that each sample belongs to, by number.
    pub(super) fn sides(&self) -> Vec<Subset> {
        let mut sides = vec![
            Subset::Unused;
            usize::try_from(self.order.samples).expect("a byte for each lies in memory")
        ];
        for index in 0..self.order.samples {
            let side = if index < self.trained {
                Subset::Train
            } else if index >= self.valid {
                Subset::Valid
            } else {
                continue;
            };
            sides[usize::try_from(self.order.sample(index)).expect("it is below `samples`")] = side;
        }
        sides
    }

    /// Returns warnings about classes that only training or only validation samples have. `classes` has
    /// the class of every split sample, `other` those of the samples in validation files, if any.
    pub(super) fn one_sided(
        &self,
        classes: &[u32],
        other: Option<&[u32]>,
        name: impl Fn(usize) -> String,
    ) -> Vec<String> {
        let most =
            classes.iter().chain(other.into_iter().flatten()).max().map_or(0, |most| *most as usize + 1);
        let [mut train, mut valid] = [vec![0; most], vec![0; most]];
        for (class, side) in classes.iter().zip(self.sides()) {
            match side {
                Subset::Train => train[*class as usize] += 1,
                Subset::Valid => valid[*class as usize] += 1,
                Subset::Unused => {}
            }
        }
        for class in other.into_iter().flatten() {
            valid[*class as usize] += 1;
        }
        one_sided(&[train, valid], name)
    }

    /// Returns the training and validation samples; the latter are `other` if there are validation files,
    /// and otherwise part of `train`.
    pub(super) fn cut<S: SampleSource + 'static>(
        &self,
        train: Arc<S>,
        other: Option<S>,
    ) -> (Box<dyn SampleSource>, Box<dyn SampleSource>) {
        let valid: Box<dyn SampleSource> = match other {
            Some(other) => Box::new(other),
            None => Box::new(SourceSubset {
                of: Arc::clone(&train),
                order: self.order,
                begin: self.valid,
                samples: self.order.samples - self.valid,
            }),
        };
        (Box::new(SourceSubset { of: train, order: self.order, begin: 0, samples: self.trained }), valid)
    }
}

/// A contiguous part of another source's samples, in the order of the split.
struct SourceSubset<S> {
    of: Arc<S>,
    order: SplitOrder,
    /// Position in the order of the first sample of the part.
    begin: u64,
    samples: u64,
}

impl<S: SampleSource> SampleSource for SourceSubset<S> {
    fn len(&self) -> u64 {
        self.samples
    }

    fn read(&self, indices: &[u64]) -> Result<Batch, DataError> {
        assert!(indices.iter().all(|index| *index < self.samples), "samples are counted from 0");
        let samples = indices.iter().map(|index| self.order.sample(self.begin + index));
        self.of.read(&samples.collect::<Vec<_>>())
    }
}

/// Returns warnings about classes that only training or only validation samples have. The argument has
/// the number of samples of each class, for training and for validation.
pub(super) fn one_sided([train, valid]: &[Vec<u64>; 2], name: impl Fn(usize) -> String) -> Vec<String> {
    let only = |here: &[u64], there: &[u64], what: &str| {
        let has_it = |class: &usize| here[*class] > 0 && there[*class] == 0;
        let classes: Vec<usize> = (0..here.len()).filter(has_it).collect();
        let more = classes.len().saturating_sub(NAMED);
        let named: Vec<String> =
            classes.iter().take(NAMED).map(|class| format!("`{}`", name(*class))).collect();
        let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (classes, are) = if classes.len() == 1 { ("class", "is") } else { ("classes", "are") };
        (!named.is_empty()).then(|| format!("{classes} {}{and_more} {are} {what}", named.join(", ")))
    };
    let untrained = only(valid, train, "in the validation data and not in the training data");
    let unmeasured = only(train, valid, "in the training data and not in the validation data");
    untrained.into_iter().chain(unmeasured).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_samples_are_cut_without_loss() {
        let sides = |mix| TrainValidationSplit::of(1000, Some(0.2), 0.5, mix).expect("enough").sides();
        for mix in [None, Some(1), Some(2)] {
            let count = |side| sides(mix).iter().filter(|found| **found == side).count();
            assert_eq!([Subset::Train, Subset::Valid, Subset::Unused].map(count), [400, 200, 400]);
        }
        let last = |mix| sides(mix)[800..].iter().filter(|side| **side == Subset::Valid).count();
        assert_eq!(last(None), 200);
        assert!((20..60).contains(&last(Some(1))), "about a fifth of them: {}", last(Some(1)));
        assert_ne!(sides(Some(1)), sides(Some(2)));
    }

    #[test]
    fn classes_of_one_side_are_named() {
        let name = |class: usize| format!("c{class}");
        assert_eq!(one_sided(&[vec![1, 2, 0], vec![3, 1, 0]], name), [""; 0]);
        let told = one_sided(&[vec![1, 0, 4], vec![0, 2, 1]], name);
        assert_eq!(
            told,
            [
                "class `c1` is in the validation data and not in the training data",
                "class `c0` is in the training data and not in the validation data"
            ]
        );
        let many = one_sided(&[vec![0; 12], vec![1; 12]], name);
        assert!(many[0].starts_with("classes `c0`, ") && many[0].contains(" and 4 more are in"), "{many:?}");
    }
}
