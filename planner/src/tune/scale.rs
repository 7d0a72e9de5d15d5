//! A dimension of a search space: its values, mapped to the unit interval and back.

use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// The set of values of a dimension, with the distances between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Real numbers with three significant digits, uniform in the logarithm.
    Log {
        /// Smallest value, positive.
        low: f64,
        /// Largest value, above `low`.
        high: f64,
    },
    /// Integers, uniform in the logarithm.
    Counts {
        /// Smallest value, positive.
        low: i64,
        /// Largest value, above `low`.
        high: i64,
    },
    /// Real numbers, uniform, in steps of about a thousandth of the range.
    Uniform {
        /// Smallest value.
        low: f64,
        /// Largest value, above `low`.
        high: f64,
    },
    /// Integers, uniform between the bounds.
    Integers {
        /// Smallest value.
        low: i64,
        /// Largest value, above `low`.
        high: i64,
    },
    /// At least two ordered values, evenly spaced.
    Levels(Vec<TrialValue>),
    /// At least two categorical values, all at the same distance from each other.
    Names(Vec<TrialValue>),
}

/// A dimension of a search space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dimension {
    /// Name of the dimension, such as `train.learning_rate`.
    pub name: String,
    /// Set of values of the dimension.
    pub scale: Scale,
    /// Conditions for this dimension to exist: indices of earlier dimensions, each with the values of which
    /// it must have one. If a condition is not met, the value is [`TrialValue::Inactive`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<(usize, Vec<TrialValue>)>,
}

/// Highest number of integers of which each is tried.
const COUNTED_MOST: usize = 1000;

/// Number of integers from which on the steps between them no longer matter.
const SMOOTH: u64 = 24;

impl Dimension {
    /// Creates a dimension that always exists.
    pub fn new(name: impl Into<String>, scale: Scale) -> Self {
        Self { name: name.into(), scale, when: Vec::new() }
    }

    /// Returns the value of the dimension at `coordinate`, which is clamped to [0, 1].
    pub fn value(&self, coordinate: f64) -> TrialValue {
        let coordinate = coordinate.clamp(0.0, 1.0);
        match &self.scale {
            Scale::Log { low, high } => {
                TrialValue::Real(three_digits(between(*low, *high, coordinate)).clamp(*low, *high))
            }
            Scale::Counts { low, high } => TrialValue::Whole(count_at(*low, *high, coordinate)),
            Scale::Uniform { low, high } => TrialValue::Real(stepped(*low, *high, coordinate)),
            Scale::Integers { low, high } => TrialValue::Whole(integer_at(*low, *high, coordinate)),
            Scale::Levels(all) | Scale::Names(all) => all[cell(coordinate, all.len())].clone(),
        }
    }

    /// Returns the coordinate of a value, in [0, 1] when it is within the bounds; `None` when this dimension
    /// has no such value.
    pub fn coordinate(&self, value: &TrialValue) -> Option<f64> {
        match &self.scale {
            Scale::Log { low, high } => position(*low, *high, value),
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            Scale::Counts { low, high } => position(*low as f64, *high as f64, value),
            Scale::Uniform { low, high } => finite(value).map(|number| (number - low) / (high - low)),
            #[expect(clippy::cast_precision_loss, reason = "whole numbers are far below 2^52")]
            Scale::Integers { low, high } => {
                finite(value).map(|number| (number - *low as f64 + 0.5) / (*high as f64 - *low as f64 + 1.0))
            }
            Scale::Levels(all) | Scale::Names(all) => {
                all.iter().position(|one| one == value).map(|place| middle(place, all.len()))
            }
        }
    }

    /// Returns the value of the dimension nearest to `number`, by ratio where the scale is logarithmic or all
    /// values are positive; `None` for a categorical dimension.
    pub fn nearest(&self, number: f64) -> Option<TrialValue> {
        match &self.scale {
            Scale::Log { .. } | Scale::Counts { .. } | Scale::Uniform { .. } | Scale::Integers { .. } => {
                self.coordinate(&TrialValue::Real(number)).map(|at| self.value(at))
            }
            Scale::Levels(all) => {
                let is_positive = number > 0.0 && all.iter().all(|one| one.number().is_some_and(|n| n > 0.0));
                let far = |value: &TrialValue| {
                    value.number().map_or(f64::INFINITY, |one| match is_positive {
                        true => (one / number).ln().abs(),
                        false => (one - number).abs(),
                    })
                };
                all.iter().min_by(|a, b| far(a).total_cmp(&far(b))).cloned()
            }
            Scale::Names(_) => None,
        }
    }

    /// Returns `true` if nearby coordinates of the dimension have nearby values, without steps that matter.
    pub fn is_continuous(&self) -> bool {
        match &self.scale {
            Scale::Log { .. } | Scale::Counts { .. } | Scale::Uniform { .. } => true,
            Scale::Integers { low, high } => high.abs_diff(*low) >= SMOOTH,
            Scale::Levels(_) | Scale::Names(_) => false,
        }
    }

    /// Returns `true` if all values of the dimension are at the same distance from each other.
    pub fn is_categorical(&self) -> bool {
        matches!(self.scale, Scale::Names(_))
    }

    /// Returns the number of values of the dimension; `None` when there are too many to try each.
    pub fn count(&self) -> Option<usize> {
        match &self.scale {
            Scale::Log { .. } | Scale::Counts { .. } | Scale::Uniform { .. } => None,
            Scale::Integers { low, high } => usize::try_from(high.abs_diff(*low))
                .ok()
                .map(|steps| steps.saturating_add(1))
                .filter(|count| *count <= COUNTED_MOST),
            Scale::Levels(all) | Scale::Names(all) => Some(all.len()),
        }
    }
}

fn finite(value: &TrialValue) -> Option<f64> {
    value.number().filter(|number| number.is_finite())
}

fn between(low: f64, high: f64, coordinate: f64) -> f64 {
    (low.ln() + coordinate * (high / low).ln()).exp()
}

fn position(low: f64, high: f64, value: &TrialValue) -> Option<f64> {
    let number = finite(value).filter(|number| *number > 0.0)?;
    Some((number / low).ln() / (high / low).ln())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count_at(low: i64, high: i64, coordinate: f64) -> i64 {
    (between(low as f64, high as f64, coordinate).round() as i64).clamp(low, high)
}

/// Returns the integer between the bounds whose cell of the unit interval contains `coordinate`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "whole numbers are far below 2^52"
)]
fn integer_at(low: i64, high: i64, coordinate: f64) -> i64 {
    low.saturating_add((coordinate * (high as f64 - low as f64 + 1.0)) as i64).min(high)
}

/// Returns the number at `coordinate` between `low` and `high`, rounded to a thousandth of the power of ten
/// that the range contains.
///
/// The bounds themselves can be reached, however many digits they have.
fn stepped(low: f64, high: f64, coordinate: f64) -> f64 {
    if coordinate <= 0.0 || coordinate >= 1.0 {
        return if coordinate <= 0.0 { low } else { high };
    }
    let number = low + coordinate * (high - low);
    let digits = 3.0 - (high - low).log10().floor();
    // Through text, so that the result is exactly 0.123 and not a float beside it.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "held within 0 and 300")]
    let places = digits.clamp(0.0, 300.0) as usize;
    let step = 10f64.powf(-digits.min(0.0));
    let rounded = (number / step).round() * step;
    let text = format!("{:.*}", places, if digits < 0.0 { rounded } else { number });
    // Turns −0 into 0.
    text.parse().unwrap_or(number).clamp(low, high) + 0.0
}

/// Returns the index of the cell that contains a coordinate, of `count` cells in the unit interval.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a few cells, and a coordinate within [0, 1]"
)]
pub(super) fn cell(coordinate: f64, count: usize) -> usize {
    ((coordinate * count as f64) as usize).min(count - 1)
}

/// Returns the middle of the cell with index `place`, of `count` cells in the unit interval.
#[expect(clippy::cast_precision_loss, reason = "a few cells")]
pub(super) fn middle(place: usize, count: usize) -> f64 {
    (place as f64 + 0.5) / count as f64
}

/// Rounds `number` to three significant digits, through text, so that the result is exactly 0.00123 and not a
/// float beside it.
fn three_digits(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimension(scale: Scale) -> Dimension {
        Dimension::new("x", scale)
    }

    #[test]
    fn bounds_of_three_digits_are_kept() {
        assert_eq!(dimension(Scale::Log { low: 1.239, high: 2.0 }).value(0.0), TrialValue::Real(1.24));
        assert_eq!(dimension(Scale::Log { low: 1.231, high: 2.0 }).value(0.0), TrialValue::Real(1.231));
    }

    #[test]
    fn numbers_that_are_even_between_bounds_have_the_digits_one_writes() {
        let at = |low, high, coordinate| dimension(Scale::Uniform { low, high }).value(coordinate);
        assert_eq!(at(0.0, 0.5, 0.3), TrialValue::Real(0.15));
        assert_eq!(at(0.0, 1.0, 1.0 / 3.0), TrialValue::Real(0.333));
        assert_eq!(at(-1.0, 1.0, 0.5), TrialValue::Real(0.0));
        assert_eq!(at(0.0, 5e6, 0.123_456_7), TrialValue::Real(617_000.0));
        assert_eq!(at(0.123_456, 0.2, 0.0), TrialValue::Real(0.123_456), "the lower bound itself");
        assert_eq!(at(0.1, 0.234_567, 1.0), TrialValue::Real(0.234_567), "the upper bound itself");
    }

    #[test]
    fn whole_numbers_are_equally_likely_also_below_zero() {
        let scale = dimension(Scale::Integers { low: -2, high: 1 });
        let all: Vec<TrialValue> = [0.0, 0.24, 0.26, 0.5, 0.76, 1.0].map(|at| scale.value(at)).to_vec();
        assert_eq!(all, [-2, -2, -1, 0, 1, 1].map(TrialValue::Whole));
        assert_eq!(scale.coordinate(&TrialValue::Whole(-2)), Some(0.125));
        assert_eq!(scale.count(), Some(4));
        assert!(!scale.is_continuous() && dimension(Scale::Integers { low: 0, high: 99 }).is_continuous());
    }

    #[test]
    fn the_nearest_value_is_nearest_by_ratio_or_by_difference() {
        let batch = dimension(Scale::Levels([8, 16, 64].map(TrialValue::Whole).to_vec()));
        assert_eq!(batch.nearest(30.0), Some(TrialValue::Whole(16)));
        assert_eq!(batch.nearest(33.0), Some(TrialValue::Whole(64)));
        let signed = dimension(Scale::Levels([-8, 0, 8].map(TrialValue::Whole).to_vec()));
        assert_eq!(signed.nearest(-3.0), Some(TrialValue::Whole(0)));
        let rate = dimension(Scale::Log { low: 1e-4, high: 1e-3 });
        assert_eq!(rate.nearest(3e-4), Some(TrialValue::Real(3e-4)));
        assert_eq!(rate.nearest(0.5), Some(TrialValue::Real(1e-3)));
        assert_eq!(dimension(Scale::Integers { low: 2, high: 9 }).nearest(6.4), Some(TrialValue::Whole(6)));
        let names = ["a", "b"].map(|word| TrialValue::Word(word.into())).to_vec();
        assert_eq!(dimension(Scale::Names(names)).nearest(1.0), None);
    }
}
